"""What is always true between two events. Beside the state, for tests and the simulator; it looks at everything."""

from collections import Counter
from itertools import pairwise
from math import isclose

from ...schemas.memory import EngineName
from ...schemas.roles import Role
from ...schemas.states import TERMINAL_STATES
from .deadlines import Alarm
from .models import Pool
from .questions import ALARM_OF
from .records import Instance, Lease, Phase, Request, Staged
from .stages import STAGES, WAITING_FOR
from .tables import Tables

_RUNNING_ON = {stage.running: role for role, stage in STAGES.items()}

#: phases of a lease whose attempt still runs
_CURRENT = frozenset({Phase.ALLOCATING, Phase.PUSHING, Phase.RUNNING})


class InvariantBroken(AssertionError):
    """`what` should be true of `subject` and is not."""

    def __init__(self, what: str, subject: object, story: list[str] | None = None) -> None:
        self.what = what
        self.subject = subject
        self.story = story or []
        super().__init__("; ".join([f"{subject}: not true: {what}", *self.story]))


def check_tables(t: Tables) -> None:
    """Raise `InvariantBroken` for the first invariant that does not hold."""
    instances = list(t.by_peer.values())
    loose_ends = Counter[Request]()
    for instance in instances:
        _check_instance(t, instance)
        loose_ends.update(lease.request for lease in instance.leases.values())
        loose_ends.update(push.lease.request for push in instance.pushes.values())
    for request in t.requests.values():
        _check_request(t, request)
        _require(request.loose_ends == loose_ends[request], "its loose ends are its leases and pushes", request)
    _require(set(loose_ends) <= set(t.requests.values()), "every request in use is known", "machine")
    _check_pools(t, instances)
    _check_alarms(t)
    _check_relays(t)
    _require(not t.out, "no command is left behind", "machine")


def _check_instance(t: Tables, instance: Instance) -> None:
    """Invariant 2 for leases, invariant 3 for slots."""
    capacity = instance.registration.capacity
    _require(instance.alive, "a registered instance is alive", instance)
    _require(t.by_id.get(instance.instance_id) is instance, "by_id and by_peer agree", instance)
    for pool in instance.pools:
        _require(pool.members.get(instance.peer) is instance, "it is a member of its pools", instance)
        _require((instance in pool.free) == instance.is_free, "a pool knows it if, and only if, it is free", instance)
    _require(len(instance.leases) + instance.free_leases == capacity, "leases held + free = capacity", instance)
    _require(instance.free_leases >= 0, "no more leases than capacity", instance)
    work_s = sum(lease.work_s for lease in instance.leases.values())
    _require(isclose(instance.outstanding_s, work_s, rel_tol=1e-6, abs_tol=1e-6), "its work is its leases'", instance)
    for question, asked in instance.questions.items():
        alarmed = not asked or t.deadlines.armed(ALARM_OF[question], instance.peer)
        _require(alarmed, "what it must answer has a deadline", instance)
    held = bool(instance.leases or instance.staged or instance.pushes)
    _require(instance.dismissed == (instance.leaving and not held), "it is dismissed once it is drained", instance)
    _check_slots(instance)
    for key, lease in instance.leases.items():
        _require(lease.key == key and lease.instance is instance, "its leases are its own", instance)
        _check_lease(lease)
    for key, push in instance.pushes.items():
        known = push.lease.push is push and push.sender is instance and push.lease.key == key
        _require(known, "its pushes are its own", instance)
    for key, staged in instance.staged.items():
        _require(staged.key == key and staged.instance is instance, "its staged outputs are its own", instance)
        _check_staged(staged)
    _check_acquaintances(t, instance)


def _check_staged(staged: Staged) -> None:
    """Invariant 3 for what is read in place: it is kept while anybody reads it, and no longer than needed."""
    request = staged.request
    _require(request.staged is staged or staged.readers, "staged outputs are somebody's input", request)
    for reader in staged.readers:
        held = reader.reads is staged and reader.instance.leases.get(reader.key) is reader
        _require(held, "who reads in place holds its lease", request)


