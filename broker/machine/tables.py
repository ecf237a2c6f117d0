"""Everything the machine knows, and the commands of the present turn. Handlers are functions over it."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from msgspec import Struct

from ...schemas.client import ClientReplyMsg
from ...schemas.roles import Role
from ...schemas.transfer import BrokerMsg, EngineName
from .commands import Command, ReportIgnored, TellClient, TellService
from .deadlines import Deadlines
from .heaps import KeyedHeap
from .pace import Pace
from .policies import POLICIES, FreeInstances
from .queues import WaitingQueue
from .records import Instance, Request
from .relays import Relays
from .settings import DispatchSettings
from .story import EndedStories

#: instances that went and whose last incarnation is remembered
REMEMBERED_INSTANCES = 100_000


class Pool:
    """The instances of one role, and the requests that wait for them."""

    __slots__ = ("free", "members", "on_host", "sizes", "waiting")

    def __init__(self, settings: DispatchSettings) -> None:
        #: all that are registered, by peer, in order of registration
        self.members = OrderedDict[bytes, Instance]()
        #: those that can take a request now
        self.free = FreeInstances(POLICIES[settings.policy])
        #: all that are registered, the one with the largest tensor pool first
        self.sizes = KeyedHeap[Instance]()
        #: by host id, how many can read in place there
        self.on_host = Counter[str]()
        self.waiting = WaitingQueue()

    def add(self, instance: Instance) -> None:
        """Take a new instance in."""
        self.members[instance.peer] = instance
        self.sizes.put(instance, (-instance.pool.size,))
        self._count_reader(instance, 1)
        self.free.refresh(instance)

    def remove(self, instance: Instance) -> None:
        """Drop a lost instance."""
        del self.members[instance.peer]
        self.sizes.discard(instance)
        self._count_reader(instance, -1)
        self.free.set_aside(instance)

    def largest(self) -> int:
        """Return the bytes of the largest tensor pool."""
        key = self.sizes.first_key()
        return 0 if key is None else -int(key[0])

    def _count_reader(self, instance: Instance, change: int) -> None:
        if EngineName.SHM in instance.pool.engines:
            host_id = instance.pool.host_id
            self.on_host[host_id] += change
            if not self.on_host[host_id]:
                del self.on_host[host_id]


class Departed:
    """The last incarnation of instances that are gone: one that was lost never comes back."""

    __slots__ = ("_incarnations",)

    def __init__(self) -> None:
        self._incarnations = OrderedDict[str, int]()

    def note(self, instance_id: str, incarnation: int) -> None:
        """Remember that this incarnation is gone."""
        self._incarnations[instance_id] = incarnation
        self._incarnations.move_to_end(instance_id)
        if len(self._incarnations) > REMEMBERED_INSTANCES:
            self._incarnations.popitem(last=False)

    def includes(self, instance_id: str, incarnation: int) -> bool:
        """Say whether this incarnation, or a newer one, is gone."""
        return incarnation <= self.last(instance_id)

    def last(self, instance_id: str) -> int:
        """Return the last incarnation that is gone, -1 where there is none."""
        return self._incarnations.get(instance_id, -1)


@dataclass(slots=True)
class Tables:
    """The state of the machine."""

    settings: DispatchSettings
    #: of the package, told to clients
    package_version: str
    #: of the broker
    network_id: str
    pools: dict[Role, Pool]
    #: live requests, and ended ones with loose ends
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    ended: EndedStories = field(default_factory=EndedStories)
    by_peer: dict[bytes, Instance] = field(default_factory=dict[bytes, Instance])
    by_id: dict[str, Instance] = field(default_factory=dict[str, Instance])
    #: by the name of their NIXL agent, those that have one
    by_agent: dict[str, Instance] = field(default_factory=dict[str, Instance])
    departed: Departed = field(default_factory=Departed)
    deadlines: Deadlines = field(default_factory=Deadlines)
    pace: Pace = field(default_factory=Pace)
    #: pieces of results that pass through
    relays: Relays = field(default_factory=Relays)
    #: requests accepted so far
    arrivals: int = 0
    #: instances registered so far
    registrations: int = 0
    #: leases granted so far
    grants: int = 0
    #: never goes back
    now: float = float("-inf")
    #: instances that have less to do since the present turn began
    eased: list[Instance] = field(default_factory=list[Instance])
    #: the commands of the present turn
    out: list[Command] = field(default_factory=list[Command])
    #: the bytes that came with the present message
    attachments: tuple[bytes, ...] = ()

    def tell_service(self, peer: bytes, msg: BrokerMsg) -> None:
        """Send `msg` to a service."""
        self.out.append(TellService(peer, msg))

    def tell_client(self, peer: bytes, msg: ClientReplyMsg, attachments: tuple[bytes, ...] = ()) -> None:
        """Send `msg` to a client."""
        self.out.append(TellClient(peer, msg, attachments))

    def ignore(self, peer: bytes, msg: Struct, reason: str) -> None:
        """Report that `msg` changed nothing."""
        self.out.append(ReportIgnored(peer, str(msg.__struct_config__.tag), reason))


def new_tables(settings: DispatchSettings, package_version: str, network_id: str = "") -> Tables:
    """Return the state of a machine that has seen nothing."""
    return Tables(settings, package_version, network_id, {role: Pool(settings) for role in Role})
