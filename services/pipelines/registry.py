"""Pipelines by name."""

from ...schemas.errors import ConfigError
from .interface import Pipeline


def load_pipeline(name: str) -> Pipeline:
    """Return the pipeline called `name`, without any weights yet. Raises `ConfigError` for an unknown name."""
    if name == "reference":
        from .reference.stages import REFERENCE  # noqa: PLC0415  (only the pipeline that is served is imported)

        return REFERENCE
    raise ConfigError("pipeline", name, "reference")
