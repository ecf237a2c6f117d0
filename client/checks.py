"""Whether what a caller gives can be what it is given for."""

import operator
from collections.abc import Mapping
from difflib import get_close_matches
from numbers import Real
from typing import cast

from msgspec import ValidationError, convert

from ..schemas.context import Priority
from ..schemas.errors import InvalidRequest
from ..schemas.identifiers import ModelName, TenantName
from ..schemas.roles import Role

#: in seconds; the protocol allows no more
MAX_TIMEOUT_S = 7 * 86_400
ALLOWED_SECONDS = f"a number of seconds above 0, at most {MAX_TIMEOUT_S}"
ALLOWED_TENANT = "at most 128 characters out of A-Z a-z 0-9 . _ : @ -"
ALLOWED_MODEL = "at most 128 characters out of A-Z a-z 0-9 . _ : / @ -; Client.models() says what is served"


def plain(value: object) -> object:
    """Return a number of another library, such as NumPy's, as Python's own, and everything else as it is."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]  (whatever has no index raises)
    except TypeError:
        pass
    try:
        return float(value) if isinstance(value, Real) else value
    except OverflowError:
        return value


def is_number(value: object, most: float) -> bool:
    """Say whether `value` is a number above 0 and at most `most`; NaN and truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def is_tenant(value: object) -> bool:
    """Say whether a tenant can be called that."""
    return _is_a(TenantName, value)


def checked_timeout(value: object) -> float | None:
    """Return what is given as `timeout_s`, or raise `InvalidRequest`."""
    return None if value is None else _checked_seconds("timeout_s", value)


def checked_request_id(value: object) -> str:
    """Return what is given as `request_id`, or raise `InvalidRequest`."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and 1 <= len(value) <= 64:
        return value
    raise InvalidRequest("request_id", value, "1 to 64 printable ASCII characters")


def checked_model(value: object) -> str:
    """Return what is given as `model`, or raise `InvalidRequest`."""
    if isinstance(value, str) and (not value or _is_a(ModelName, value)):
        return value
    raise InvalidRequest("model", value, ALLOWED_MODEL)


def checked_tenant(value: object) -> str:
    """Return what is given as `tenant`, or raise `InvalidRequest`."""
    if isinstance(value, str) and is_tenant(value):
        return value
    raise InvalidRequest("tenant", value, ALLOWED_TENANT)


def checked_priority(value: object) -> Priority:
    """Return the class that is given as `priority`, or raise `InvalidRequest`."""
    if isinstance(value, str) and value in set(Priority):
        return Priority(value)
    raise InvalidRequest("priority", value, ", ".join(Priority))


def checked_flag(field: str, value: object) -> bool:
    """Return a truth value, or raise `InvalidRequest`."""
    if isinstance(value, bool):
        return value
    raise InvalidRequest(field, value, "True or False")


def checked_stage_timeouts(value: object) -> dict[Role, float]:
    """Return what is given as `stage_timeout_s`, by role, or raise `InvalidRequest`."""
    roles = ", ".join(Role)
    if not isinstance(value, Mapping):
        raise InvalidRequest("stage_timeout_s", value, f"seconds by role ({roles}), such as {{'denoiser': 60}}")
    given, limits = cast("Mapping[object, object]", value), dict[Role, float]()
    for role, seconds in given.items():
        if not isinstance(role, str) or role not in set(Role):
            near = get_close_matches(role, list(Role), n=1) if isinstance(role, str) else []
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest("stage_timeout_s", given, f"the roles {roles}{hint}")
        limits[Role(role)] = _checked_seconds(f"stage_timeout_s[{role}]", seconds)
    return limits


def _checked_seconds(field: str, value: object) -> float:
    number = plain(value)
    if isinstance(number, int | float) and is_number(number, MAX_TIMEOUT_S):
        return number
    raise InvalidRequest(field, value, ALLOWED_SECONDS)


def _is_a(wire_type: object, value: object) -> bool:
    """Say whether the protocol takes `value` for a `wire_type`: one pattern, one place."""
    try:
        convert(value, wire_type)  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
    except ValidationError:
        return False
    return True