def _check_acquaintances(t: Tables, instance: Instance) -> None:
    for peer, other in instance.known_to.items():
        mutual = t.by_peer.get(peer) is other and other.knows.get(instance.peer) is instance
        _require(mutual, "those who know its pool are alive", instance)
    for peer, owner in instance.knows.items():
        mutual = t.by_peer.get(peer) is owner and owner.known_to.get(instance.peer) is instance
        _require(mutual, "those whose pools it knows are alive", instance)
    agent = instance.pool.nixl and instance.pool.nixl.agent
    _require(agent is None or t.by_agent.get(agent) is instance, "its agent's name is its own", instance)


def _check_slots(instance: Instance) -> None:
    slots = instance.slots
    owners = Counter(lease.slot.slot_id for lease in instance.leases.values() if lease.slot is not None)
    _require(owners == Counter(slots.taken.keys()), "each taken slot has exactly one owner", instance)
    known = [*slots.free_ids(), *slots.retired, *(slots.taken.keys() & slots.fixed.keys())]
    _require(Counter(known) == Counter(slots.fixed.keys()), "each slot is free, taken or retired", instance)
    same = all(slots.fixed.get(slot_id, slot) == slot for slot_id, slot in slots.taken.items())
    _require(same, "a slot keeps its full size", instance)
    exist = {**slots.fixed, **slots.taken}.values()
    ranges = sorted((slot.offset, slot.offset + slot.size) for slot in exist if slot.size)
    _require(all(left[1] <= right[0] for left, right in pairwise(ranges)), "no two slots overlap", instance)


def _check_lease(lease: Lease) -> None:
    request = lease.request
    current = lease.phase in _CURRENT
    _require(lease.phase is not Phase.ENDED, "an ended lease is not held", request)
    _require((request.lease is lease) == current, "it knows the lease of the attempt that runs", request)
    written = lease.phase in {Phase.PUSHING, Phase.QUARANTINED}
    _require((lease.push is not None) == written, "a slot is written while a push runs", request)
    if written:
        _require(lease.slot is not None, "what is written is a slot", request)
    staged = lease.reads
    if staged is not None:
        reading = lease.phase in {Phase.RUNNING, Phase.ABORTING} and lease.slot is None
        _require(reading, "who reads in place runs or is stopped, and has no slot", request)
        kept = staged.instance.alive and staged.instance.staged.get(staged.key) is staged
        _require(kept and lease in staged.readers, "what is read in place is kept", request)


def _check_request(t: Tables, request: Request) -> None:
    lease, state = request.lease, request.state
    if state in TERMINAL_STATES:
        _require(lease is None and request.staged is None, "it ended and holds nothing", request)
        _require(request.loose_ends > 0, "an ended request is kept for its loose ends alone", request)
        return
    known = t.models.get(request.model.name) is request.model
    _require(known, "its model is known", request)
    _require(t.tenants.get(request.tenant.name) is request.tenant, "its tenant is known", request)
    staged_armed = t.deadlines.armed(Alarm.STAGE, request.request_id)
    _require(not staged_armed or state in _RUNNING_ON, "a stage has a limit while it runs", request)
    _require(state in WAITING_FOR or state in _RUNNING_ON, "it waits or runs between events", request)
    _require(t.deadlines.armed(Alarm.REQUEST, request.request_id), "it has a deadline", request)
    allocating = lease is not None and lease.phase is Phase.ALLOCATING
    hopping = allocating or (lease is not None and lease.phase is Phase.PUSHING)
    _require(t.deadlines.armed(Alarm.ALLOC, request.request_id) == allocating, "ALLOC has a deadline", request)
    if lease is not None:
        _require(lease.instance.alive, "it runs on an instance that is alive", request)
        _require(lease.instance.leases.get(lease.key) is lease, "its lease is held", request)
    if state in _RUNNING_ON:
        here = lease is not None and lease.phase is Phase.RUNNING and lease.instance.role == _RUNNING_ON[state]
        _require(here, "it runs on an instance of its role", request)
    else:
        _check_waiting(t, request, hopping=hopping)
    if request.staged is not None:
        staged = request.staged
        kept = staged.instance.alive and staged.instance.staged.get(staged.key) is staged
        _require(kept and staged.request is request, "its input exists", request)


