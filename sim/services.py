"""A simulated service: it answers commands as a true one does, and computes one request at a time."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from ..broker.machine.events import ServiceSpoke
from ..schemas.errors import TransferError
from ..schemas.identifiers import routing_id
from ..schemas.manifest import TensorManifest
from ..schemas.memory import EngineName, NixlAddress, PoolAddress, Slot
from ..schemas.roles import Role
from ..schemas.sampling import SamplingParams
from ..schemas.timing import StageTiming
from ..schemas.transfer import (
    PROTOCOL_VERSION,
    BrokerMsg,
    ServiceMsg,
    TransferAbortMsg,
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferDoneMsg,
    TransferDrainedMsg,
    TransferDrainMsg,
    TransferFailedMsg,
    TransferHeartbeatMsg,
    TransferLeaveMsg,
    TransferLoadedMsg,
    TransferProgressMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferPushMsg,
    TransferReadyMsg,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)
from .agenda import Agenda
from .plan import Network

Key = tuple[str, int]

#: a pool that is never full: what an instance has room for is for its capacity to say
POOL_BYTES = 2**47
#: where outputs lie in it, behind all receive slots
_OUTPUTS = 2**46
#: the ids of dynamic receive slots
_FIRST_DYNAMIC = 2**20

_ALIVE = TransferHeartbeatMsg()
_UNLUCKY = TransferError("simulated").info()


class Make(Protocol):
    """What instances of one group are alike in."""

    @property
    def role(self) -> Role:
        """What they compute."""
        ...

    @property
    def capacity(self) -> int:
        """Requests each takes at once."""
        ...

    @property
    def speed(self) -> float:
        """How fast they compute."""
        ...

    @property
    def slot_sizes(self) -> tuple[int, ...]:
        """Their pre-allocated receive slots."""
        ...

    @property
    def slot_bytes(self) -> int:
        """What the largest input takes."""
        ...


class Surroundings(Protocol):
    """What a service needs of the world around it."""

    agenda: Agenda
    network: Network
    #: steps between two PROGRESS
    progress_every: int
    #: lets the broker take a message in that has arrived
    hear: Callable[[ServiceSpoke], None]
    #: returns what a stage of a request takes at speed 1
    compute_s: Callable[[str, Role], float]

    def output(self, params: SamplingParams, role: Role) -> TensorManifest:
        """Return what the stage puts out."""
        ...

    def fails(self, role: Role) -> bool:
        """Say whether an attempt that was computed to its end fails, by chance."""
        ...

    def computed(self, role: Role, begun: float) -> None:
        """Note that an instance has computed from `begun` until now."""
        ...

    def reaches(self, pool: PoolAddress) -> bool:
        """Say whether the owner of the pool lives."""
        ...

    def departed(self, service: "SimService", *, at_once: bool) -> None:
        """Note that the service is gone, and whether it comes again at once or after a restart of its process."""
        ...


class Job:
    """One attempt at one request."""

    __slots__ = ("abort", "begun", "compute_s", "dynamic", "key", "load_s", "loaded", "over", "params", "step", "steps")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.params: SamplingParams | None = None
        #: its receive slot, where it is none of the pre-allocated ones
        self.dynamic: Slot | None = None
        self.load_s = 0.0
        #: when its input was at hand
        self.loaded = 0.0
        #: when the compute thread took it up
        self.begun = 0.0
        self.compute_s = 0.0
        self.steps = 1
        self.step = 0
        #: it is to stop at its next step
        self.abort: TransferAbortMsg | None = None
        #: nothing comes of it any more
        self.over = False


class SimService:
    """One incarnation of one instance."""

    __slots__ = (
        "_around", "_beat", "_beats", "_computing", "_host_id", "_jobs", "_phase", "_queue", "_slots", "_staged",
        "alive", "incarnation", "instance_id", "make", "peer", "pool", "role",
    )  # fmt: skip

    def __init__(
        self, around: Surroundings, make: Make, instance_id: str, incarnation: int, host_id: str, phase: float
    ) -> None:
        self._around = around
        #: empty: one of its own
        self._host_id = host_id
        #: of its heartbeats among those of others
        self._phase = phase
        self.make = make
        self.role = make.role
        self.instance_id = instance_id
        self.incarnation = incarnation
        self.peer = routing_id(instance_id, incarnation)
        name = f"{instance_id}-{incarnation}"
        nixl = NixlAddress(name, b"", 0)
        shared = (EngineName.SHM,) if host_id else ()
        engines = (*shared, EngineName.NIXL)
        self.pool = PoolAddress(host_id or f"host of {instance_id}", f"/{name}", POOL_BYTES, engines, nixl)
        self.alive = True
        self._beat = ServiceSpoke(self.peer, _ALIVE)
        self._beats = False
        self._jobs: dict[Key, Job] = {}
        #: those whose input is loaded, in order
        self._queue = deque[Job]()
        self._computing: Job | None = None
        self._staged: set[Key] = set()
        #: numbers of the dynamic receive slots in use
        self._slots: set[int] = set()

    @property
    def holds(self) -> int:
        """How many jobs and staged outputs it has."""
        return len(self._jobs) + len(self._staged)

    # ------------------------------------------------------------------------------- its own life

    def register(self) -> None:
        """Offer itself to the broker."""
        sizes = self.make.slot_sizes
        slots = tuple(Slot(number, number * self.make.slot_bytes, size) for number, size in enumerate(sizes))
        self._say(
            TransferRegisterMsg(
                PROTOCOL_VERSION,
                "simulated",
                self.instance_id,
                self.incarnation,
                self.role,
                self.make.capacity,
                self.pool,
                slots,
            )
        )

    def successor(self) -> "SimService":
        """Return the next incarnation."""
        return SimService(self._around, self.make, self.instance_id, self.incarnation + 1, self._host_id, self._phase)

    def drain(self) -> None:
        """Ask to leave when all is done."""
        if self.alive:
            self._say(TransferDrainMsg())

    def die(self) -> None:
        """Be gone, with all it has."""
        self.alive = False
        if self._computing is not None:
            self._around.computed(self.role, self._computing.begun)

    def _beat_again(self, every_s: float) -> None:
        if self.alive:
            self._around.agenda.after(self._around.network.latency_s, self._around.hear, self._beat)
            self._around.agenda.standing(every_s, self._beat_again, every_s)

    def _say(self, msg: ServiceMsg) -> None:
        around = self._around
        around.agenda.after(around.network.latency_s, around.hear, ServiceSpoke(self.peer, msg))

    # ------------------------------------------------------------------------------- what it is told

    def on_message(self, msg: BrokerMsg) -> None:
        """Take a message in that has arrived."""
        handle = self.HANDLERS.get(type(msg))
        if handle is not None and self.alive:
            handle(self, msg)

    def _on_ack(self, msg: TransferRegisterAckMsg) -> None:
        if not self._beats:
            self._beats = True
            self._around.agenda.standing(msg.heartbeat_s * self._phase, self._beat_again, msg.heartbeat_s)

    def _on_again(self, _msg: TransferRegisterAgainMsg) -> None:
        self.die()
        self._around.departed(self, at_once=True)

    def _on_drained(self, _msg: TransferDrainedMsg) -> None:
        self._say(TransferLeaveMsg("restarted"))
        self.die()
        self._around.departed(self, at_once=False)

    def _on_work(self, msg: TransferWorkMsg) -> None:
        job = self._jobs[msg.request_id, msg.attempt] = Job((msg.request_id, msg.attempt))
        self._take_up(job, msg.context.params)
        self._enqueue(job)

    def _on_alloc(self, msg: TransferAllocMsg) -> None:
        job = self._jobs[msg.request_id, msg.attempt] = Job((msg.request_id, msg.attempt))
        number = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        self._slots.add(number)
        place = len(self.make.slot_sizes) + number
        job.dynamic = Slot(_FIRST_DYNAMIC + number, place * self.make.slot_bytes, self.make.slot_bytes)
        self._say(TransferAllocatedMsg(*job.key, job.dynamic))

    def _on_push(self, msg: TransferPushMsg) -> None:
        network = self._around.network
        self._around.agenda.after(network.setup_s + msg.data_size / network.bytes_per_s, self._pushed, msg)

    def _on_ready(self, msg: TransferReadyMsg) -> None:
        key = (msg.request_id, msg.attempt)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = Job(key)
        self._take_up(job, msg.context.params)
        job.load_s = msg.manifest.data_size / self._around.network.copy_bytes_per_s
        self._around.agenda.after(job.load_s, self._loaded, job)

    def _on_release(self, msg: TransferReleaseMsg) -> None:
        self._staged.discard((msg.request_id, msg.attempt))

    def _on_abort(self, msg: TransferAbortMsg) -> None:
        job = self._jobs.get((msg.request_id, msg.attempt))
        if job is None:
            self._staged.discard((msg.request_id, msg.attempt))
            self._say_released(msg)
            return
        job.abort = msg
        if job is self._computing:
            step_s = job.compute_s / job.steps
            left_s = step_s - (self._around.agenda.now - job.begun) % step_s if step_s else 0.0
            self._around.agenda.after(left_s, self._stop, job)
        else:
            self._quit(job, msg)

    # ------------------------------------------------------------------------------- what it does

    def _take_up(self, job: Job, params: SamplingParams) -> None:
        job.params = params
        job.compute_s = self._around.compute_s(job.key[0], self.role) / self.make.speed
        if self.role is Role.DENOISER:
            job.steps = params.num_inference_steps

    def _pushed(self, msg: TransferPushMsg) -> None:
        if not self.alive:
            return
        key = (msg.request_id, msg.attempt)
        if self._around.reaches(msg.pool):
            network = self._around.network
            self._say(TransferPushedMsg(*key, msg.data_size, network.setup_s + msg.data_size / network.bytes_per_s))
        else:
            self._say(TransferPushFailedMsg(*key, TransferError(f"{msg.receiver} is gone").info()))

    def _loaded(self, job: Job) -> None:
        if job.over or not self.alive:
            return
        self._free_slot(job)
        self._say(TransferLoadedMsg(*job.key))
        self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        job.loaded = self._around.agenda.now
        self._queue.append(job)
        self._compute()

    def _compute(self) -> None:
        if self._computing is not None or not self._queue:
            return
        job = self._computing = self._queue.popleft()
        agenda = self._around.agenda
        job.begun = agenda.now
        self._say(TransferStartedMsg(*job.key))
        every = self._around.progress_every
        if every and self.role is Role.DENOISER and every < job.steps:
            agenda.after(every * job.compute_s / job.steps, self._progress, job)
        agenda.after(job.compute_s, self._computed, job)

    def _progress(self, job: Job) -> None:
        if job.over or job.abort is not None or not self.alive:
            return
        every = self._around.progress_every
        job.step += every
        self._say(TransferProgressMsg(*job.key, job.step, job.steps))
        if job.step + every < job.steps:
            self._around.agenda.after(every * job.compute_s / job.steps, self._progress, job)

    def _computed(self, job: Job) -> None:
        if job.over or not self.alive:
            return
        if job.abort is not None:
            self._stop(job)
            return
        self._computing = None
        self._around.computed(self.role, job.begun)
        if self._around.fails(self.role):
            self._end(job)
            self._say(TransferFailedMsg(*job.key, _UNLUCKY))
        else:
            nbytes = self._output(job).data_size
            self._around.agenda.after(nbytes / self._around.network.copy_bytes_per_s, self._put_out, job)
        self._compute()

    def _put_out(self, job: Job) -> None:
        if job.over or not self.alive:
            return
        self._end(job)
        output = self._output(job)
        timing = StageTiming(
            self.role,
            self.instance_id,
            job.load_s,
            job.begun - job.loaded,
            job.compute_s,
            output.data_size / self._around.network.copy_bytes_per_s,
        )
        if self.role is Role.DECODER:
            self._say(TransferDoneMsg(*job.key, timing))
        else:
            self._staged.add(job.key)
            self._say(TransferStagedMsg(*job.key, Slot(0, _OUTPUTS, output.data_size), output, timing))

    def _stop(self, job: Job) -> None:
        """Stop what is computed, between two steps."""
        if job.over or job.abort is None or not self.alive:
            return
        self._computing = None
        self._around.computed(self.role, job.begun)
        self._quit(job, job.abort)
        self._compute()

    def _quit(self, job: Job, msg: TransferAbortMsg) -> None:
        if job in self._queue:
            self._queue.remove(job)
        self._end(job)
        self._say_released(msg)

    def _say_released(self, msg: TransferAbortMsg) -> None:
        self._say(TransferReleasedMsg(msg.request_id, msg.attempt, slot_retired=msg.writer_lost))

    def _end(self, job: Job) -> None:
        job.over = True
        self._free_slot(job)
        del self._jobs[job.key]

    def _free_slot(self, job: Job) -> None:
        if job.dynamic is not None:
            self._slots.discard(job.dynamic.slot_id - _FIRST_DYNAMIC)
            job.dynamic = None

    def _output(self, job: Job) -> TensorManifest:
        if job.params is None:
            raise LookupError(f"job {job.key} has not begun")
        return self._around.output(job.params, self.role)

    #: the others need no answer
    HANDLERS: ClassVar[Mapping[type, Callable[..., None]]] = {
        TransferRegisterAckMsg: _on_ack,
        TransferRegisterAgainMsg: _on_again,
        TransferDrainedMsg: _on_drained,
        TransferWorkMsg: _on_work,
        TransferAllocMsg: _on_alloc,
        TransferPushMsg: _on_push,
        TransferReadyMsg: _on_ready,
        TransferReleaseMsg: _on_release,
        TransferAbortMsg: _on_abort,
    }


#: what a service is told that changes anything for it
HEARD = frozenset(SimService.HANDLERS)
