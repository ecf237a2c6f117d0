"""Whether a request can still be done in time, as far as the stages were seen."""

from ...schemas.roles import Role
from .records import Request
from .stages import WAITING_FOR

#: a stage may be this much quicker than the average was: in doubt a request is computed
BENEFIT_OF_DOUBT = 0.7

_FROM: dict[Role, tuple[Role, ...]] = {role: tuple(Role)[place:] for place, role in enumerate(Role)}


def needed_s(request: Request) -> float:
    """Return what the stages that a waiting request has before it take at least, without any more waiting."""
    roles = _FROM[WAITING_FOR.get(request.state, Role.ENCODER)]
    return BENEFIT_OF_DOUBT * request.model.estimates.at_least_s(request.params, roles)


def unreachable(request: Request, now: float) -> float | None:
    """Return what the rest of a waiting request takes, where that is more than the time it has left."""
    needed = needed_s(request)
    return needed if now + needed > request.deadline else None


def latest_start(request: Request) -> float:
    """Return when a waiting request must be served at the latest."""
    return request.deadline - needed_s(request)