def _check_waiting(t: Tables, request: Request, *, hopping: bool) -> None:
    role = WAITING_FOR[request.state]
    queued = [other for other, pool in request.model.pools.items() if request in pool.waiting]
    held = hopping or request.unsettled
    _require(queued == ([] if held else [role]), "it is in its queue, on its way, or waits for others to come", request)
    _require((request.staged is None) == (role is Role.ENCODER), "all stages but the first have an input", request)
    parked = request.model.pools[role].waiting.is_parked(request)
    _require(t.deadlines.armed(Alarm.PARKED, request.request_id) == parked, "it is parked for a while", request)


def _check_pools(t: Tables, instances: list[Instance]) -> None:
    pools = [pool for model in t.models.values() for pool in model.pools.values()]
    members = [instance for pool in pools for instance in pool.members.values()]
    _require(Counter(members) == Counter({one: len(one.pools) for one in instances}), "pools have members", "machine")
    for pool in pools:
        _check_queue(t, pool)
        written = [one for one in pool.members.values() if EngineName.NIXL in one.pool.engines]
        _require(len(pool.sizes) == len(written), "sizes of all members that NIXL reaches are known", pool.role)
        hosts = (one.pool.host_id for one in pool.members.values() if EngineName.SHM in one.pool.engines)
        _require(pool.on_host == Counter(hosts), "who reads in place is counted by host", pool.role)
    _require(not t.awake, "no pool is left to look at", "machine")
    _check_tenants(t)


def _check_tenants(t: Tables) -> None:
    live = [request for request in t.requests.values() if request.state not in TERMINAL_STATES]
    waiting = Counter(request.tenant.name for request in live if not request.admitted)
    running = Counter(request.tenant.name for request in live if request.admitted)
    counted = {tenant.name: (tenant.waiting, tenant.running) for tenant in t.tenants.values()}
    expected = {name: (waiting[name], running[name]) for name in waiting | running}
    _require(counted == expected, "each tenant's requests are counted", "machine")


def _check_queue(t: Tables, pool: Pool) -> None:
    waiting = pool.waiting.requests()
    _require(len(waiting) == len(set(waiting)) == len(pool.waiting), "no request waits twice", "queue")
    for request in waiting:
        _require(t.requests.get(request.request_id) is request, "waiting requests are known", request)
        live = request.state in WAITING_FOR and request.model.pools[WAITING_FOR[request.state]] is pool
        _require(live, "a waiting request waits for this role", request)


def _check_alarms(t: Tables) -> None:
    for alarm, subject in t.deadlines.all():
        if isinstance(subject, bytes):
            known = subject in (t.watched if alarm is Alarm.CLIENT else t.by_peer)
        else:
            known = subject in t.requests and t.requests[subject].state not in TERMINAL_STATES
        _require(known, f"the alarm {alarm.name} is about something alive", subject)
    for peer, instance in t.by_peer.items():
        _require(t.deadlines.armed(Alarm.LEASE, peer), "its lease has a deadline", instance)
        _require(t.deadlines.armed(Alarm.REST, peer) == instance.resting, "it rests for a while", instance)


def _check_relays(t: Tables) -> None:
    relays = t.relays
    known = Counter(relay.client for relay in [*relays.waiting, *(asked.relay for asked in relays.asked.values())])
    _require(known == relays.per_client, "the relays of each client are counted", "machine")
    _require(len(relays.asked) <= t.settings.relays_in_flight, "so many relays are under way at most", "machine")
    full = len(relays.asked) == t.settings.relays_in_flight
    _require(full or not relays.waiting, "a relay waits for its turn alone", "machine")
    _require(all(asked.holder in t.by_peer for asked in relays.asked.values()), "holders are alive", "machine")
    times = [asked.expires_at for asked in relays.asked.values()]
    _require(times == sorted(times), "the oldest relay is given up first", "machine")


def _require(true: object, what: str, subject: object) -> None:
    if not true:
        if isinstance(subject, Request):
            raise InvariantBroken(what, f"request {subject.request_id}", subject.story.lines())
        raise InvariantBroken(what, subject)
