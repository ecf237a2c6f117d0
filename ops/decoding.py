"""Plain values, from a file or from flags, into settings; what does not fit is a `ConfigError` that names the key."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from ..schemas.errors import ConfigError

S = TypeVar("S", bound=Struct)
Values = Mapping[str, object]

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")


def decode_settings(values: Values, kind: type[S], section: str) -> S:
    """Return `values`, the contents of `section`, as a `kind`. Raises `ConfigError`."""
    check_keys(values, kind, section)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _readable(str(error), values, section) from error


def check_keys(values: Values, kind: type[Struct], section: str) -> None:
    """Raise `ConfigError` for the first key that `kind` does not have, here or in a section inside."""
    known = {field.name: field.type for field in fields(kind)}
    for key, value in values.items():
        refuse_unknown(key, value, tuple(known), section)
        if isinstance(value, Mapping):
            name = dotted(section, key)
            _check_table(as_section(cast("object", value), name), known[key], name)


def _check_table(table: dict[str, object], kind: object, name: str) -> None:
    """Raise `ConfigError` for the first entry that does not fit: of a section, or of a table whose keys are names."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        check_keys(table, kind, name)
    elif get_origin(kind) is dict:
        for key, item in table.items():
            place = dotted(name, key)
            if isinstance(item, dict):
                _check_table(as_section(cast("object", item), place), get_args(kind)[1], place)
            try:
                msgspec.convert({key: item}, kind)
            except msgspec.ValidationError as error:
                raise _readable(str(error).replace("[...]", ""), cast("object", item), place) from error


def refuse_unknown(key: str, value: object, known: tuple[str, ...], section: str) -> None:
    """Raise `ConfigError` where `key` is not among the `known`, naming the nearest."""
    if key in known:
        return
    near = get_close_matches(key, known, n=1)
    where = f"of [{section}]" if section else "at the top level"
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(dotted(section, key), value, f"the settings {where}: {', '.join(known)}{hint}")


def as_section(value: object, name: str) -> dict[str, object]:
    """Return `value` where it is a table with string keys. Raises `ConfigError`."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in cast("Mapping[object, object]", value).items()}
    raise ConfigError(name, value, f"a section: [{name}]")


def dotted(section: str, key: str) -> str:
    """Return the full name of `key`."""
    return f"{section}.{key}" if section else key


def _readable(message: str, values: object, section: str) -> ConfigError:
    """Return msgspec's complaint, such as "Expected `int`, got `str` - at `$.pool_bytes`", as one about a setting."""
    place = _PLACE.search(message)
    path = place["path"] if place else ""
    allowed = message[: place.start()] if place else message
    value = _value_at(values, path.split(".")) if path else values
    return ConfigError(
        dotted(section, path) if path else section, value, allowed[:1].lower() + allowed[1:].replace("`", "")
    )


def _value_at(value: object, keys: list[str]) -> object:
    if not keys or not isinstance(value, Mapping):
        return value
    return _value_at(cast("Values", value).get(keys[0]), keys[1:])
