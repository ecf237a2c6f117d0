"""Everything the machine knows, and the commands of the present turn. Handlers are functions over it."""

from collections import OrderedDict
from dataclasses import dataclass, field

from msgspec import Struct

from ...schemas.client import ClientReplyMsg
from ...schemas.transfer import BrokerMsg
from .commands import Command, ReportIgnored, TellClient, TellService
from .deadlines import Deadlines
from .models import Model, Pool
from .records import Instance, Request, Tenant
from .relays import Relays
from .settings import DispatchSettings
from .story import EndedStories

#: instances that went and whose last incarnation is remembered
REMEMBERED_INSTANCES = 100_000


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


class Failures:
    """How often instances failed in a row; those that crash each time come back under the same id."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = OrderedDict[str, int]()

    def of(self, instance_id: str) -> int:
        """Return the failures in a row."""
        return self._counts.get(instance_id, 0)

    def note(self, instance_id: str, count: int) -> None:
        """Remember `count`; 0 is forgotten."""
        self._counts.pop(instance_id, None)
        if count:
            self._counts[instance_id] = count
        if len(self._counts) > REMEMBERED_INSTANCES:
            self._counts.popitem(last=False)


@dataclass(slots=True)
class WatchedClient:
    """A client whose requests end when nothing is heard of it any more."""

    expires_at: float
    request_ids: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Tables:
    """The state of the machine."""

    settings: DispatchSettings
    #: of the package, told to clients
    package_version: str
    #: of the broker
    network_id: str
    #: by name; "" is the one of requests that named none when none was served
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    #: by name, those that have live requests
    tenants: dict[str, Tenant] = field(default_factory=dict[str, Tenant])
    #: clients whose requests end with them, by peer
    watched: dict[bytes, WatchedClient] = field(default_factory=dict[bytes, WatchedClient])
    #: pools in which a request and an instance may have come together
    awake: dict[Pool, None] = field(default_factory=dict[Pool, None])
    #: failures in a row of instances, by instance id, those that have any
    failures: Failures = field(default_factory=Failures)
    #: when services of a broker before this one are no longer waited for
    settled_at: float | None = None
    #: live requests, and ended ones with loose ends
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    ended: EndedStories = field(default_factory=EndedStories)
    by_peer: dict[bytes, Instance] = field(default_factory=dict[bytes, Instance])
    by_id: dict[str, Instance] = field(default_factory=dict[str, Instance])
    #: by the name of their NIXL agent, those that have one
    by_agent: dict[str, Instance] = field(default_factory=dict[str, Instance])
    departed: Departed = field(default_factory=Departed)
    deadlines: Deadlines = field(default_factory=Deadlines)
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

    @property
    def settled(self) -> bool:
        """Whether all have had their time to come who knew a broker before this one."""
        return self.settled_at is not None and self.now >= self.settled_at

    def refresh(self, instance: Instance) -> None:
        """Put `instance` where its state belongs in the pools of all models that it serves."""
        free = instance.is_free
        for pool in instance.pools:
            pool.free.refresh(instance)
            if free and len(pool.waiting):
                self.awake[pool] = None

    def put(self, pool: Pool, request: Request) -> None:
        """Let `request` wait in `pool`."""
        pool.waiting.put(request)
        self.awake[pool] = None

    def wake_sender(self, pool: Pool) -> None:
        """Look again at the pool whose output waits in `pool`, where there is less of it now."""
        sender = pool.sender
        if sender is not None and len(sender.waiting):
            self.awake[sender] = None

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
    return Tables(settings, package_version, network_id)
