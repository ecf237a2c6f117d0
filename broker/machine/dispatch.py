"""Bring waiting requests and free instances together."""

from ...schemas.errors import DeadlineUnreachable
from ...schemas.roles import Role
from ...schemas.states import RequestState
from ...schemas.transfer import TransferWorkMsg
from .context import context_of
from .costs import cost_of
from .deadlines import Alarm
from .endings import end_early, end_in_failure
from .feasibility import unreachable
from .fitting import pick_fitting, unfit_reason, wish_of
from .hops import begin_hop
from .leases import begin_running, grant_lease
from .models import Pool
from .records import Instance, Phase, Request
from .stages import STAGES
from .tables import Tables
from .tenants import admit
from .transitions import move

#: the last first: a request that leaves a queue makes room in it
_LAST_FIRST = {role: -place for place, role in enumerate(Role)}


def dispatch(t: Tables) -> None:
    """Place requests until each pool has no request left that waits, or no instance that is free.

    Only pools are looked at in which that may have changed.
    """
    while t.awake:
        pool = min(t.awake, key=lambda pool: _LAST_FIRST[pool.role]) if len(t.awake) > 1 else next(iter(t.awake))
        del t.awake[pool]
        while len(pool.free) and not _congested(t, pool) and (request := pool.waiting.first()) is not None:
            _place(t, pool, request)


def _congested(t: Tables, pool: Pool) -> bool:
    """Say whether so much output of the pool waits for the next role that no more is wanted."""
    follower = STAGES[pool.role].follower
    return follower is not None and len(pool.model.pools[follower].waiting) >= t.settings.max_staged


def _place(t: Tables, pool: Pool, request: Request) -> None:
    """Take `request` from the head of the queue: to an instance, aside, or to its end."""
    needed_s = unreachable(request, t.now)
    if needed_s is not None:
        give_up_early(t, request, needed_s)
        return
    work_s = request.model.estimates.stage_s(request.params, pool.role)
    instance = pick_fitting(pool, request, wish_of(request, work_s, t.settings.model_load_s))
    if instance is None:
        _set_aside(t, pool, request)
        return
    pool.waiting.take(request, cost_of(request.params, pool.role))
    t.wake_sender(pool)
    request.queue_s += t.now - request.queued_at
    if request.staged is None:
        _start_work(t, request, instance)
    else:
        begin_hop(t, request, request.staged, instance)


def give_up_early(t: Tables, request: Request, needed_s: float) -> None:
    """End a request that cannot be done in time any more, before anything is computed for nothing."""
    left_s = max(0.0, request.deadline - t.now)
    error = DeadlineUnreachable(request.timeout_s, needed_s, left_s)
    end_early(t, request, RequestState.TIMED_OUT, error, str(error))


def _start_work(t: Tables, request: Request, instance: Instance) -> None:
    admit(t, request)
    lease = grant_lease(t, request, instance, Phase.RUNNING)
    begin_running(t, lease)
    move(t, request, STAGES[instance.role].running, "work sent", instance.instance_id)
    t.tell_service(instance.peer, TransferWorkMsg(*lease.key, context_of(request, t.now)))


def _set_aside(t: Tables, pool: Pool, request: Request) -> None:
    """Park a request for which no free instance is fit, or fail it where none will ever be."""
    reason = unfit_reason(pool, request)
    if reason is not None:
        end_in_failure(t, request, reason)
        return
    pool.waiting.park(request)
    t.deadlines.arm(Alarm.PARKED, request.request_id, t.now + t.settings.alloc_backoff_s)
