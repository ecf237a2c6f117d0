"""What the machine knows of each thing: requests, instances, and what ties them together."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ...schemas.context import Priority, StageTimeouts
from ...schemas.manifest import ScalarFields, TensorManifest
from ...schemas.memory import PoolAddress, Slot
from ...schemas.roles import Role
from ...schemas.sampling import SamplingParams
from ...schemas.states import RequestState
from ...schemas.timing import StageTiming, TransferTiming
from ...schemas.transfer import TransferHeartbeatMsg, TransferRegisterMsg
from .settings import TenantSettings
from .slots import ReceiveSlots
from .story import Story

if TYPE_CHECKING:
    from .models import Model, Pool

#: a request and its attempt; messages of another attempt find nothing
LeaseKey = tuple[str, int]


#: of an instance that has sent no heartbeat yet
SAID_NOTHING = TransferHeartbeatMsg()


class Question(StrEnum):
    """What an instance must answer in time."""

    PUSH = "PUSH"
    ABORT = "ABORT"


class Phase(StrEnum):
    """Where a lease stands."""

    #: ALLOC is sent, the answer outstanding
    ALLOCATING = "allocating"
    #: PUSH is sent to the sender, the answer outstanding
    PUSHING = "pushing"
    #: WORK or READY is sent: the instance loads, waits for its compute thread, computes
    RUNNING = "running"
    #: the attempt is over, but a sender still writes the receive slot; ABORT follows its answer
    QUARANTINED = "quarantined"
    #: ABORT is sent, RELEASED outstanding
    ABORTING = "aborting"
    #: given back
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Lease:
    """One place of an instance's capacity, held by one attempt of one request."""

    key: LeaseKey
    request: "Request"
    instance: "Instance"
    phase: Phase
    #: the receive slot, until it is known to be quiet
    slot: Slot | None = None
    #: what it reads in place, until it is known to read no more
    reads: "Staged | None" = None
    #: the write into `slot`, until the writer has answered or is lost
    push: "Push | None" = None
    #: the writer was lost while it wrote; if it only hangs, it may write again
    writer_lost: bool = False
    #: the compute thread has taken it up
    started: bool = False
    #: when it was granted, and then when it was started
    since: float = 0.0
    #: what it still takes of its instance's time, as far as it is known, in seconds
    work_s: float = 0.0
    #: of the pool whose slot it reads in place, where the broker restarted and the owner has not come yet
    segment: str = ""


@dataclass(slots=True, eq=False)
class Push:
    """An engine of `sender` writes the receive slot of `lease`. It outlives the attempt: the sender must answer."""

    sender: "Instance"
    lease: Lease
    staged: "Staged"


@dataclass(slots=True, eq=False)
class Staged:
    """The output of a stage, in the pool of `instance` until the broker releases it.

    That is when no request has it as its input and nobody reads it.
    """

    #: the attempt that staged it
    key: LeaseKey
    request: "Request"
    instance: "Instance"
    slot: Slot
    manifest: TensorManifest
    scalar_fields: ScalarFields
    #: the leases that read it in place: one of the attempt that runs, the others of attempts that wind down
    readers: dict[Lease, None] = field(default_factory=dict[Lease, None])


@dataclass(slots=True, eq=False)
class Tenant:
    """On whose account requests go; it is known while it has any."""

    name: str
    settings: TenantSettings
    #: requests that wait for an encoder
    waiting: int = 0
    #: live requests that do not
    running: int = 0

    @property
    def full(self) -> bool:
        """Whether it has all in the pools that it may have."""
        most = self.settings.max_running
        return most is not None and self.running >= most


