"""Settings as the command line that gives them, so that `ps` shows what runs and a person can run it again."""

import sys

import msgspec
from msgspec import NODEFAULT, Struct, structs

from ...broker.shell.settings import BrokerSettings
from ...services.settings import ServiceSettings

#: -P keeps the current directory out of the import path
TRIPTYCH = (sys.executable, "-P", "-m", "triptych.ops.cli")


def broker_argv(settings: BrokerSettings) -> list[str]:
    """Return the command line of a broker."""
    return [*TRIPTYCH, "broker", *_flags(settings)]


def service_argv(settings: ServiceSettings) -> list[str]:
    """Return the command line of a service."""
    return [*TRIPTYCH, settings.role, *_flags(settings, without="role")]


def flag(name: str) -> str:
    """Return the flag of the setting `name`."""
    return f"--{name.replace('_', '-')}"


def default_of(field: structs.FieldInfo) -> object:
    """Return the default of a setting, `NODEFAULT` where it has none."""
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def _flags(settings: Struct, without: str = "", *, flat: bool = True) -> list[str]:
    """Return flags for the settings that are not their default; sections inside lie flat, deeper ones are JSON."""
    flags: list[str] = []
    for field in structs.fields(settings):
        value: object = getattr(settings, field.name)
        if field.name == without or value == default_of(field):
            continue
        if flat and isinstance(value, Struct):
            flags += _flags(value, flat=False)
        else:
            text = msgspec.json.encode(value).decode() if isinstance(value, Struct | dict) else value
            flags.append(f"{flag(field.name)}={text}")
    return flags
