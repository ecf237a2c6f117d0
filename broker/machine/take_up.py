"""A broker that restarted takes up what services hold of its predecessor's requests.

Each service says at registration which work it computes and which outputs it keeps. They come in any order, so a
request that is taken up is unsettled for a while: whoever holds more of it, in the order of the stages, takes
precedence. What is obsolete is released or aborted. A request of which only an output is left waits until the time is
over, for the one who computes with that output may still come.
"""

from ...schemas.errors import RegistrationRefused
from ...schemas.holdings import HeldJob, HeldOutput
from ...schemas.roles import Role
from ...schemas.states import TERMINAL_STATES, RequestState
from ...schemas.transfer import TransferRegisterMsg, TransferReleaseMsg
from .acceptance import accept
from .deadlines import Alarm
from .leases import abort_lease, begin_reading, begin_running, grant_lease, release_staged
from .manifests import manifest_problem
from .naming import serve
from .records import Instance, Lease, Phase, Request, Staged
from .slots import slot_problem
from .stages import STAGES
from .story import Story
from .tables import Tables
from .tenants import admit, tenant_of
from .transitions import move

_ORDER = {role: place for place, role in enumerate(Role)}


def check_holdings(msg: TransferRegisterMsg) -> None:
    """Raise the reason why what the service says it holds cannot be."""
    problem = _problem(msg)
    if problem is not None:
        raise RegistrationRefused(f"what it holds: {problem}")


def take_up(t: Tables, instance: Instance, msg: TransferRegisterMsg) -> None:
    """Go on with what a newly registered instance holds."""
    for output in msg.outputs:
        _take_up_output(t, instance, output)
    for job in msg.jobs:
        _take_up_job(t, instance, job)


def _problem(msg: TransferRegisterMsg) -> str | None:
    if len(msg.jobs) > msg.capacity:
        return f"{len(msg.jobs)} jobs, more than its capacity of {msg.capacity}"
    held = [*msg.jobs, *msg.outputs]
    if len({(one.request_id, one.attempt) for one in held}) < len(held):
        return "an attempt is named twice"
    if msg.outputs and STAGES[msg.role].follower is None:
        return f"{msg.role}s have no outputs"
    for output in msg.outputs:
        problem = manifest_problem(output.manifest, output.slot, msg.pool.size)
        if problem is not None:
            return problem
    return _slots_problem(msg)


def _slots_problem(msg: TransferRegisterMsg) -> str | None:
    """Say what is wrong with the receive slots that jobs still read."""
    fixed = {slot.slot_id: slot for slot in msg.receive_slots}
    used: set[int] = set()
    for job in msg.jobs:
        slot = job.slot
        if slot is None or job.segment:
            continue
        if slot.slot_id in used or fixed.get(slot.slot_id, slot) != slot:
            return f"slot {slot.slot_id} is named twice"
        used.add(slot.slot_id)
        problem = slot_problem(slot, msg.pool.size)
        if problem is not None:
            return problem
    return None


def _take_up_output(t: Tables, instance: Instance, held: HeldOutput) -> None:
    request = _request_of(t, held)
    role = STAGES[instance.role].follower
    if request is None or role is None or not _wanted(request, role):
        t.tell_service(instance.peer, TransferReleaseMsg(held.request_id, held.attempt))
        return
    staged = Staged((held.request_id, held.attempt), request, instance, held.slot, held.manifest, held.scalar_fields)
    if request.lease is None:
        release_staged(t, request)
        _stand(t, request, STAGES[role].waiting, "its output is still there", instance)
        _wait_for_others(t, request)
    elif request.lease.segment == instance.pool.segment:
        begin_reading(request.lease, staged)
        request.lease.segment = ""
    request.staged = instance.staged[staged.key] = staged


def _take_up_job(t: Tables, instance: Instance, held: HeldJob) -> None:
    request = _request_of(t, held)
    if request is None:
        request = _stub(t, instance, held)
    current, attempt = request.lease, request.attempt
    request.attempt = held.attempt
    lease = grant_lease(t, request, instance, Phase.RUNNING)
    request.attempt = max(attempt, held.attempt)
    _take_slot(lease, held)
    lease.started = held.started
    if request.unsettled and _is_further(request, current, instance.role, held.attempt):
        _go_on(t, request, lease, current)
        return
    request.lease = current
    _abort_obsolete(t, request, lease)