@dataclass(slots=True, eq=False)
class Request:
    """A request from acceptance until it has ended and nothing of it is in use anywhere."""

    request_id: str
    #: routing id of its client
    client: bytes
    params: SamplingParams
    model: "Model"
    tenant: Tenant
    #: counts all accepted requests
    arrival: int
    accepted_at: float
    timeout_s: float
    #: its story so far
    story: Story
    priority: Priority = Priority.NORMAL
    stage_timeout_s: StageTimeouts = field(default_factory=dict[Role, float])
    cancel_on_disconnect: bool = False
    #: the number of the attempt that runs or waits
    attempt: int = 1
    #: attempts that failed, with the reason of each
    reasons: list[str] = field(default_factory=list[str])
    #: peers on which attempts failed
    failed_on: set[bytes] = field(default_factory=set[bytes])
    state: RequestState = RequestState.PENDING
    #: of the attempt that runs; None while it waits in a queue
    lease: Lease | None = None
    #: the input of the stage it is in or waits for
    staged: Staged | None = None
    #: it left the encoder's queue, and counts as running for its tenant
    admitted: bool = False
    #: taken up from services after a restart: others may come that hold more of it
    unsettled: bool = False
    #: leases and pushes that are not over; the record stays until there is none
    loose_ends: int = 0
    #: peers of the stage it waits for that can never hold its input
    too_small: set[bytes] = field(default_factory=set[bytes])
    queued_at: float = 0.0
    #: waited for the present stage so far, in seconds
    queue_s: float = 0.0
    stages: list[StageTiming] = field(default_factory=list[StageTiming])
    transfers: list[TransferTiming] = field(default_factory=list[TransferTiming])

    @property
    def deadline(self) -> float:
        """When its time is over."""
        return self.accepted_at + self.timeout_s

    @property
    def source(self) -> Staged:
        """Return its input; only the first stage has none."""
        if self.staged is None:
            raise LookupError(f"request {self.request_id} has no input")
        return self.staged


@dataclass(slots=True, eq=False)
class Instance:
    """One incarnation of a service."""

    peer: bytes
    #: what it said at registration
    registration: TransferRegisterMsg
    #: counts all registrations
    order: int
    slots: ReceiveSlots
    #: it is lost when nothing was heard of it until then
    expires_at: float
    #: len(leases) ≤ capacity; a lease is in here until it is given back, exactly once
    leases: dict[LeaseKey, Lease] = field(default_factory=dict[LeaseKey, Lease])
    #: outputs in its pool that are not released
    staged: dict[LeaseKey, Staged] = field(default_factory=dict[LeaseKey, Staged])
    #: writes of its engine that it must still answer for
    pushes: dict[LeaseKey, Push] = field(default_factory=dict[LeaseKey, Push])
    #: what it was asked and has not answered, with the time by which it must
    questions: dict[Question, dict[LeaseKey, float]] = field(default_factory=lambda: {kind: {} for kind in Question})
    #: those that were told of its pool, by peer
    known_to: "dict[bytes, Instance]" = field(default_factory=dict[bytes, "Instance"])
    #: those whose pools it was told of, by peer
    knows: "dict[bytes, Instance]" = field(default_factory=dict[bytes, "Instance"])
    #: one of each model that it serves
    pools: "tuple[Pool, ...]" = ()
    #: what it said last of itself
    load: TransferHeartbeatMsg = SAID_NOTHING
    #: what its leases still take of its time, in seconds
    outstanding_s: float = 0.0
    #: how long it takes over what others take one second for
    slowness: float = 1.0
    #: attempts that failed on it in a row, earlier incarnations counted in
    failures: int = 0
    #: it failed too often, and is given one request at a time until it ends one
    on_probation: bool = False
    #: False as soon as it is lost
    alive: bool = True
    #: it had no room, or failed too often, and is passed over for a while
    resting: bool = False
    #: is to be given no more work: an operator's wish
    draining: bool = False
    #: wants no more work: its own wish, and it leaves when it is told that nothing of it is needed
    leaving: bool = False
    #: it has been told so
    dismissed: bool = False
    #: counts all leases granted, when its last one was
    last_granted: int = 0

    @property
    def instance_id(self) -> str:
        """Its name."""
        return self.registration.instance_id

    @property
    def role(self) -> Role:
        """What it computes."""
        return self.registration.role

    @property
    def free_leases(self) -> int:
        """How many more requests it takes."""
        return self.registration.capacity - len(self.leases)

    @property
    def takes_work(self) -> bool:
        """Whether it is given requests, now or when it has room."""
        return self.alive and not self.draining and not self.leaving

    @property
    def is_free(self) -> bool:
        """Whether it can be given a request now."""
        room = not self.leases if self.on_probation else self.free_leases > 0
        return room and self.takes_work and not self.resting

    def has_loaded(self, model: str) -> bool:
        """Say whether the weights of `model` are in its memory, as far as it said."""
        return self.load.loaded is None or model in self.load.loaded

    @property
    def pool(self) -> PoolAddress:
        """How others reach its pool."""
        return self.registration.pool

    def __str__(self) -> str:
        return f"{self.role} {self.instance_id}"
