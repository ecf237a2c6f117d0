"""Bring waiting requests and free instances together."""

from ...schemas.roles import Role
from ...schemas.transfer import TransferWorkMsg
from .deadlines import Alarm
from .endings import fail_attempt
from .fitting import all_too_small, pick_fitting, too_large
from .hops import begin_hop
from .leases import grant_lease
from .records import Instance, Phase, Request
from .stages import STAGES
from .tables import Pool, Tables
from .transitions import move

#: the last first: a request that leaves a queue makes room in it
DISPATCH_ORDER = tuple(reversed(Role))


def dispatch(t: Tables) -> None:
    """Place requests until each role has no request left that waits, or no instance that is free."""
    for role in DISPATCH_ORDER:
        pool = t.pools[role]
        while (request := pool.waiting.first()) is not None and len(pool.free) and not _congested(t, role):
            _place(t, pool, role, request)


def _congested(t: Tables, role: Role) -> bool:
    """Say whether so much output of `role` waits for the next role that no more is wanted."""
    follower = STAGES[role].follower
    return follower is not None and len(t.pools[follower].waiting) >= t.settings.max_staged


def _place(t: Tables, pool: Pool, role: Role, request: Request) -> None:
    """Take `request` from the head of the queue: to an instance, aside, or to its end."""
    instance = pick_fitting(pool, request)
    if instance is None:
        _set_aside(t, pool, role, request)
        return
    pool.waiting.discard(request)
    request.queue_s += t.now - request.queued_at
    if request.staged is None:
        _start_work(t, request, instance)
    else:
        begin_hop(t, request, request.staged, instance)


def _start_work(t: Tables, request: Request, instance: Instance) -> None:
    grant_lease(t, request, instance, Phase.RUNNING)
    move(t, request, STAGES[instance.role].running, "work sent", instance.instance_id)
    t.tell_service(instance.peer, TransferWorkMsg(request.request_id, request.attempt, request.params))


def _set_aside(t: Tables, pool: Pool, role: Role, request: Request) -> None:
    """Park a request for which no free instance is large enough, or fail it where none will ever be."""
    if all_too_small(pool, request):
        fail_attempt(t, request, f"no {role} can hold its input: {too_large(pool, role, request)}")
        return
    pool.waiting.park(request)
    t.deadlines.arm(Alarm.PARKED, request.request_id, t.now + t.settings.alloc_backoff_s)