def _go_on(t: Tables, request: Request, lease: Lease, current: Lease | None) -> None:
    """Let `lease` be the one of the attempt that runs; `current` ran at an earlier stage or in an older attempt."""
    instance = lease.instance
    if current is not None:
        _abort_obsolete(t, request, current)
        request.lease = lease
    staged = request.staged
    if staged is not None and STAGES[staged.instance.role].follower is not instance.role:
        release_staged(t, request)
        staged = None
    begin_running(t, lease)
    _stand(t, request, STAGES[instance.role].running, "it is still computed", instance)
    if staged is not None and lease.segment == staged.instance.pool.segment:
        begin_reading(lease, staged)
        lease.segment = ""


def _abort_obsolete(t: Tables, request: Request, lease: Lease) -> None:
    """Stop what is computed for nothing; the request's own lease stays as it is."""
    current = request.lease
    abort_lease(t, lease)
    request.lease = None if current is lease else current


def _request_of(t: Tables, held: HeldJob | HeldOutput) -> Request | None:
    """Return the request, made known if it is not; None where it has ended."""
    known = t.requests.get(held.request_id)
    if known is not None:
        return None if known.state in TERMINAL_STATES else known
    if held.request_id in t.ended:
        return None
    request = _remembered(t, held)
    accept(t, request)
    admit(t, request)
    request.unsettled = True
    _wait_for_others(t, request)
    return request


def _remembered(t: Tables, held: HeldJob | HeldOutput) -> Request:
    """Return the request as its context tells it."""
    context = held.context
    t.arrivals += 1
    request = Request(
        held.request_id,
        context.client,
        context.params,
        serve(t, context.model),
        tenant_of(t, context.tenant),
        t.arrivals,
        t.now - max(0.0, context.timeout_s - context.left_s),
        context.timeout_s,
        Story(),
        context.priority,
        context.stage_timeout_s,
        context.cancel_on_disconnect,
        attempt=held.attempt,
        reasons=list(context.reasons),
    )
    request.stages = list(context.stages)
    request.transfers = list(context.transfers)
    if isinstance(held, HeldOutput):
        request.stages.append(held.timing)
    return request


def _stub(t: Tables, instance: Instance, held: HeldJob) -> Request:
    """Return the record of an ended request, for the loose end that its job is."""
    known = t.requests.get(held.request_id)
    if known is not None:
        return known
    request = _remembered(t, held)
    request.state = RequestState.CANCELLED
    t.requests[request.request_id] = request
    return request


def _wanted(request: Request, role: Role) -> bool:
    """Say whether an output that is the input of `role` brings the request further, or is what its lease reads."""
    if request.lease is not None:
        return request.staged is None and request.lease.instance.role is role and request.unsettled
    if request.staged is None:
        return request.unsettled
    here = STAGES[request.staged.instance.role].follower
    return request.unsettled and here is not None and _ORDER[role] > _ORDER[here]


def _is_further(request: Request, current: Lease | None, role: Role, attempt: int) -> bool:
    if current is not None:
        return (_ORDER[role], attempt) > (_ORDER[current.instance.role], current.key[1])
    staged = request.staged
    waits_for = None if staged is None else STAGES[staged.instance.role].follower
    return waits_for is None or _ORDER[role] >= _ORDER[waits_for]


def _take_slot(lease: Lease, held: HeldJob) -> None:
    lease.segment = held.segment
    if held.slot is not None and not held.segment:
        lease.instance.slots.take_back(held.slot)
        lease.slot = held.slot


def _stand(t: Tables, request: Request, state: RequestState, why: str, instance: Instance) -> None:
    if request.state is not state:
        move(t, request, state, f"taken up: {why}", instance.instance_id)


def _wait_for_others(t: Tables, request: Request) -> None:
    settled_at = t.now if t.settled_at is None else max(t.now, t.settled_at)
    t.deadlines.arm(Alarm.SETTLE, request.request_id, settled_at)
