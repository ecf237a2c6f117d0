"""One TOML file describes a whole cluster; each process takes its own section of it."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ..broker.shell.settings import BrokerSettings
from ..schemas.errors import ConfigError
from ..schemas.roles import Role
from ..services.settings import ServiceSettings
from .decoding import Values, as_section, decode_settings, refuse_unknown

#: what a pool's section does not set, since each instance has its own
_PER_INSTANCE = {"role", "instance_id"}
_POOL_KEYS = ("instances", *(name for name in ServiceSettings.__struct_fields__ if name not in _PER_INSTANCE))
_SECTIONS = ("broker", *Role)


class PoolSize(Struct, frozen=True):
    """How many services a role has."""

    instances: Annotated[int, Meta(ge=0, le=1024)] = 1


class ClusterSettings(Struct, frozen=True):
    """A broker and its services."""

    broker: BrokerSettings
    services: tuple[ServiceSettings, ...]


def load_document(path: Path | None) -> dict[str, object]:
    """Return the TOML file as it stands, or an empty document without one. Raises `ConfigError`."""
    if path is None:
        return {}
    try:
        document: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", str(path), f"a file that can be read ({error.strerror})") from error
    except RecursionError as error:
        raise ConfigError("--config", str(path), "a TOML file (this one is nested too deeply)") from error
    except ValueError as error:  # what is no TOML, no UTF-8, or a number of too many digits
        raise ConfigError("--config", str(path), f"a TOML file ({error})") from error
    for key, value in document.items():
        refuse_unknown(key, value, _SECTIONS, "")
    return document


def cluster_settings(document: Values, counts: Mapping[Role, int], broker: Values) -> ClusterSettings:
    """Return the cluster the document describes; `counts` and `broker` override it."""
    broker_settings = broker_settings_from(document, broker)
    services = [
        service_settings(document, role, {"instance_id": f"{role}-{index}"}, broker)
        for role in Role
        for index in range(counts.get(role, _pool_size(document, role)))
    ]
    return ClusterSettings(broker_settings, tuple(services))


def broker_settings_from(document: Values, given: Values) -> BrokerSettings:
    """Return the broker's settings: the document's, and over them those `given` by name."""
    section = _section(document, "broker")
    dispatch = as_section(section.get("dispatch", {}), "broker.dispatch")
    own = {name: value for name, value in given.items() if name in BrokerSettings.__struct_fields__}
    inner = {name: value for name, value in given.items() if name not in own}
    return decode_settings({**section, **own, "dispatch": {**dispatch, **inner}}, BrokerSettings, "broker")


def service_settings(document: Values, role: Role, given: Values, broker: Values | None = None) -> ServiceSettings:
    """Return one service's settings: the document's for its role, and over them those `given` by name."""
    section = _section(document, role)
    for key, value in section.items():
        refuse_unknown(key, value, _POOL_KEYS, role)
    section.pop("instances", None)
    own = {
        "role": role,
        "instance_id": f"{role}@{os.uname().nodename}-{os.getpid()}",
        "broker": reachable(broker_settings_from(document, broker or {}).service_endpoint),
    }
    return decode_settings({**own, **section, **given}, ServiceSettings, role)


def reachable(endpoint: str) -> str:
    """Return where to connect on this host to reach what is bound to `endpoint`."""
    for everywhere in ("tcp://0.0.0.0:", "tcp://*:"):
        if endpoint.startswith(everywhere):
            return f"tcp://127.0.0.1:{endpoint.removeprefix(everywhere)}"
    return endpoint


def _pool_size(document: Values, role: Role) -> int:
    section = _section(document, role)
    given = {"instances": section["instances"]} if "instances" in section else {}
    return decode_settings(given, PoolSize, role).instances


def _section(document: Values, name: str) -> dict[str, object]:
    return as_section(document.get(name, {}), name)
