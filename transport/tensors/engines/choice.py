"""Which engines a service has, by its setting."""

from typing import Literal

import structlog
from torch import Tensor

from ....schemas.errors import ConfigError
from ....schemas.memory import EngineName, NixlAddress
from .base import Engine
from .nixl import NixlEngine, agent_name
from .nixl_agent import nixl_installed

#: `auto`: in place on one host, NIXL between hosts where it is installed and starts
EngineSetting = Literal["auto", "shm", "nixl"]
_ALLOWED: tuple[str, ...] = ("auto", "shm", "nixl")

Opened = tuple[tuple[EngineName, ...], Engine | None, NixlAddress | None]

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.transport")


def open_engine(setting: str, memory: Tensor, instance_id: str, incarnation: int) -> Opened:
    """Return what moves payloads, the preferred first, with the engine that writes, if any, and its address."""
    if setting not in _ALLOWED:
        raise ConfigError("engine", setting, ", ".join(_ALLOWED))
    on_host = memory.device.type == "cpu"
    if setting == "shm" and not on_host:
        raise ConfigError("engine", setting, "auto or nixl: nobody else can read a pool in device memory")
    in_place = (EngineName.SHM,) if setting != "nixl" and on_host else ()
    if setting == "shm" or (setting == "auto" and on_host and not nixl_installed()):
        return in_place, None, None
    try:
        engine = NixlEngine(agent_name(instance_id, incarnation), memory)
    except ConfigError as error:
        if not in_place:
            raise
        log.warning("no nixl: other hosts are out of reach", reason=str(error))
        return in_place, None, None
    return (*in_place, EngineName.NIXL), engine, engine.address
