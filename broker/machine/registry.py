"""Instances come and go."""

from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace

from ...schemas.errors import RegistrationRefused, TriptychError, VersionMismatch
from ...schemas.identifiers import routing_id, split_routing_id
from ...schemas.memory import EngineName, PoolAddress
from ...schemas.transfer import (
    PROTOCOL_VERSION,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferRegisterRefusedMsg,
)
from .acquaintances import part
from .commands import ReportInstance
from .deadlines import Alarm
from .endings import fail_attempt
from .health import note_failure, rest_if_failing
from .hops import writer_lost
from .leases import end_lease, end_reading, release_staged
from .naming import check_models, serve
from .records import Instance, Phase, Staged
from .results import lose_relays
from .slots import ReceiveSlots, overlap_problem, slot_problem
from .tables import Tables
from .take_up import check_holdings, take_up


def register(t: Tables, peer: bytes, msg: TransferRegisterMsg) -> None:
    """Take a service in, replacing an older incarnation of it; one that is gone must come as a newer incarnation."""
    try:
        _check_registration(peer, msg)
        _check_data_endpoint(t, msg)
        known = t.by_id.get(msg.instance_id)
        _check_agent(t, peer, msg.pool)
        check_models(t, msg.models)
        if known is not None:
            _check_successor(known, peer, msg)
    except TriptychError as error:
        t.tell_service(peer, TransferRegisterRefusedMsg(error.info()))
        t.out.append(ReportInstance(msg.instance_id, msg.role, "refused", str(error)))
        return
    if known is not None and known.peer == peer:
        known.expires_at = t.now + t.settings.lease_s
    elif known is None and t.departed.includes(msg.instance_id, msg.incarnation):
        t.tell_service(peer, TransferRegisterAgainMsg(t.departed.last(msg.instance_id)))
        t.ignore(peer, msg, f"incarnation {msg.incarnation} is gone")
        return
    else:
        if known is not None:
            _replace(t, known, msg.incarnation)
        _admit(t, peer, msg)
    t.tell_service(peer, TransferRegisterAckMsg(PROTOCOL_VERSION, t.settings.heartbeat_s, t.settings.lease_s))


def _replace(t: Tables, known: Instance, incarnation: int) -> None:
    """Drop an instance in favour of a newer incarnation, and tell it so: it must not come back and do the same."""
    t.tell_service(known.peer, TransferRegisterRefusedMsg(_replaced(known.instance_id).info()))
    lose(t, known, "replaced", f"it was replaced by incarnation {incarnation}")


def _replaced(instance_id: str) -> RegistrationRefused:
    return RegistrationRefused(
        f"a newer incarnation of {instance_id} has registered; two services must not share an instance_id"
    )


def turn_away(t: Tables, peer: bytes, msg: Struct) -> None:
    """Tell a service that is not registered how to come (back), or that another is here in its place."""
    instance_id, incarnation = split_routing_id(peer)
    known = t.by_id.get(instance_id)
    if known is not None and incarnation < known.registration.incarnation:
        t.tell_service(peer, TransferRegisterRefusedMsg(_replaced(instance_id).info()))
    else:
        gone = t.departed.includes(instance_id, incarnation)
        t.tell_service(peer, TransferRegisterAgainMsg(t.departed.last(instance_id) if gone else 0))
    t.ignore(peer, msg, "not registered")


def leave(t: Tables, instance: Instance) -> None:
    """Give `instance` no more work, as it wishes; what it has goes on, and it is dismissed when that is over."""
    if not instance.leaving:
        instance.leaving = True
        t.refresh(instance)
        t.out.append(ReportInstance(instance.instance_id, instance.role, "draining"))
        t.eased.append(instance)


def lose(t: Tables, instance: Instance, change: str, reason: str) -> None:
    """Drop an instance, and end the attempts that need it."""
    instance.alive = False
    del t.by_peer[instance.peer], t.by_id[instance.instance_id]
    if instance.pool.nixl is not None:
        del t.by_agent[instance.pool.nixl.agent]
    t.departed.note(instance.instance_id, instance.registration.incarnation)
    for pool in instance.pools:
        pool.remove(instance)
    for alarm in (Alarm.LEASE, Alarm.REST, Alarm.PUSH, Alarm.ABORT):
        t.deadlines.disarm(alarm, instance.peer)
    t.out.append(ReportInstance(instance.instance_id, instance.role, change, reason))
    why = f"{instance} is lost: {reason}"
    lose_relays(t, instance, why)
    if any(lease.phase is Phase.RUNNING for lease in instance.leases.values()):
        note_failure(t, instance)
    for push in list(instance.pushes.values()):
        writer_lost(t, push, why)
    for lease in list(instance.leases.values()):
        request, current = lease.request, lease.request.lease is lease
        end_lease(t, lease)
        if current:
            fail_attempt(t, request, why, None)
    for staged in list(instance.staged.values()):
        _lose_staged(t, staged, why)
    part(t, instance)


