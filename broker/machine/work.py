"""What an instance says about a request that it computes."""

from msgspec.structs import replace

from ...schemas.client import ProgressMsg, ResultMsg, StageFinishedMsg, StageStartedMsg
from ...schemas.errors import MalformedMessage, ManifestMismatch, RequestTimedOut
from ...schemas.roles import Role
from ...schemas.states import RequestState
from ...schemas.timing import StageTiming
from ...schemas.transfer import (
    TransferDoneMsg,
    TransferFailedMsg,
    TransferProgressMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
)
from .deadlines import Alarm
from .endings import close, disarm, end_early, end_in_failure, fail_attempt, is_final, said
from .feasibility import latest_start
from .health import note_success
from .leases import end_lease, note_work, release_staged
from .manifests import manifest_problem
from .records import Instance, Lease, Phase, Request, Staged
from .stages import STAGES
from .tables import Tables
from .transitions import move

#: the weight of the newest observation, and the largest one that counts
SLOWNESS_WEIGHT = 0.2
MOST_SLOWNESS = 100.0


def enqueue(t: Tables, request: Request, role: Role, cause: str) -> None:
    """Let `request` wait for `role`."""
    request.queued_at = t.now
    request.queue_s = 0.0
    request.too_small.clear()
    request.failed_on.clear()
    move(t, request, STAGES[role].waiting, cause)
    t.put(request.model.pools[role], request)
    _wake_in_time(t, request)


def started(t: Tables, lease: Lease, _msg: TransferStartedMsg) -> None:
    """Tell the client that the stage is computed now."""
    if not lease.started:
        lease.started = True
        lease.since = t.now
        instance = lease.instance
        started_msg = StageStartedMsg(lease.request.request_id, instance.role, instance.instance_id)
        t.tell_client(lease.request.client, started_msg)


def progress(t: Tables, lease: Lease, msg: TransferProgressMsg) -> None:
    """Tell the client how far the stage is."""
    request, role = lease.request, lease.instance.role
    if 0 < msg.step <= msg.steps:
        left = (msg.steps - msg.step) / (msg.steps - msg.step + 1)
        note_work(lease, lease.work_s * left)
        t.refresh(lease.instance)
    t.tell_client(request.client, ProgressMsg(request.request_id, role, min(msg.step, msg.steps), msg.steps))


def staged(t: Tables, lease: Lease, msg: TransferStagedMsg) -> None:
    """Let the request wait for the next role; the sender of this stage's input may drop it."""
    request, instance = lease.request, lease.instance
    stage = STAGES[instance.role]
    if stage.follower is None:
        _violation(t, lease, f"{instance.role}s end with DONE, not with STAGED")
        return
    problem = manifest_problem(msg.manifest, msg.slot, instance.pool.size)
    if problem is not None:
        fail_attempt(t, request, f"{instance}: {ManifestMismatch(problem)}", instance)
        return
    disarm(t, request)
    _note_success(t, lease)
    end_lease(t, lease)
    release_staged(t, request)
    output = Staged(lease.key, request, instance, msg.slot, msg.manifest, msg.scalar_fields)
    request.staged = instance.staged[lease.key] = output
    move(t, request, stage.done, "output staged", instance.instance_id)
    _note_stage(t, request, instance, msg.timing)
    enqueue(t, request, stage.follower, "output staged")


def done(t: Tables, lease: Lease, msg: TransferDoneMsg) -> None:
    """Give the client its result."""
    request, instance = lease.request, lease.instance
    attachments = t.attachments
    if STAGES[instance.role].follower is not None:
        _violation(t, lease, f"{instance.role}s end with STAGED, not with DONE")
        return
    problem = _media_problem(msg, attachments)
    if problem is not None:
        _violation(t, lease, problem)
        return
    disarm(t, request)
    _note_success(t, lease)
    t.deadlines.disarm(Alarm.REQUEST, request.request_id)
    end_lease(t, lease)
    t.tell_service(instance.peer, TransferReleaseMsg(*lease.key))
    release_staged(t, request)
    move(t, request, RequestState.DONE, "result arrived", instance.instance_id)
    _note_stage(t, request, instance, msg.timing)
    result = ResultMsg(
        request.request_id,
        msg.media,
        tuple(request.stages),
        tuple(request.transfers),
        t.now - request.accepted_at,
        msg.ticket,
    )
    t.tell_client(request.client, result, attachments)
    close(t, request)


def failed(t: Tables, lease: Lease, msg: TransferFailedMsg) -> None:
    """End the attempt. The instance holds nothing of it; only a slot that is being written waits for its writer."""
    request, instance = lease.request, lease.instance
    if lease.phase is not Phase.PUSHING:
        end_lease(t, lease)
    reason = f"{instance}: {said(msg.error)}"
    if msg.error.code == RequestTimedOut.code:
        error = RequestTimedOut(request.timeout_s, request.state)
        end_early(t, request, RequestState.TIMED_OUT, error, reason, instance.instance_id)
    elif is_final(msg.error):
        end_in_failure(t, request, reason, instance)
    else:
        fail_attempt(t, request, reason, instance)


def released(t: Tables, lease: Lease, msg: TransferReleasedMsg) -> None:
    """Take back what an ended attempt held on this instance."""
    end_lease(t, lease, retire_slot=msg.slot_retired)


def _media_problem(msg: TransferDoneMsg, attachments: tuple[bytes, ...]) -> str | None:
    """Say what is wrong with the media of a DONE; they come with it, or wait where its ticket says."""
    ticket, named = msg.ticket, len(msg.media)
    if ticket is None:
        return None if named == len(attachments) else f"DONE names {named} media and brings {len(attachments)}"
    if attachments:
        return f"DONE has a ticket and brings {len(attachments)} media"
    if not named == len(ticket.sizes) == len(ticket.checksums):
        return f"DONE names {named} media, its ticket {len(ticket.sizes)} sizes and {len(ticket.checksums)} checksums"
    return None


def _violation(t: Tables, lease: Lease, reason: str) -> None:
    """End the attempt of an instance that does not keep to the protocol."""
    instance = lease.instance
    fail_attempt(t, lease.request, f"{instance}: {MalformedMessage(reason)}", instance)


def _wake_in_time(t: Tables, request: Request) -> None:
    """Set the alarm for when the request must be served at the latest; once it is, the alarm is early."""
    t.deadlines.arm(Alarm.REQUEST, request.request_id, latest_start(request))


def _note_success(t: Tables, lease: Lease) -> None:
    """Learn from a stage that is done how long it takes, and how quick the instance is."""
    request, instance = lease.request, lease.instance
    note_success(t, instance)
    took_s = t.now - lease.since
    expected_s = request.model.estimates.stage_s(request.params, instance.role)
    if expected_s > 0:
        instance.slowness += SLOWNESS_WEIGHT * (min(took_s / expected_s, MOST_SLOWNESS) - instance.slowness)
    request.model.estimates.observe(request.params, instance.role, took_s)


def _note_stage(t: Tables, request: Request, instance: Instance, timing: StageTiming) -> None:
    known = replace(timing, role=instance.role, instance_id=instance.instance_id, queue_s=request.queue_s)
    request.stages.append(known)
    t.tell_client(request.client, StageFinishedMsg(request.request_id, known))
