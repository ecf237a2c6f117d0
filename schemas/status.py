"""What an operator sees of a running broker: its machine, and the process around that."""

from msgspec import Struct

from .context import Priority
from .identifiers import Seconds
from .manifest import Count
from .roles import Role
from .states import RequestState


class LoadStatus(Struct, frozen=True):
    """What an instance said of itself in its last heartbeat; zeros before the first one."""

    #: requests it has been given and not ended
    jobs: Count = 0
    #: outputs that are not released
    staged: Count = 0
    #: bytes of its tensor pool that are not in use
    free_bytes: Count = 0
    #: how late its loop was between its last two heartbeats
    loop_lag_s: Seconds = 0.0
    #: the models whose weights are in memory; None: all that it serves
    loaded: tuple[str, ...] | None = None


class InstanceStatus(Struct, frozen=True):
    """One registered instance. `leases` counts those held, by phase; the rest of `capacity` is free."""

    instance_id: str
    incarnation: int
    role: Role
    models: tuple[str, ...]
    package_version: str
    capacity: Count
    leases: dict[str, Count]
    free_leases: int
    #: pre-allocated receive slots; `taken_slots` counts dynamic ones too
    free_slots: Count
    taken_slots: Count
    retired_slots: Count
    #: outputs in its pool that are not released, as the broker knows it
    staged: Count
    #: pushes that it has not answered
    pushes: Count
    #: bytes of its tensor pool
    pool_bytes: Count
    #: what its leases still take of its time
    outstanding_s: Seconds
    #: how long it takes over what others take one second for
    slowness: Seconds
    #: since anything was heard of it
    silent_s: Seconds
    #: attempts that failed on it in a row
    failures: Count
    #: it failed too often, and is given one request at a time until it ends one
    on_probation: bool
    #: it had no room, or failed too often, and is passed over for `rests_s` more
    resting: bool
    rests_s: Seconds
    #: it is given no more work: an operator's wish
    draining: bool
    #: it wants no more work: its own wish, and it leaves when it holds nothing any more
    leaving: bool
    #: what it said of itself
    load: LoadStatus

    @property
    def holds(self) -> int:
        """How many things would be lost with it: requests in its hands, outputs in its pool, writes under way."""
        return sum(self.leases.values()) + self.staged + self.pushes


class PoolStatus(Struct, frozen=True):
    """The instances of one role that serve one model, and the requests that wait for them."""

    #: empty: of requests that named none while none was served
    model: str
    role: Role
    instances: Count
    #: those that can take a request now
    free: Count
    waiting: Count
    #: those that wait, by class
    by_priority: dict[Priority, Count]
    #: those that wait and fit no instance that is free
    parked: Count
    #: what the stage takes for a request with default parameters; None where nothing was seen of it
    stage_s: Seconds | None


class TenantStatus(Struct, frozen=True):
    """A tenant that has live requests. A bound that is None is none."""

    name: str
    weight: float
    #: requests that wait for an encoder
    waiting: Count
    max_queued: Count | None
    #: live requests that do not
    running: Count
    max_running: Count | None


class ServerStatus(Struct, frozen=True):
    """The whole machine."""

    #: by role, in order of registration
    instances: tuple[InstanceStatus, ...]
    pools: tuple[PoolStatus, ...]
    #: live requests by state
    requests: dict[RequestState, Count]
    #: ended requests of which something is still in use somewhere
    settling: Count
    tenants: tuple[TenantStatus, ...]


class BrokerEndpoints(Struct, frozen=True):
    """Where the broker listens, with the ports that were picked for port 0. Empty: nowhere."""

    services: str
    clients: str
    admin: str = ""


class LoopLagStatus(Struct, frozen=True):
    """How late the broker's loop does what it was to do at a certain time: what everybody waits for in it."""

    #: the last time it was looked at
    last_s: Seconds = 0.0
    #: the moving average
    mean_s: Seconds = 0.0
    #: since the broker's start
    max_s: Seconds = 0.0


class MessageCounts(Struct, frozen=True):
    """Messages of services, clients and operators since the broker's start."""

    received: Count = 0
    #: those that changed nothing: stale, from a stranger, or out of order
    ignored: Count = 0
    #: frames that were no message
    malformed: Count = 0
    #: sent to peers that were gone, or read too slowly
    undeliverable: Count = 0


class BrokerStatus(Struct, frozen=True):
    """The process around the machine."""

    package_version: str
    protocol_version: int
    pid: int
    uptime_s: Seconds
    endpoints: BrokerEndpoints
    loop_lag: LoopLagStatus
    messages: MessageCounts
