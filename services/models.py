"""The models of one service, and which of them have their weights in memory."""

from collections import OrderedDict
from collections.abc import Callable, Mapping

import structlog
import torch

from ..schemas.errors import ConfigError, InvalidRequest
from ..schemas.roles import Role
from .pipelines.interface import Pipeline, Stage, chained

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")


class Models:
    """Stages by the name of their model, at most `in_memory` of them loaded, the least recently used dropped first.

    `stage` is for the compute thread alone, so a model that computes is never dropped; the rest is for any thread.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Stage]], in_memory: int) -> None:
        #: the one that the service was made for first
        self.names = tuple(loaders)
        #: those whose weights are in memory, the least recently used first
        self.loaded: tuple[str, ...] = ()
        self._loaders = loaders
        self._in_memory = in_memory
        self._stages = OrderedDict[str, Stage]()

    def check(self, name: str) -> None:
        """Raise `InvalidRequest` for a model that is not served here."""
        if name not in self._loaders:
            raise InvalidRequest("model", name, f"what this service has: {', '.join(self.names)}")

    def stage(self, name: str) -> Stage:
        """Return the stage of the model `name`, after loading its weights where they are not in memory."""
        self.check(name)
        if name not in self._stages:
            while len(self._stages) >= self._in_memory:
                self._drop_oldest()
            self._stages[name] = self._loaders[name]()
            log.info("weights loaded", model=name)
        self._stages.move_to_end(name)
        self.loaded = tuple(self._stages)
        return self._stages[name]

    def _drop_oldest(self) -> None:
        """Drop a model before another is loaded: there need not be room for both."""
        name, _ = self._stages.popitem(last=False)
        self.loaded = tuple(self._stages)
        log.info("weights dropped", model=name)


def models_of(pipelines: Mapping[str, Pipeline], role: Role, device: torch.device, in_memory: int) -> Models:
    """Return what the role computes of each of `pipelines`, without any weights yet.

    Raises `ConfigError` for a pipeline that has nothing for the role.
    """
    for pipeline in pipelines.values():
        if all(spec.role is not role for spec in pipeline.stages):
            raise ConfigError("pipeline", pipeline.name, f"one that has a stage for the role {role}")
    return Models({name: _loader(pipeline, role, device) for name, pipeline in pipelines.items()}, in_memory)


def _loader(pipeline: Pipeline, role: Role, device: torch.device) -> Callable[[], Stage]:
    return lambda: chained([spec.load(device) for spec in pipeline.stages if spec.role is role])
