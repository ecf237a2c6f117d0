"""A hop: a staged payload goes from its sender's pool to a receive slot of the instance that takes it up."""

from ...schemas.errors import ManifestMismatch, PayloadTooLarge, TransferError
from ...schemas.timing import TransferTiming
from ...schemas.transfer import (
    Slot,
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferAllocRefusedMsg,
    TransferLoadedMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferPushMsg,
    TransferReadyMsg,
)
from .deadlines import Alarm
from .endings import fail_attempt, said
from .fitting import all_too_small
from .leases import close_push, end_lease, grant_lease, open_push, return_slot, send_abort
from .records import Instance, Lease, Phase, Push, Request, Staged
from .stages import STAGES
from .story import tell
from .tables import Tables
from .transitions import move


def begin_hop(t: Tables, request: Request, staged: Staged, instance: Instance) -> None:
    """Bring the request's staged input to `instance`: straight into a free slot, or into one it allocates."""
    size = staged.manifest.data_size
    slot = instance.slots.take(size)
    lease = grant_lease(t, request, instance, Phase.ALLOCATING)
    if slot is not None:
        lease.slot = slot
        _start_push(t, lease, staged, slot)
        return
    tell(t, request, f"{size} bytes asked for", instance.instance_id)
    t.deadlines.arm(Alarm.HOP, request.request_id, t.now + t.settings.alloc_timeout_s)
    t.tell_service(instance.peer, TransferAllocMsg(*lease.key, size))


def allocated(t: Tables, lease: Lease, msg: TransferAllocatedMsg) -> None:
    """Write into the slot that the receiver has set aside, if it is one."""
    request, instance = lease.request, lease.instance
    staged = request.source
    problem = instance.slots.adoption_problem(msg.slot, staged.manifest.data_size, instance.pool_size)
    if problem is not None:
        fail_attempt(t, request, f"{instance}: {ManifestMismatch(problem)}", instance.instance_id)
        return
    instance.slots.adopt(msg.slot)
    lease.slot = msg.slot
    _start_push(t, lease, staged, msg.slot)


def alloc_refused(t: Tables, lease: Lease, msg: TransferAllocRefusedMsg) -> None:
    """Take the lease back, and let the request wait at its old place for another instance, or for this one later."""
    request, instance = lease.request, lease.instance
    pool = t.pools[instance.role]
    t.deadlines.disarm(Alarm.HOP, request.request_id)
    end_lease(t, lease)
    tell(t, request, f"no room: {said(msg.error)}", instance.instance_id)
    if msg.error.code != PayloadTooLarge.code:
        _rest(t, instance)
    else:
        request.too_small.add(instance.peer)
        if all_too_small(pool, request):
            fail_attempt(t, request, f"{instance}: {said(msg.error)}", instance.instance_id)
            return
    request.queued_at = t.now
    pool.waiting.put(request)


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
        fail_attempt(t, request, f"{sender}: {error}", sender.instance_id)
        return
    t.deadlines.disarm(Alarm.HOP, request.request_id)
    lease.phase = Phase.RUNNING
    request.transfers.append(TransferTiming(sender.instance_id, receiver.instance_id, msg.nbytes, msg.duration_s))
    move(t, request, STAGES[receiver.role].running, "input arrived", receiver.instance_id)
    ready = TransferReadyMsg(*lease.key, slot, staged.manifest, request.params, staged.scalar_fields)
    t.tell_service(receiver.peer, ready)


def push_failed(t: Tables, push: Push, msg: TransferPushFailedMsg) -> None:
    """End the attempt whose payload could not be written."""
    lease, sender = push.lease, push.sender
    if _answered(t, push):
        reason = f"{sender} could not write to {lease.instance}: {said(msg.error)}"
        fail_attempt(t, lease.request, reason, sender.instance_id)


def writer_lost(t: Tables, push: Push, reason: str) -> None:
    """End the attempt whose payload its sender was writing when it was lost."""
    lease, sender = push.lease, push.sender
    lease.writer_lost = True
    if _answered(t, push):
        fail_attempt(t, lease.request, reason, sender.instance_id)


def loaded(t: Tables, lease: Lease, _msg: TransferLoadedMsg) -> None:
    """Take the receive slot back: the input is on the device."""
    return_slot(t, lease)


def hop_late(t: Tables, request: Request) -> None:
    """End an attempt for which ALLOC or PUSH was not answered in time."""
    lease = request.lease
    if lease is None:
        return
    if lease.push is None:
        late, after = lease.instance, f"ALLOC for {t.settings.alloc_timeout_s:g} s"
    else:
        late, after = lease.push.sender, f"PUSH for {t.settings.push_timeout_s:g} s"
    fail_attempt(t, request, f"{late}: no answer to {after}", late.instance_id)


def _start_push(t: Tables, lease: Lease, staged: Staged, slot: Slot) -> None:
    sender, receiver = staged.instance, lease.instance
    lease.phase = Phase.PUSHING
    open_push(staged, lease)
    tell(t, lease.request, f"push from {sender.instance_id} to slot {slot.slot_id}", receiver.instance_id)
    t.deadlines.arm(Alarm.HOP, lease.request.request_id, t.now + t.settings.push_timeout_s)
    registration = receiver.registration
    size = staged.manifest.data_size
    t.tell_service(sender.peer, TransferPushMsg(*lease.key, registration.instance_id, registration.pool, slot, size))


def _answered(t: Tables, push: Push) -> bool:
    """Close the push, go on with an abort that waited for it, and say whether the attempt still runs."""
    lease = push.lease
    close_push(t, push)
    if lease.phase is Phase.QUARANTINED:
        send_abort(t, lease)
    return lease.phase is Phase.PUSHING


def _rest(t: Tables, instance: Instance) -> None:
    """Pass an instance without room over for a while."""
    instance.resting = True
    t.pools[instance.role].free.refresh(instance)
    t.deadlines.arm(Alarm.REST, instance.peer, t.now + t.settings.alloc_backoff_s)


def rested(t: Tables, instance: Instance) -> None:
    """Ask an instance again that had no room."""
    instance.resting = False
    t.pools[instance.role].free.refresh(instance)
