"""Settings as options: one for each field of the Structs, with its comment as the help. Written down once, there."""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any

import typer
from msgspec import NODEFAULT, Struct, structs
from msgspec import inspect as types

from ..launcher.argv import flag
from ..settings_docs import field_docs

Command = Callable[..., None]


def with_settings(kind: type[Struct], without: str = "") -> Callable[[Command], Command]:
    """Give a command that takes `**given` an option for each setting of `kind`; those in sections inside lie flat.

    An option that is not given is None.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        names = {item.name for item in own} | {without}
        added = [item for item in _parameters(kind) if item.name not in names]
        vars(command)["__signature__"] = signature.replace(parameters=[*own, *added])
        return command

    return decorate


def those_given(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that were given, as plain values."""
    return {
        name: value.value if isinstance(value, Enum) else value for name, value in options.items() if value is not None
    }


def _parameters(kind: type[Struct]) -> list[inspect.Parameter]:
    docs = field_docs(kind)
    parameters: list[inspect.Parameter] = []
    for field in structs.fields(kind):
        described = types.type_info(field.type)
        if isinstance(described, types.StructType):
            parameters += _parameters(described.cls)
            continue
        text = docs.get(field.name, field.name.replace("_", " "))
        default = "" if field.default is NODEFAULT else f" [dim]\\[default: {field.default}][/dim]"
        option = typer.Option(flag(field.name), help=f"{text}{default}", show_default=False)
        annotation = Annotated[_plain(described) | None, option]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, keyword, default=None, annotation=annotation))
    return parameters


def _plain(described: types.Type) -> Any:
    """Return the type that the command line parses; its bounds are checked with the rest of the settings."""
    match described:
        case types.IntType():
            return int
        case types.FloatType():
            return float
        case types.EnumType():
            return described.cls
        case types.StrType():
            return str
        case _:
            raise TypeError(f"no option can give a {described}")
