"""A hop: a staged payload is read where it lies, or goes to a receive slot of the instance that takes it up."""

from ...schemas.errors import ManifestMismatch, PayloadTooLarge, TransferError, WriteOverdue
from ...schemas.memory import EngineName, Slot
from ...schemas.timing import TransferTiming
from ...schemas.transfer import (
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferAllocRefusedMsg,
    TransferExpectMsg,
    TransferLoadedMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferPushMsg,
    TransferReadyMsg,
)
from .acquaintances import introduce
from .context import context_of
from .costs import cost_of
from .deadlines import Alarm
from .endings import end_in_failure, fail_attempt, said
from .fitting import unfit_reason
from .health import note_failure, note_success, rest
from .leases import (
    begin_reading,
    begin_running,
    close_push,
    end_lease,
    end_reading,
    grant_lease,
    open_push,
    release_staged,
    return_slot,
    send_abort,
)
from .pairing import no_way, way_between
from .questions import note_answer
from .records import Instance, Lease, Phase, Push, Question, Request, Staged
from .stages import STAGES
from .story import tell
from .tables import Tables
from .transitions import move

#: the part of `push_timeout_s` that the engine has: it gives up before the broker does, so that its reason is heard
ENGINE_SHARE = 0.9


def begin_hop(t: Tables, request: Request, staged: Staged, instance: Instance) -> None:
    """Bring the request's staged input to `instance`, or let it read it in place."""
    match way_between(staged.instance.pool, instance.pool):
        case EngineName.SHM:
            _read_in_place(t, request, staged, instance)
        case EngineName.NIXL:
            _bring(t, request, staged, instance)
        case None:
            fail_attempt(t, request, no_way(staged.instance, instance), instance)


def _read_in_place(t: Tables, request: Request, staged: Staged, instance: Instance) -> None:
    """Let `instance` compute from the sender's slot, which stays as it is until it has ended."""
    sender = staged.instance
    lease = grant_lease(t, request, instance, Phase.RUNNING)
    begin_running(t, lease)
    begin_reading(lease, staged)
    introduce(sender, instance)
    request.transfers.append(TransferTiming(sender.instance_id, instance.instance_id, 0, 0.0, in_place=True))
    move(t, request, STAGES[instance.role].running, f"input read in place from {sender}", instance.instance_id)
    _tell_ready(t, lease, staged, staged.slot, sender)


def _bring(t: Tables, request: Request, staged: Staged, instance: Instance) -> None:
    """Have the input written straight into a free slot, or into one that `instance` allocates."""
    size = staged.manifest.data_size
    slot = instance.slots.take(size)
    lease = grant_lease(t, request, instance, Phase.ALLOCATING)
    if slot is not None:
        lease.slot = slot
        _start_push(t, lease, staged, slot)
        return
    tell(t, request, f"{size} bytes asked for", instance.instance_id)
    t.deadlines.arm(Alarm.ALLOC, request.request_id, t.now + t.settings.alloc_timeout_s)
    t.tell_service(instance.peer, TransferAllocMsg(*lease.key, size))


def allocated(t: Tables, lease: Lease, msg: TransferAllocatedMsg) -> None:
    """Write into the slot that the receiver has set aside, if it is one."""
    request, instance = lease.request, lease.instance
    staged = request.source
    problem = instance.slots.adoption_problem(msg.slot, staged.manifest.data_size, instance.pool.size)
    if problem is not None:
        fail_attempt(t, request, f"{instance}: {ManifestMismatch(problem)}", instance)
        return
    instance.slots.adopt(msg.slot)
    lease.slot = msg.slot
    _start_push(t, lease, staged, msg.slot)


def alloc_refused(t: Tables, lease: Lease, msg: TransferAllocRefusedMsg) -> None:
    """Take the lease back, and let the request wait at its old place for another instance, or for this one later."""
    request, instance = lease.request, lease.instance
    pool = request.model.pools[instance.role]
    t.deadlines.disarm(Alarm.ALLOC, request.request_id)
    end_lease(t, lease)
    tell(t, request, f"no room: {said(msg.error)}", instance.instance_id)
    if msg.error.code != PayloadTooLarge.code:
        rest(t, instance, t.settings.alloc_backoff_s)
    else:
        request.too_small.add(instance.peer)
        if unfit_reason(pool, request) is not None:
            end_in_failure(t, request, f"{instance}: {said(msg.error)}", instance)
            return
    request.queued_at = t.now
    pool.waiting.put_back(request, cost_of(request.params, pool.role))
    t.awake[pool] = None


