"""Settings as options: one for each field of the Structs, with its comment as the help. Written down once, there."""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec
import typer
from msgspec import NODEFAULT, Struct, structs
from msgspec import inspect as types

from ..launcher.argv import default_of, flag
from ..settings_docs import field_docs

Command = Callable[..., None]


def with_settings(kind: type[Struct], without: str = "") -> Callable[[Command], Command]:
    """Give a command that takes `**given` an option for each setting of `kind`; those in sections inside lie flat.

    An option that is not given is None. Tables deeper down are given as JSON.
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


def _parameters(kind: type[Struct], *, flat: bool = True) -> list[inspect.Parameter]:
    docs = field_docs(kind)
    parameters: list[inspect.Parameter] = []
    for field in structs.fields(kind):
        described = types.type_info(field.type)
        if flat and isinstance(described, types.StructType):
            parameters += _parameters(described.cls, flat=False)
            continue
        text = docs.get(field.name, field.name.replace("_", " "))
        annotation = _option(flag(field.name), f"{text}{_default_of(field)}", described)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, keyword, default=None, annotation=annotation))
    return parameters


def _option(name: str, text: str, described: types.Type) -> Any:
    if isinstance(described, types.DictType | types.StructType):
        option = typer.Option(name, help=text, show_default=False, parser=parse_table, metavar="JSON")
        return Annotated[dict[str, object] | None, option]
    return Annotated[_plain(described) | None, typer.Option(name, help=text, show_default=False)]


def _default_of(field: structs.FieldInfo) -> str:
    default = default_of(field)
    told = default is not NODEFAULT and default != "" and not isinstance(default, dict | Struct)
    return f" [dim]\\[default: {default}][/dim]" if told else ""


def parse_table(text: str) -> dict[str, object]:
    """Return a JSON object as it stands; what may be in it is checked with the rest of the settings."""
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise typer.BadParameter(f"{text!r} is no JSON object ({error})") from error


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
