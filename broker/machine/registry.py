"""Instances come and go."""

from ...schemas.errors import RegistrationRefused, TriptychError, VersionMismatch
from ...schemas.transfer import (
    PROTOCOL_VERSION,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferRegisterRefusedMsg,
    routing_id,
)
from .commands import ReportInstance
from .deadlines import Alarm
from .endings import fail_attempt
from .hops import writer_lost
from .leases import end_lease
from .records import Instance, Phase, Request
from .slots import ReceiveSlots, overlap_problem, slot_problem
from .tables import Tables


def register(t: Tables, peer: bytes, msg: TransferRegisterMsg) -> None:
    """Take a service in, replacing an older incarnation of it; one that is gone must come as a newer incarnation."""
    try:
        _check_registration(peer, msg)
        known = t.by_id.get(msg.instance_id)
        if known is not None:
            _check_successor(known, peer, msg)
    except TriptychError as error:
        t.tell_service(peer, TransferRegisterRefusedMsg(error.info()))
        t.out.append(ReportInstance(msg.instance_id, msg.role, "refused", str(error)))
        return
    if known is not None and known.peer == peer:
        known.expires_at = t.now + t.settings.lease_s
    elif known is None and t.departed.includes(msg.instance_id, msg.incarnation):
        t.tell_service(peer, TransferRegisterAgainMsg())
        t.ignore(peer, msg, f"incarnation {msg.incarnation} is gone")
        return
    else:
        if known is not None:
            lose(t, known, "replaced", f"it was replaced by incarnation {msg.incarnation}")
        _admit(t, peer, msg)
    t.tell_service(peer, TransferRegisterAckMsg(PROTOCOL_VERSION, t.settings.heartbeat_s, t.settings.lease_s))


def drain(t: Tables, instance: Instance) -> None:
    """Give `instance` no more work; what it has goes on."""
    if not instance.draining:
        instance.draining = True
        t.pools[instance.role].free.refresh(instance)
        t.out.append(ReportInstance(instance.instance_id, instance.role, "draining"))


def lose(t: Tables, instance: Instance, change: str, reason: str) -> None:
    """Drop an instance, and end the attempts that need it."""
    instance.alive = False
    del t.by_peer[instance.peer], t.by_id[instance.instance_id]
    t.departed.note(instance.instance_id, instance.registration.incarnation)
    t.pools[instance.role].remove(instance)
    t.deadlines.disarm(Alarm.LEASE, instance.peer)
    t.deadlines.disarm(Alarm.REST, instance.peer)
    t.out.append(ReportInstance(instance.instance_id, instance.role, change, reason))
    why = f"{instance} is lost: {reason}"
    for push in list(instance.pushes.values()):
        writer_lost(t, push, why)
    for lease in list(instance.leases.values()):
        request, current = lease.request, lease.request.lease is lease
        end_lease(t, lease)
        if current:
            fail_attempt(t, request, why, instance.instance_id)
    for request in list(instance.staged.values()):
        _lose_input(t, request, why, instance)


def _lose_input(t: Tables, request: Request, why: str, instance: Instance) -> None:
    """End the attempt if its input was not moved yet; else nobody needs the sender any more."""
    if request.lease is not None and request.lease.phase is Phase.RUNNING:
        del instance.staged[request.request_id]
        request.staged = None
    else:
        fail_attempt(t, request, why, instance.instance_id)


def _admit(t: Tables, peer: bytes, msg: TransferRegisterMsg) -> None:
    t.registrations += 1
    expires_at = t.now + t.settings.lease_s
    instance = Instance(peer, msg, t.registrations, ReceiveSlots(msg.receive_slots), expires_at)
    t.by_peer[peer] = t.by_id[msg.instance_id] = instance
    t.pools[msg.role].add(instance)
    t.deadlines.arm(Alarm.LEASE, peer, expires_at)
    t.out.append(ReportInstance(msg.instance_id, msg.role, "registered"))


def _check_registration(peer: bytes, msg: TransferRegisterMsg) -> None:
    """Raise the reason not to take the service, whoever else is registered."""
    if msg.protocol_version != PROTOCOL_VERSION:
        raise VersionMismatch(PROTOCOL_VERSION, msg.protocol_version)
    expected = routing_id(msg.instance_id, msg.incarnation)
    if peer != expected:
        raise RegistrationRefused(f"its routing id is {peer!r}, that of its instance and incarnation is {expected!r}")
    problems = (slot_problem(slot, msg.pool.size) for slot in msg.receive_slots)
    problem = next(filter(None, problems), None) or overlap_problem(msg.receive_slots)
    if problem is not None:
        raise RegistrationRefused(f"receive slots: {problem}")


def _check_successor(known: Instance, peer: bytes, msg: TransferRegisterMsg) -> None:
    """Raise the reason why the service cannot take the place of the registered `known`."""
    incarnation = known.registration.incarnation
    if msg.incarnation < incarnation:
        raise RegistrationRefused(f"incarnation {msg.incarnation} is older than {incarnation}, which is registered")
    if peer == known.peer and msg != known.registration:
        raise RegistrationRefused(f"incarnation {incarnation} is registered with other values; come as a newer one")
