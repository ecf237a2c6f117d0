"""How an attempt fails, and how a request ends early."""

from ...schemas.client import ErrorMsg
from ...schemas.errors import ErrorInfo, RequestFailed, TriptychError
from ...schemas.states import RequestState
from .deadlines import Alarm
from .leases import abort_lease, forget_if_quiet, release_staged
from .records import Request
from .stages import WAITING_FOR
from .tables import Tables
from .transitions import move

#: characters of what a service says that are passed on to people
LONGEST_REASON = 1000


def fail_attempt(t: Tables, request: Request, reason: str, instance_id: str = "") -> None:
    """End the attempt that runs. There is only one per request so far, so the request fails."""
    request.reasons.append(reason)
    end_early(t, request, RequestState.FAILED, RequestFailed(list(request.reasons)), reason, instance_id)


def end_early(
    t: Tables, request: Request, state: RequestState, error: TriptychError, cause: str, instance_id: str = ""
) -> None:
    """End `request` in `state`, stop what runs of it, and tell its client."""
    disarm(t, request)
    if request.state in WAITING_FOR:
        t.pools[WAITING_FOR[request.state]].waiting.discard(request)
    if request.lease is not None:
        abort_lease(t, request.lease)
    release_staged(t, request)
    move(t, request, state, cause, instance_id)
    t.tell_client(request.client, ErrorMsg(error.info(), request.request_id, state))
    close(t, request)


def close(t: Tables, request: Request) -> None:
    """Do what every end has in common; the request is in a terminal state and its client told."""
    t.pace.ended(t.now, others_wait=any(len(pool.waiting) for pool in t.pools.values()))
    forget_if_quiet(t, request)


def disarm(t: Tables, request: Request) -> None:
    """Drop the request's deadlines."""
    for alarm in (Alarm.REQUEST, Alarm.ALLOC, Alarm.PARKED):
        t.deadlines.disarm(alarm, request.request_id)


def said(error: ErrorInfo) -> str:
    """Return what a service says went wrong, for a reason; it may have said too much."""
    return error.message if len(error.message) <= LONGEST_REASON else f"{error.message[:LONGEST_REASON]}…"
