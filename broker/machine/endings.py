"""How an attempt fails, how the next one begins, and how a request ends early."""

from ...schemas.client import ErrorMsg, RetryingMsg
from ...schemas.errors import ErrorInfo, PayloadTooLarge, RequestError, RequestFailed, TriptychError, type_of
from ...schemas.roles import Role
from ...schemas.states import RequestState
from .deadlines import Alarm
from .health import note_failure
from .leases import abort_lease, forget_if_quiet, release_staged
from .records import Instance, Request
from .stages import STAGES, WAITING_FOR
from .tables import Tables
from .tenants import leave_tenant, readmit
from .transitions import move

#: characters of what a service says that are passed on to people
LONGEST_REASON = 1000


def fail_attempt(t: Tables, request: Request, reason: str, culprit: Instance | None) -> None:
    """End the attempt that runs, and begin the next one from the last output that exists, if there may be one."""
    request.reasons.append(reason)
    if culprit is not None:
        note_failure(t, culprit)
        request.failed_on.add(culprit.peer)
    if len(request.reasons) >= t.settings.max_attempts:
        _give_up(t, request, reason, culprit)
    else:
        _try_again(t, request, reason)


def end_in_failure(t: Tables, request: Request, reason: str, culprit: Instance | None = None) -> None:
    """End the request: another attempt would fail as well."""
    request.reasons.append(reason)
    _give_up(t, request, reason, culprit)


def is_final(error: ErrorInfo) -> bool:
    """Say whether an error that a service met would come again on every other: the request is at fault, or its size."""
    kind = type_of.get(error.code)
    return kind is not None and issubclass(kind, RequestError | PayloadTooLarge)


def end_early(
    t: Tables, request: Request, state: RequestState, error: TriptychError, cause: str, instance_id: str = ""
) -> None:
    """End `request` in `state`, stop what runs of it, and tell its client."""
    _stop(t, request)
    t.deadlines.disarm(Alarm.REQUEST, request.request_id)
    release_staged(t, request)
    move(t, request, state, cause, instance_id)
    t.tell_client(request.client, ErrorMsg(error.info(), request.request_id, state))
    close(t, request)


def close(t: Tables, request: Request) -> None:
    """Do what every end has in common; the request is in a terminal state and its client told."""
    request.model.pace.ended(t.now, others_wait=request.model.waiting > 0)
    watched = t.watched.get(request.client)
    if watched is not None:
        watched.request_ids.discard(request.request_id)
        if not watched.request_ids:
            del t.watched[request.client]
            t.deadlines.disarm(Alarm.CLIENT, request.client)
    leave_tenant(t, request)
    forget_if_quiet(t, request)


def disarm(t: Tables, request: Request) -> None:
    """Drop the deadlines of the attempt, and wait for nobody who may hold more of the request."""
    request.unsettled = False
    for alarm in (Alarm.ALLOC, Alarm.PARKED, Alarm.STAGE, Alarm.SETTLE):
        t.deadlines.disarm(alarm, request.request_id)


def said(error: ErrorInfo) -> str:
    """Return what a service says went wrong, for a reason; it may have said too much."""
    return error.message if len(error.message) <= LONGEST_REASON else f"{error.message[:LONGEST_REASON]}…"


def _give_up(t: Tables, request: Request, reason: str, culprit: Instance | None) -> None:
    error = RequestFailed(list(request.reasons))
    end_early(t, request, RequestState.FAILED, error, reason, culprit.instance_id if culprit else "")


def _try_again(t: Tables, request: Request, reason: str) -> None:
    """Let `request` wait again, at its old place, for the stage that its input is for, or for the first."""
    _stop(t, request)
    request.attempt += 1
    request.too_small.clear()
    staged = request.staged
    role = Role.ENCODER if staged is None else STAGES[staged.instance.role].follower
    if role is None:
        raise LookupError(f"request {request.request_id} has an output of the last role for its input")
    done = list(Role)[: list(Role).index(role)]
    request.stages = [timing for timing in request.stages if timing.role in done]
    del request.transfers[max(0, len(done) - 1) :]
    t.tell_client(request.client, RetryingMsg(request.request_id, request.attempt, role, reason))
    waiting = STAGES[role].waiting
    if request.state is not waiting:
        move(t, request, waiting, f"attempt {request.attempt}: {reason}")
    request.queued_at = t.now
    if role is Role.ENCODER:
        readmit(t, request)
    t.put(request.model.pools[role], request)


def _stop(t: Tables, request: Request) -> None:
    """Stop what runs of the attempt, wherever it is."""
    disarm(t, request)
    if request.state in WAITING_FOR:
        pool = request.model.pools[WAITING_FOR[request.state]]
        pool.waiting.discard(request)
        t.wake_sender(pool)
    if request.lease is not None:
        abort_lease(t, request.lease)
