"""Pipelines by name."""

from importlib import import_module

from ...schemas.errors import ConfigError
from .interface import Pipeline

#: the pipelines that ship with the package, as `module:attribute`
SHIPPED = {"reference": "triptych.services.pipelines.reference.stages:REFERENCE"}


def load_pipeline(name: str) -> Pipeline:
    """Return the pipeline called `name`, without any weights yet.

    One of your own is named by where Python finds it, `package.module:ATTRIBUTE`. Raises `ConfigError` otherwise.
    """
    place = SHIPPED.get(name, name)
    module, _, attribute = place.partition(":")
    try:
        pipeline: object = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError, SyntaxError) as error:
        allowed = f"{', '.join(SHIPPED)}, or your own as package.module:ATTRIBUTE ({error})"
        raise ConfigError("pipeline", name, allowed) from error
    if not isinstance(pipeline, Pipeline):
        raise ConfigError("pipeline", name, f"a Pipeline; {place} is a {type(pipeline).__name__}")
    return pipeline


def model_name(pipeline: str) -> str:
    """Return what the model of a pipeline is called unless it is given a name: `reference`, `module:FLUX` is `flux`."""
    return pipeline.rpartition(":")[2].lower() if ":" in pipeline else pipeline
