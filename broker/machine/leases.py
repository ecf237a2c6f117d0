"""Leases, receive slots and staged outputs: taken here, and given back here, exactly once each."""

from ...schemas.states import TERMINAL_STATES
from ...schemas.transfer import TransferAbortMsg, TransferReleaseMsg
from .deadlines import Alarm
from .models import Pool
from .questions import ask, note_answer
from .records import Instance, Lease, Phase, Push, Question, Request, Staged
from .tables import Tables


def grant_lease(t: Tables, request: Request, instance: Instance, phase: Phase) -> Lease:
    """Give `request` one place of the instance's capacity."""
    key = (request.request_id, request.attempt)
    lease = Lease(key, request, instance, phase, since=t.now)
    instance.leases[key] = request.lease = lease
    request.loose_ends += 1
    t.grants += 1
    instance.last_granted = t.grants
    note_work(lease, instance.slowness * request.model.estimates.stage_s(request.params, instance.role))
    t.refresh(instance)
    return lease


def begin_running(t: Tables, lease: Lease) -> None:
    """Note that the lease's instance has its input; what it takes of the time of its stage counts from now on."""
    request, role = lease.request, lease.instance.role
    lease.phase = Phase.RUNNING
    lease.since = t.now
    limits = (t.settings.stage_timeout_s.get(role), request.stage_timeout_s.get(role))
    limit_s = min((limit for limit in limits if limit is not None), default=None)
    if limit_s is not None:
        t.deadlines.arm(Alarm.STAGE, request.request_id, t.now + limit_s)


def note_work(lease: Lease, work_s: float) -> None:
    """Note what the lease still takes of its instance's time."""
    instance = lease.instance
    instance.outstanding_s += work_s - lease.work_s
    lease.work_s = work_s


def end_lease(t: Tables, lease: Lease, *, retire_slot: bool = False) -> None:
    """Give the lease back, with its slot if it still has one, and what it reads in place."""
    instance, request = lease.instance, lease.request
    del instance.leases[lease.key]
    note_answer(instance, Question.ABORT, lease.key)
    note_work(lease, 0.0)
    if not instance.leases:
        instance.outstanding_s = 0.0  # whatever rounding has left
    lease.phase = Phase.ENDED
    if request.lease is lease:
        request.lease = None
    return_slot(t, lease, retire=retire_slot)
    end_reading(t, lease)
    if instance.alive:
        t.refresh(instance)
        for pool in instance.pools:
            parked = pool.waiting.first_parked()
            if parked is not None:
                unpark(t, parked, pool)
    t.eased.append(instance)
    tie_up(t, request)


def return_slot(t: Tables, lease: Lease, *, retire: bool = False) -> None:
    """Give the lease's receive slot back, if it still has one: nobody reads or writes it any more."""
    if lease.slot is None:
        return
    lease.instance.slots.give_back(lease.slot, retire=retire)
    lease.slot = None
    if lease.instance.alive:
        t.refresh(lease.instance)


def begin_reading(lease: Lease, staged: Staged) -> None:
    """Note that the lease's instance reads `staged` where it lies from now on."""
    lease.reads = staged
    staged.readers[lease] = None


def end_reading(t: Tables, lease: Lease) -> None:
    """Note that the lease's instance reads nothing in place any more; what was kept for it alone is released."""
    staged = lease.reads
    if staged is None:
        return
    lease.reads = None
    del staged.readers[lease]
    if staged.request.staged is not staged and not staged.readers:
        _drop_staged(t, staged)


def unpark(t: Tables, request: Request, pool: Pool) -> None:
    """Let a parked request be tried again, since an instance has a place free."""
    t.deadlines.disarm(Alarm.PARKED, request.request_id)
    t.put(pool, request)


def open_push(t: Tables, staged: Staged, lease: Lease) -> None:
    """Note that the sender writes what it staged into the lease's slot from now on."""
    lease.push = staged.instance.pushes[lease.key] = Push(staged.instance, lease, staged)
    lease.request.loose_ends += 1
    ask(t, staged.instance, Question.PUSH, lease.key, t.settings.push_timeout_s)


def close_push(t: Tables, push: Push) -> None:
    """Note that the sender does not write any more, or is lost."""
    del push.sender.pushes[push.lease.key]
    note_answer(push.sender, Question.PUSH, push.lease.key)
    push.lease.push = None
    t.eased.append(push.sender)
    tie_up(t, push.lease.request)


def tie_up(t: Tables, request: Request) -> None:
    """Note that a loose end of `request` is over; the last one of an ended request ends its record."""
    request.loose_ends -= 1
    forget_if_quiet(t, request)


def forget_if_quiet(t: Tables, request: Request) -> None:
    """Drop all but the story of a request that has ended and of which nothing is in use."""
    if request.loose_ends == 0 and request.state in TERMINAL_STATES:
        del t.requests[request.request_id]
        t.ended.keep(request.request_id, request.story)


def abort_lease(t: Tables, lease: Lease) -> None:
    """End the attempt on this instance; the lease stays until the instance says that it is quiet."""
    lease.request.lease = None
    if lease.push is not None:
        lease.phase = Phase.QUARANTINED
    else:
        send_abort(t, lease)


def send_abort(t: Tables, lease: Lease) -> None:
    """Tell the instance to stop; nobody but perhaps a lost writer writes its slot."""
    lease.phase = Phase.ABORTING
    ask(t, lease.instance, Question.ABORT, lease.key, t.settings.abort_timeout_s)
    t.tell_service(lease.instance.peer, TransferAbortMsg(*lease.key, writer_lost=lease.writer_lost))


def release_staged(t: Tables, request: Request) -> None:
    """Let the sender drop the request's staged bytes, if there are any, as soon as nobody reads them in place."""
    staged = request.staged
    if staged is None:
        return
    request.staged = None
    if not staged.readers:
        _drop_staged(t, staged)


def _drop_staged(t: Tables, staged: Staged) -> None:
    sender = staged.instance
    del sender.staged[staged.key]
    if sender.alive:
        t.tell_service(sender.peer, TransferReleaseMsg(*staged.key))
    t.eased.append(sender)
