"""Settings as the command line that gives them, so that `ps` shows what runs and a person can run it again."""

import sys

from msgspec import Struct, structs

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


def _flags(settings: Struct, without: str = "") -> list[str]:
    """Return flags for the settings that are not their default; sections inside lie flat."""
    flags: list[str] = []
    for field in structs.fields(settings):
        value: object = getattr(settings, field.name)
        if field.name == without or value == field.default:
            continue
        flags += _flags(value) if isinstance(value, Struct) else [f"{flag(field.name)}={value}"]
    return flags