def _lose_staged(t: Tables, staged: Staged, why: str) -> None:
    """End the attempt whose input was not moved yet, or is read in place: an owner that only hangs may write there."""
    request = staged.request
    if request.staged is staged:
        lease = request.lease
        moved = lease is not None and lease.phase is Phase.RUNNING and lease.reads is not staged
        release_staged(t, request)
        if not moved:
            fail_attempt(t, request, why, None)
    for reader in list(staged.readers):
        end_reading(t, reader)


def _admit(t: Tables, peer: bytes, msg: TransferRegisterMsg) -> None:
    t.registrations += 1
    expires_at = t.now + t.settings.lease_s
    known = replace(msg, jobs=(), outputs=())
    instance = Instance(peer, known, t.registrations, ReceiveSlots(msg.receive_slots), expires_at)
    instance.pools = tuple(serve(t, name).pools[msg.role] for name in msg.models)
    instance.failures = t.failures.of(msg.instance_id)
    t.by_peer[peer] = t.by_id[msg.instance_id] = instance
    if msg.pool.nixl is not None:
        t.by_agent[msg.pool.nixl.agent] = instance
    for pool in instance.pools:
        pool.add(instance)
    t.deadlines.arm(Alarm.LEASE, peer, expires_at)
    rest_if_failing(t, instance)
    t.out.append(ReportInstance(msg.instance_id, msg.role, "registered"))
    take_up(t, instance, msg)
    t.refresh(instance)


def _check_registration(peer: bytes, msg: TransferRegisterMsg) -> None:
    """Raise the reason not to take the service, whoever else is registered."""
    if msg.protocol_version != PROTOCOL_VERSION:
        raise VersionMismatch(PROTOCOL_VERSION, msg.protocol_version)
    expected = routing_id(msg.instance_id, msg.incarnation)
    if peer != expected:
        raise RegistrationRefused(f"its routing id is {peer!r}, that of its instance and incarnation is {expected!r}")
    if not msg.models or len(set(msg.models)) < len(msg.models):
        raise RegistrationRefused(f"it serves the models {list(msg.models)}; it must name one at least, each once")
    problems = (slot_problem(slot, msg.pool.size) for slot in msg.receive_slots)
    problem = next(filter(None, problems), None) or overlap_problem(msg.receive_slots)
    if problem is not None:
        raise RegistrationRefused(f"receive slots: {problem}")
    _check_engines(msg.pool)
    check_holdings(msg)


def _check_engines(pool: PoolAddress) -> None:
    """Raise the reason why payloads cannot be moved as the service says."""
    if not pool.engines:
        raise RegistrationRefused(f"it has no engine; it must have one of {', '.join(EngineName)}")
    if EngineName.NIXL in pool.engines and pool.nixl is None:
        raise RegistrationRefused("it has the engine nixl and does not say how its NIXL agent is reached")


def _check_agent(t: Tables, peer: bytes, pool: PoolAddress) -> None:
    """Raise if another incarnation, of this instance or another, has a NIXL agent of this name."""
    known = None if pool.nixl is None else t.by_agent.get(pool.nixl.agent)
    if pool.nixl is not None and known is not None and known.peer != peer:
        incarnation = known.registration.incarnation
        raise RegistrationRefused(
            f"the NIXL agent {pool.nixl.agent} is that of {known}, incarnation {incarnation}; each has its own"
        )


def _check_data_endpoint(t: Tables, msg: TransferRegisterMsg) -> None:
    """Raise if clients, who can reach the broker, could not reach the service where it says."""
    if msg.network_id != t.network_id and _is_loopback(msg.data_endpoint):
        raise RegistrationRefused(
            f"its data endpoint {msg.data_endpoint} is reached from its own host alone, and the broker is on another; "
            "set data_host to an address of its host"
        )


def _is_loopback(endpoint: str) -> bool:
    host = endpoint.rpartition("://")[2].rpartition(":")[0].strip("[]").lower()
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _check_successor(known: Instance, peer: bytes, msg: TransferRegisterMsg) -> None:
    """Raise the reason why the service cannot take the place of the registered `known`."""
    incarnation = known.registration.incarnation
    if msg.incarnation < incarnation:
        raise RegistrationRefused(f"incarnation {msg.incarnation} is older than {incarnation}, which is registered")
    if peer == known.peer and replace(msg, jobs=(), outputs=()) != known.registration:
        raise RegistrationRefused(f"incarnation {incarnation} is registered with other values; come as a newer one")