def pushed(t: Tables, push: Push, msg: TransferPushedMsg) -> None:
    """Let the receiver load what was written."""
    lease, sender = push.lease, push.sender
    if not _answered(t, push):
        return
    request, receiver = lease.request, lease.instance
    staged, slot = push.staged, lease.slot
    size = staged.manifest.data_size
    if msg.nbytes != size or slot is None:
        error = TransferError(f"{msg.nbytes} bytes were written, not {size}")
        fail_attempt(t, request, f"{sender}: {error}", sender)
        return
    begin_running(t, lease)
    note_success(t, sender)
    request.transfers.append(TransferTiming(sender.instance_id, receiver.instance_id, msg.nbytes, msg.duration_s))
    move(t, request, STAGES[receiver.role].running, "input arrived", receiver.instance_id)
    _tell_ready(t, lease, staged, slot)


def push_failed(t: Tables, push: Push, msg: TransferPushFailedMsg) -> None:
    """End the attempt whose payload could not be written. A write that is overdue goes on: its slot is quarantined."""
    lease, sender = push.lease, push.sender
    overdue = msg.error.code == WriteOverdue.code
    note_answer(sender, Question.PUSH, lease.key)
    if lease.phase is Phase.PUSHING if overdue else _answered(t, push):
        reason = f"{sender} could not write to {lease.instance}: {said(msg.error)}"
        note_failure(t, sender)
        fail_attempt(t, lease.request, reason, lease.instance)


def writer_lost(t: Tables, push: Push, reason: str) -> None:
    """End the attempt whose payload its sender was writing when it was lost."""
    lease = push.lease
    lease.writer_lost = True
    if _answered(t, push):
        release_staged(t, lease.request)
        fail_attempt(t, lease.request, reason, None)


def loaded(t: Tables, lease: Lease, _msg: TransferLoadedMsg) -> None:
    """Take the receive slot back, and read no more in place: the instance has a copy."""
    return_slot(t, lease)
    end_reading(t, lease)


def alloc_late(t: Tables, request: Request) -> None:
    """End an attempt for which ALLOC was not answered in time."""
    lease = request.lease
    if lease is not None:
        reason = f"{lease.instance}: no answer to ALLOC for {t.settings.alloc_timeout_s:g} s"
        fail_attempt(t, request, reason, lease.instance)


def _start_push(t: Tables, lease: Lease, staged: Staged, slot: Slot) -> None:
    sender, receiver = staged.instance, lease.instance
    lease.phase = Phase.PUSHING
    open_push(t, staged, lease)
    tell(t, lease.request, f"push from {sender.instance_id} to slot {slot.slot_id}", receiver.instance_id)
    t.deadlines.disarm(Alarm.ALLOC, lease.request.request_id)
    introduce(sender, receiver)
    introduce(receiver, sender)
    t.tell_service(receiver.peer, TransferExpectMsg(*lease.key, sender.pool, slot))
    size, timeout_s = staged.manifest.data_size, ENGINE_SHARE * t.settings.push_timeout_s
    _, staged_attempt = staged.key
    push = TransferPushMsg(*lease.key, receiver.instance_id, receiver.pool, slot, size, staged_attempt, timeout_s)
    t.tell_service(sender.peer, push)


def _tell_ready(t: Tables, lease: Lease, staged: Staged, slot: Slot, owner: Instance | None = None) -> None:
    """Let the lease's instance go ahead; `owner` is whose slot it reads, if not its own."""
    pool = None if owner is None else owner.pool
    context = context_of(lease.request, t.now)
    ready = TransferReadyMsg(*lease.key, slot, staged.manifest, context, staged.scalar_fields, pool)
    t.tell_service(lease.instance.peer, ready)


def _answered(t: Tables, push: Push) -> bool:
    """Close the push, go on with an abort that waited for it, and say whether the attempt still runs."""
    lease = push.lease
    close_push(t, push)
    if lease.phase is Phase.QUARANTINED:
        send_abort(t, lease)
    return lease.phase is Phase.PUSHING
