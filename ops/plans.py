"""Plans of simulations, from TOML files: each section by itself, so that a mistake is told by its key."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from ..broker.machine.settings import DispatchSettings
from ..schemas.errors import ConfigError
from ..schemas.roles import Role
from ..sim.distributions import Constant, Distribution, Empirical, Exponential, Lognormal
from ..sim.plan import (
    Arrivals,
    Burst,
    Closed,
    Diurnal,
    Failures,
    MixEntry,
    Network,
    Others,
    Plan,
    Poisson,
    PoolPlan,
    Run,
    Shape,
    Traffic,
)
from .decoding import Values, as_section, decode_settings, dotted, refuse_unknown

_SECTIONS = ("run", "traffic", *Role, "network", "broker")
_DISTRIBUTIONS: Mapping[str, type[Constant | Exponential | Lognormal | Empirical]] = {
    "constant": Constant,
    "exponential": Exponential,
    "lognormal": Lognormal,
    "empirical": Empirical,
}
_ARRIVALS: Mapping[str, type[Poisson | Diurnal | Closed | Burst]] = {
    "poisson": Poisson,
    "diurnal": Diurnal,
    "closed": Closed,
    "burst": Burst,
}
#: the largest file of measured values that is read, in bytes
MOST_MEASURED = 64 * 2**20


def load_plan(path: Path, overrides: Mapping[str, object] | None = None) -> Plan:
    """Return the plan in a TOML file, with `overrides`, values by dotted key, over those of the file.

    Raises `ConfigError`.
    """
    document = _document(path)
    for key, value in (overrides or {}).items():
        _override(document, key, value)
    for key, value in document.items():
        refuse_unknown(key, value, _SECTIONS, "")
    folder = path.parent
    return Plan(
        *(_pool(_required(document, role), role, folder) for role in Role),
        traffic=_streams(_required(document, "traffic"), folder),
        run=decode_settings(as_section(_required(document, "run"), "run"), Run, "run"),
        broker=decode_settings(as_section(document.get("broker", {}), "broker"), DispatchSettings, "broker"),
        network=decode_settings(as_section(document.get("network", {}), "network"), Network, "network"),
    )


def parse_override(text: str, flag: str = "--set") -> tuple[str, object]:
    """Return the key and the value of KEY=VALUE; the value is TOML, or a word. Raises `ConfigError`."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(flag, text, "KEY=VALUE, as in denoiser.instances=20 or traffic.0.arrivals.rate_per_s=3")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def parse_instances(text: str) -> tuple[str, object]:
    """Return the override that ROLE=NUMBER stands for. Raises `ConfigError`."""
    role, _, number = text.partition("=")
    if role.strip() not in tuple(Role) or not number.strip().isdecimal():
        raise ConfigError("--instances", text, f"ROLE=NUMBER, as in denoiser=20; the roles are {', '.join(Role)}")
    return f"{role.strip()}.instances", int(number)


def _document(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("PLAN", str(path), f"a file that can be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError("PLAN", str(path), f"a TOML file ({error})") from error


def _override(document: dict[str, object], key: str, value: object) -> None:
    *path, last = key.split(".")
    place: object = document
    for word in path:
        place = _inside(place, word, key)
    if isinstance(place, dict):
        cast("dict[str, object]", place)[last] = value
    else:
        raise ConfigError(key, value, "a key inside a section of the plan")


def _inside(place: object, word: str, key: str) -> object:
    if isinstance(place, list):
        items = cast("list[object]", place)
        if not word.isdecimal() or int(word) >= len(items):
            raise ConfigError(key, word, f"a number from 0 to {len(items) - 1}: the list has {len(items)} items")
        return items[int(word)]
    if isinstance(place, dict):
        return cast("dict[str, object]", place).setdefault(word, {})
    raise ConfigError(key, word, "a key inside a section of the plan")


def _required(document: Values, section: str) -> object:
    if section not in document:
        raise ConfigError(section, None, f"a section [{section}]; every plan has one")
    return document[section]


def _pool(given: object, role: Role, folder: Path) -> PoolPlan:
    values = as_section(given, role)
    _require_keys(values, role, "time")
    values["time"] = _distribution(values["time"], dotted(role, "time"), folder)
    if "others" in values:
        others = _items(values["others"], dotted(role, "others"))
        values["others"] = [decode_settings(as_section(item, name), Others, name) for name, item in others]
    for key, kind in (("time_of", Shape), ("failures", Failures)):
        if key in values:
            name = dotted(role, key)
            values[key] = decode_settings(as_section(values[key], name), kind, name)
    return decode_settings(values, PoolPlan, role)


def _traffic(given: object, name: str, folder: Path) -> Traffic:
    values = as_section(given, name)
    _require_keys(values, name, "arrivals")
    values["arrivals"] = _arrivals(values["arrivals"], dotted(name, "arrivals"), folder)
    if "patience" in values:
        values["patience"] = _distribution(values["patience"], dotted(name, "patience"), folder)
    if "mix" in values:
        kinds = _items(values["mix"], dotted(name, "mix"))
        values["mix"] = [decode_settings(as_section(item, inner), MixEntry, inner) for inner, item in kinds]
    return decode_settings(values, Traffic, name)


def _arrivals(given: object, name: str, folder: Path) -> Arrivals:
    values = as_section(given, name)
    kind = _ARRIVALS[_kind(values, name, tuple(_ARRIVALS))]
    if "think" in values and kind is Closed:
        values["think"] = _distribution(values["think"], dotted(name, "think"), folder)
    return decode_settings(values, kind, name)


def _distribution(given: object, name: str, folder: Path) -> Distribution:
    values = as_section(given, name)
    kind = _DISTRIBUTIONS[_kind(values, name, tuple(_DISTRIBUTIONS))]
    if kind is Empirical and "file" in values:
        file = values.pop("file")
        values["values_s"] = _measured(folder / str(file), dotted(name, "file"))
    return decode_settings(values, kind, name)


def _kind(values: dict[str, object], name: str, known: tuple[str, ...]) -> str:
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in known:
        raise ConfigError(dotted(name, "kind"), kind, f"one of {', '.join(known)}")
    return kind


def _measured(path: Path, name: str) -> list[float]:
    """Return the numbers in a file, one a line or with commas and blanks between them."""
    try:
        if path.stat().st_size > MOST_MEASURED:
            raise ConfigError(name, str(path), f"a file of at most {MOST_MEASURED} bytes")
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
    except OSError as error:
        raise ConfigError(name, str(path), f"a file that can be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(name, str(path), f"a text file ({error})") from error
    values: list[float] = []
    for number, word in enumerate(words, start=1):
        try:
            values.append(float(word))
        except ValueError as error:
            raise ConfigError(name, word, f"seconds; this is value {number} of {path}") from error
    return values


def _items(given: object, name: str) -> list[tuple[str, object]]:
    """Return the tables of a list with the name of each."""
    if not isinstance(given, list):
        raise ConfigError(name, given, f"a list of tables: [[{name}]]")
    return [(f"{name}.{number}", item) for number, item in enumerate(cast("list[object]", given))]


def _streams(given: object, folder: Path) -> tuple[Traffic, ...]:
    streams = tuple(_traffic(item, name, folder) for name, item in _items(given, "traffic"))
    if not streams:
        raise ConfigError("traffic", given, "one [[traffic]] at least")
    return streams


def _require_keys(values: Values, section: str, key: str) -> None:
    if key not in values:
        raise ConfigError(dotted(section, key), None, f"a value; [{section}] has no default for it")
