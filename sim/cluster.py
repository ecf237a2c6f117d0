"""The simulated services: started, crashed, drained and started again."""

from collections.abc import Callable
from random import Random

from msgspec import Struct

from ..broker.machine.events import Event, ServiceSpoke, ServiceVanished
from ..schemas.manifest import TensorManifest
from ..schemas.memory import PoolAddress
from ..schemas.roles import Role
from ..schemas.sampling import SamplingParams
from ..schemas.transfer import BrokerMsg
from .agenda import Agenda
from .distributions import Draw, Exponential
from .observations import Observations
from .plan import Others, Plan
from .services import HEARD, SimService
from .stages import input_bytes, stage_plans

#: heartbeats of instances are this far apart, in parts of the time between two of one (Weyl's sequence spreads evenly)
_GOLDEN = 0.618033988749895


class Make(Struct, frozen=True):
    """What instances of one group are alike in."""

    role: Role
    capacity: int
    speed: float
    #: bytes of each pre-allocated receive slot
    slot_sizes: tuple[int, ...]
    #: what the largest input takes
    slot_bytes: int


class Cluster:
    """All services of a plan."""

    def __init__(
        self,
        plan: Plan,
        agenda: Agenda,
        seen: Observations,
        tell: Callable[[Event], None],
        compute_s: Callable[[str, Role], float],
    ) -> None:
        self.agenda = agenda
        self.network = plan.network
        self.progress_every = plan.run.progress_every
        #: lets the broker take a message in that has arrived
        self.hear: Callable[[ServiceSpoke], None] = tell
        #: returns what a stage of a request takes at speed 1
        self.compute_s = compute_s
        self._plan = plan
        self._seen = seen
        self._tell = tell
        self._stages = stage_plans(plan)
        #: those that live, and those that died and have not been started again
        self._by_peer: dict[bytes, SimService] = {}
        self._by_segment: dict[str, SimService] = {}
        chance = Random(f"{plan.run.seed} failures")
        self._chance = chance.random
        self._unlucky = {role: plan.pool(role).failures.attempts for role in Role}
        self._lifetimes: dict[Role, Draw] = {}
        for role in Role:
            mean_s = plan.pool(role).failures.mean_between_s
            if mean_s is not None:
                self._lifetimes[role] = Exponential(mean_s).sampler(chance)

    def begin(self) -> None:
        """Start every instance."""
        started = 0
        for role in Role:
            number = 0
            for group in self._plan.pool(role).groups:
                make = self._make(role, group)
                for _ in range(group.instances):
                    hosts = self.network.hosts
                    host_id = f"host-{number % hosts}" if hosts else ""
                    self._start(SimService(self, make, f"{role}-{number}", 1, host_id, started * _GOLDEN % 1.0))
                    number += 1
                    started += 1

    def deliver(self, peer: bytes, msg: BrokerMsg) -> None:
        """Send `msg` to a service. The broker hears of one that is gone, as it does by its socket."""
        service = self._by_peer.get(peer)
        if service is None:
            return
        if not service.alive:
            self.agenda.after(0.0, self._tell, ServiceVanished(peer, "its process is gone"))
        elif type(msg) in HEARD:
            self.agenda.after(self.network.latency_s, service.on_message, msg)

    def holdings(self) -> int:
        """Return how many jobs and staged outputs there are."""
        return sum(service.holds for service in self._by_peer.values() if service.alive)

    # ------------------------------------------------------------------------------- what services need

    def output(self, params: SamplingParams, role: Role) -> TensorManifest:
        """Return what the stage puts out."""
        return self._stages[role].output(params)

    def fails(self, role: Role) -> bool:
        """Say whether an attempt that was computed to its end fails, by chance."""
        part = self._unlucky[role]
        return part > 0 and self._chance() < part

    def computed(self, role: Role, begun: float) -> None:
        """Note that an instance has computed from `begun` until now."""
        self._seen.computed(role, begun, self.agenda.now)

    def reaches(self, pool: PoolAddress) -> bool:
        """Say whether the owner of the pool lives."""
        owner = self._by_segment.get(pool.segment)
        return owner is not None and owner.alive

    def departed(self, service: SimService, *, at_once: bool) -> None:
        """Start the next incarnation of a service that is gone, when its supervisor does."""
        pause_s = 0.0 if at_once else self._plan.pool(service.role).failures.restart_s
        self.agenda.standing(pause_s, self._start_again, service)

    # ------------------------------------------------------------------------------- lives and deaths

    def _make(self, role: Role, group: Others) -> Make:
        plan = self._plan.pool(role)
        capacity = plan.capacity if group.capacity is None else group.capacity
        largest = input_bytes(self._plan, self._stages, role)
        slots = (capacity if plan.receive_slots is None else plan.receive_slots) if role.has_input else 0
        return Make(role, capacity, group.speed, (largest,) * slots, largest)

    def _start(self, service: SimService) -> None:
        self._by_peer[service.peer] = self._by_segment[service.pool.segment] = service
        service.register()
        lifetime = self._lifetimes.get(service.role)
        if lifetime is not None:
            self.agenda.standing(lifetime(), self._end_of, service)

    def _start_again(self, service: SimService) -> None:
        del self._by_peer[service.peer], self._by_segment[service.pool.segment]
        self._start(service.successor())

    def _end_of(self, service: SimService) -> None:
        """Let a life end: by a crash, or in good order."""
        if not service.alive:
            return
        if self._plan.pool(service.role).failures.graceful:
            service.drain()
        else:
            service.die()
            self.departed(service, at_once=False)
