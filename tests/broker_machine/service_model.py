"""An honest service, as the machine sees it: late, repetitive, mortal, but true to the protocol.

It stands in for no code of ours: it does what the docstrings in `schemas/transfer.py` promise, and nothing else.
Messages wait in `inbox` and `outbox`, in order, until somebody moves them. `memory` knows who really uses which slot.
Each incarnation has a pool of its own, with another segment and another NIXL agent.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from triptych.schemas.context import RequestContext
from triptych.schemas.errors import PayloadTooLarge, PoolExhausted, TransferError, WriteOverdue
from triptych.schemas.holdings import HeldJob, HeldOutput
from triptych.schemas.identifiers import routing_id
from triptych.schemas.manifest import EMPTY_MANIFEST, TensorEntry, TensorManifest
from triptych.schemas.memory import EngineName, NixlAddress, PoolAddress, Slot
from triptych.schemas.roles import Role
from triptych.schemas.timing import StageTiming
from triptych.schemas.transfer import (
    BrokerMsg,
    ServiceMsg,
    TransferAbortMsg,
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferAllocRefusedMsg,
    TransferDoneMsg,
    TransferDrainedMsg,
    TransferDrainMsg,
    TransferExpectMsg,
    TransferFailedMsg,
    TransferForgetMsg,
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

from .kit import registration

Key = tuple[str, int]

#: dynamic receive slots and staged outputs are blocks of this size, behind the pre-allocated slots
BLOCK = 4096
BLOCKS = 6
FIXED_SIZES = (512, 1024, 4096)
FIRST_BLOCK = 2 * BLOCK
POOL_BYTES = FIRST_BLOCK + BLOCKS * BLOCK
DATA_SIZES = (512, 1024, 4096, 0)

SHM, NIXL = EngineName.SHM, EngineName.NIXL
#: where a service may be and how it may move payloads; one with shared memory alone reaches only its own host
PLACES = (
    *[("north", (SHM, NIXL))] * 4,
    *[("south", (SHM, NIXL))] * 2,
    *[("north", (NIXL,))] * 2,
    ("north", (NIXL, SHM)),
    ("north", (SHM,)),
)

#: returns a number below its argument: a random one, or one that hypothesis draws
Choose = Callable[[int], int]


def owner_of(pool: PoolAddress) -> bytes:
    """Return the peer whose pool it is."""
    name, _, incarnation = pool.segment[1:].rpartition("-")
    return routing_id(name, int(incarnation))


def segment_of(peer: bytes) -> str:
    """Return the segment of a peer's pool."""
    name, _, incarnation = peer.decode().rpartition("/")
    return f"/{name}-{int(incarnation, 16)}"


class Memory:
    """Who reads or writes each slot, for real. The machine hands none out that anybody uses, nor has it released."""

    def __init__(self) -> None:
        #: receive slots
        self.users: dict[tuple[bytes, int], set[tuple[bytes, Key, str]]] = {}
        #: staged outputs that are read in place
        self.readers: dict[tuple[bytes, int], set[tuple[bytes, Key]]] = {}
        #: jobs that read what was overwritten meanwhile; nobody may see what they give
        self.spoilt: set[tuple[bytes, Key]] = set()

    def begin(self, owner: bytes, slot: Slot, who: bytes, key: Key, use: str) -> None:
        users = self.users.setdefault((owner, slot.slot_id), set())
        assert not users, f"slot {slot.slot_id} of {owner!r} is given to {key} while {users} use it"
        users.add((who, key, use))

    def end(self, owner: bytes, slot: Slot, who: bytes, key: Key, use: str) -> None:
        self.users.get((owner, slot.slot_id), set()).discard((who, key, use))

    def begin_reading(self, owner: bytes, slot: Slot, who: bytes, key: Key) -> None:
        readers = self.readers.setdefault((owner, slot.slot_id), set())
        others = {user for user in readers if user[1][0] != key[0]}
        assert not others, f"slot {slot.slot_id} of {owner!r} is given to {key} to read while {others} read it"
        readers.add((who, key))

    def end_reading(self, owner: bytes, slot: Slot, who: bytes, key: Key) -> None:
        self.readers.get((owner, slot.slot_id), set()).discard((who, key))

    def overwrite(self, owner: bytes, slot_id: int | None = None) -> None:
        """Note that the owner writes something else into a staged slot, or into all its pool."""
        for place, readers in self.readers.items():
            if place == (owner, slot_id) or (slot_id is None and place[0] == owner):
                self.spoilt |= readers
                readers.clear()

    def forget(self, peer: bytes) -> None:
        """Note that the process behind `peer` touches nothing any more, and that its pool is gone."""
        for used in (self.users, self.readers):
            for place in [place for place in used if place[0] == peer]:
                del used[place]
            for users in used.values():
                users -= {user for user in users if user[0] == peer}


@dataclass
class Job:
    """Work of one attempt. `slot` is the receive slot until it is loaded, `reads` what is read in place, and whose."""

    slot: Slot | None = None
    reads: tuple[bytes, Slot] | None = None
    #: it has been told to go ahead (WORK, READY)
    ready: bool = False
    loaded: bool = False
    started: bool = False
    abort: TransferAbortMsg | None = None
    context: RequestContext | None = None


@dataclass
class Write:
    """A push that runs."""

    msg: TransferPushMsg
    receiver: bytes
    overdue: bool = False


@dataclass
class Service:
    role: Role
    name: str
    incarnation: int
    capacity: int
    memory: Memory
    choose: Choose
    #: host and engines
    place: tuple[str, tuple[EngineName, ...]] = PLACES[0]
    inbox: deque[BrokerMsg] = field(default_factory=deque)
    outbox: deque[tuple[ServiceMsg, tuple[bytes, ...]]] = field(default_factory=deque)
    hangs: bool = False
    #: said LEAVE, or was killed
    gone: bool = False
    draining: bool = False
    #: its loop goes on, and its compute thread does not
    stuck: bool = False

    def __post_init__(self) -> None:
        self.reset()
        self.say_hello()

    # ------------------------------------------------------------------------------- its own state

    @property
    def peer(self) -> bytes:
        return routing_id(self.name, self.incarnation)

    def reset(self) -> None:
        self.jobs: dict[Key, Job] = {}
        self.staged: dict[Key, int] = {}
        self.writes: dict[Key, Write] = {}
        self.blocks = set(range(BLOCKS))
        self.lost_blocks: set[int] = set()
        #: staged outputs that are to go once the pushes of them are over
        self.released: set[Key] = set()
        #: hops it was told to expect
        self.expected: dict[Key, Slot] = {}
        #: whose pools it was told of
        self.knows: set[bytes] = set()
        #: it registered with a broker that restarted, which cannot tell it of those that went meanwhile
        self.survived = False
        #: fixed slots that were not quiet when it registered
        self.withheld: set[int] = set()
        #: results that the broker has not said it has
        self.delivered: dict[Key, tuple[TransferDoneMsg, RequestContext]] = {}
        #: what was staged, as it was told
        self.outputs: dict[Key, tuple[TransferStagedMsg, RequestContext]] = {}
        #: REGISTER is not acknowledged; what else there is to say waits
        self.registering = False
        self.held_back: list[tuple[ServiceMsg, tuple[bytes, ...]]] = []

    def hello(self) -> TransferRegisterMsg:
        slots = []
        if self.role is not Role.ENCODER and self.name[-1] != "0":
            offset = 0
            for slot_id, size in enumerate(FIXED_SIZES):
                slots.append(Slot(slot_id, offset, size))
                offset += size
        host, engines = self.place
        nixl = NixlAddress(f"{self.name}-{self.incarnation}", b"", 0) if NIXL in engines else None
        return registration(
            self.name,
            incarnation=self.incarnation,
            capacity=self.capacity,
            pool=PoolAddress(host, f"/{self.name}-{self.incarnation}", POOL_BYTES, engines, nixl),
            receive_slots=tuple(slot for slot in slots if slot.slot_id not in self.withheld),
            jobs=tuple(self.held_jobs()),
            outputs=tuple(self.held_outputs()),
            models=("one", "two") if self.name[-1] == "0" else ("two",),
        )

    def held_jobs(self) -> Iterator[HeldJob]:
        for key, job in self.jobs.items():
            if job.ready and job.abort is None and job.context is not None:
                slot = job.slot if job.reads is None else job.reads[1]
                segment = "" if job.reads is None else segment_of(job.reads[0])
                yield HeldJob(*key, job.context, slot, segment, job.started)
        for key, (_, context) in self.delivered.items():
            yield HeldJob(*key, context, started=True)

    def held_outputs(self) -> Iterator[HeldOutput]:
        for key, (msg, context) in self.outputs.items():
            if key in self.staged and key not in self.released:
                yield HeldOutput(*key, context, msg.slot, msg.manifest, msg.timing, msg.scalar_fields)

    def say_hello(self) -> None:
        hello = self.hello()
        self.offered = len(hello.receive_slots)
        self.registering = True
        self.outbox.append((hello, ()))

    def say_hello_again(self) -> None:
        """Register with a broker that restarted: with what is held, and without the slots that are not quiet."""
        for key, job in list(self.jobs.items()):
            if not job.ready:  # ALLOC, and perhaps a PUSH, of which nothing will come
                del self.jobs[key]
                self.give_up_slot(job.slot)
            elif job.abort is not None and job.slot is not None:
                self.withheld.add(job.slot.slot_id)
        for key, slot in self.expected.items():
            if key not in self.jobs:
                self.withheld.add(slot.slot_id)
        self.expected.clear()
        self.survived = True
        self.draining = False
        self.say_hello()

    def give_up_slot(self, slot: Slot | None) -> None:
        if slot is not None:
            self.withheld.add(slot.slot_id)
            self.drop_slot(slot, lost=True)

    def on_register_ack(self, _msg: TransferRegisterAckMsg) -> None:
        if self.registering:
            self.registering = False
            for msg, _ in self.delivered.values():
                self.say(msg)
            held_back, self.held_back = self.held_back, []
            for msg, attachments in held_back:
                if not isinstance(msg, TransferDoneMsg):
                    self.say(msg, *attachments)

    def come_again(self, *, lost: bool = True) -> None:
        """Start over as a new incarnation, on a new connection. Once it was lost, its old memory may be used again."""
        if lost:
            self.memory.overwrite(self.peer)
        self.memory.forget(self.peer)
        self.inbox.clear()
        self.outbox.clear()
        self.reset()
        self.incarnation += 1
        self.draining = False
        self.say_hello()

    def say(self, msg: ServiceMsg, *attachments: bytes) -> None:
        if self.registering and not isinstance(msg, TransferHeartbeatMsg | TransferLeaveMsg):
            self.held_back.append((msg, attachments))
            return
        self.outbox.append((msg, attachments))
        # a repeated refusal could not be told from a second one, after a second ALLOC; the link must not repeat it
        if not isinstance(msg, TransferAllocRefusedMsg) and self.choose(12) == 11:
            self.outbox.append((msg, attachments))

    def new_block(self) -> int | None:
        free = sorted(self.blocks)
        if not free:
            return None
        block = free[self.choose(len(free))]
        self.blocks.remove(block)
        return block

    def block_slot(self, block: int) -> Slot:
        return Slot(len(FIXED_SIZES) + block, FIRST_BLOCK + block * BLOCK, BLOCK)

    def drop_slot(self, slot: Slot, *, lost: bool = False) -> None:
        """Make a dynamic slot a free block again, unless a lost writer may still write it."""
        block = slot.slot_id - len(FIXED_SIZES)
        if block >= 0:
            (self.lost_blocks if lost else self.blocks).add(block)

    def drop_staged(self, key: Key) -> None:
        """Make the block of a staged output a free one, to be written again at once."""
        block = self.staged.pop(key)
        self.outputs.pop(key, None)
        self.memory.overwrite(self.peer, self.block_slot(block).slot_id)
        self.blocks.add(block)

    # ------------------------------------------------------------------------------- what it is told

    def hear(self) -> None:
        """Take one message in."""
        msg = self.inbox.popleft()
        handler = getattr(self, f"on_{msg.__struct_config__.tag.removeprefix('transfer_')}", None)
        if handler is not None:
            handler(msg)

    def on_register_again(self, msg: TransferRegisterAgainMsg) -> None:
        if msg.exceed or self.choose(8) == 7:
            self.come_again(lost=msg.exceed > 0)
        elif not self.registering:
            self.say_hello_again()

    def on_work(self, msg: TransferWorkMsg) -> None:
        self.jobs[msg.request_id, msg.attempt] = Job(ready=True, loaded=True, context=msg.context)

    def on_alloc(self, msg: TransferAllocMsg) -> None:
        key = (msg.request_id, msg.attempt)
        if self.name[-1] == "0" and self.choose(20) == 0:
            error = PayloadTooLarge(msg.size, 0, "pool")
            self.say(TransferAllocRefusedMsg(*key, error.info()))
            return
        block = self.new_block()
        if block is None:
            self.say(TransferAllocRefusedMsg(*key, PoolExhausted(msg.size, 0).info()))
            return
        slot = self.block_slot(block)
        self.jobs[key] = Job(slot)
        self.say(TransferAllocatedMsg(*key, slot))

    def on_push(self, msg: TransferPushMsg) -> None:
        assert (msg.request_id, msg.staged_attempt) in self.staged, "a push of what is not staged"
        self.knows.add(owner_of(msg.pool))
        places = (peer for (peer, _), users in self.memory.users.items() if self._is_mine(users, msg))
        # where the receiver is gone, the engine writes into a segment that nobody has any more
        self.writes[msg.request_id, msg.attempt] = Write(msg, next(places, b""))

    def _is_mine(self, users: set[tuple[bytes, Key, str]], msg: TransferPushMsg) -> bool:
        return (self.peer, (msg.request_id, msg.attempt), "w") in users

    def on_ready(self, msg: TransferReadyMsg) -> None:
        key = (msg.request_id, msg.attempt)
        job = self.jobs.setdefault(key, Job())
        job.ready = True
        job.context = msg.context
        if msg.pool is None:
            del self.expected[key]
            job.slot = msg.slot
        else:
            job.reads = (owner_of(msg.pool), msg.slot)
            self.knows.add(owner_of(msg.pool))

    def on_expect(self, msg: TransferExpectMsg) -> None:
        self.expected[msg.request_id, msg.attempt] = msg.slot
        self.knows.add(owner_of(msg.pool))

    def on_forget(self, msg: TransferForgetMsg) -> None:
        self.knows.remove(owner_of(msg.pool))

    def on_release(self, msg: TransferReleaseMsg) -> None:
        key = (msg.request_id, msg.attempt)
        if key not in self.staged:
            self.delivered.pop(key, None)
            return
        if self.is_written(key):
            self.released.add(key)
        else:
            self.drop_staged(key)

    def is_written(self, staged: Key) -> bool:
        """Say whether any push of this output runs."""
        return any((one.msg.request_id, one.msg.staged_attempt) == staged for one in self.writes.values())

    def on_drained(self, _msg: TransferDrainedMsg) -> None:
        held = (self.jobs, self.staged, self.writes, self.expected, self.delivered)
        assert self.draining, "dismissed without asking"
        assert not any(held), f"dismissed with {held}"

    def on_abort(self, msg: TransferAbortMsg) -> None:
        key = (msg.request_id, msg.attempt)
        expected = self.expected.pop(key, None)
        if expected is not None and msg.writer_lost:
            self.withheld.add(expected.slot_id)
        self.delivered.pop(key, None)
        job = self.jobs.get(key)
        if job is not None:
            job.abort = msg
            return
        if key in self.staged:
            self.drop_staged(key)
        self.say(TransferReleasedMsg(*key, slot_retired=msg.writer_lost))

    # ------------------------------------------------------------------------------- what it does

    def chores(self) -> list[Callable[[], None]]:
        """Everything it could do next."""
        chores: list[Callable[[], None]] = [lambda key=key: self.end_write(key) for key in self.writes]
        for key, job in () if self.stuck else self.jobs.items():
            if job.abort is not None:
                chores.append(lambda key=key: self.quit(key))
            elif job.ready:
                chores.append(lambda key=key: self.go_on(key))
        return chores

    def end_write(self, key: Key, *, well: bool | None = None) -> None:
        write = self.writes[key]
        msg = write.msg
        if well is None and not write.overdue and self.choose(10) == 9:
            write.overdue = True
            self.say(TransferPushFailedMsg(*key, WriteOverdue("nothing moved", 1.0).info()))
            return
        del self.writes[key]
        self.memory.end(write.receiver, msg.slot, self.peer, key, "w")
        if self.choose(8) == 7 if well is None else not well:
            self.say(TransferPushFailedMsg(*key, TransferError("no route").info()))
        else:
            self.say(TransferPushedMsg(*key, msg.data_size, 0.1))
        staged = (msg.request_id, msg.staged_attempt)
        if staged in self.released and not self.is_written(staged):
            self.released.remove(staged)
            self.drop_staged(staged)

    def quit(self, key: Key) -> None:
        """Answer ABORT."""
        job = self.jobs.pop(key)
        lost = job.abort is not None and job.abort.writer_lost
        if lost and job.slot is not None:
            self.withheld.add(job.slot.slot_id)
        self.end_load(key, job, lost=lost)
        self.say(TransferReleasedMsg(*key, slot_retired=lost))

    def end_load(self, key: Key, job: Job, *, lost: bool = False) -> None:
        if job.slot is not None:
            self.memory.end(self.peer, job.slot, self.peer, key, "r")
            self.drop_slot(job.slot, lost=lost)
            job.slot = None
        if job.reads is not None:
            self.memory.end_reading(*job.reads, self.peer, key)
            job.reads = None

    def go_on(self, key: Key) -> None:
        job = self.jobs[key]
        if not job.loaded:
            job.loaded = True
            if self.choose(4):  # else the end of the job tells that the slot is quiet
                self.end_load(key, job)
                self.say(TransferLoadedMsg(*key))
        elif not job.started:
            job.started = True
            self.say(TransferStartedMsg(*key))
        elif self.choose(3) == 2:
            self.say(TransferProgressMsg(*key, 1, 2))
        else:
            self.finish(key)

    def finish(self, key: Key) -> None:
        job = self.jobs.pop(key)
        self.end_load(key, job)
        timing = StageTiming(self.role, self.name)
        if self.choose(10) == 9:
            self.say(TransferFailedMsg(*key, TransferError("out of luck").info()))
        elif self.role is Role.DECODER:
            done = TransferDoneMsg(*key, timing)
            if job.context is not None:
                self.delivered[key] = (done, job.context)
            self.say(done)
        else:
            block = self.new_block()
            if block is None:
                self.say(TransferFailedMsg(*key, PoolExhausted(BLOCK, 0).info()))
                return
            self.staged[key] = block
            size = DATA_SIZES[self.choose(len(DATA_SIZES))]
            entries = (TensorEntry("x", None, "uint8", (size,), 0, size),) if size else ()
            manifest = TensorManifest(size, entries) if size else EMPTY_MANIFEST
            staged = TransferStagedMsg(*key, self.block_slot(block), manifest, timing)
            if job.context is not None:
                self.outputs[key] = (staged, job.context)
            self.say(staged)

    def beat(self) -> None:
        self.say(TransferHeartbeatMsg())

    def drain(self) -> None:
        self.draining = True
        self.say(TransferDrainMsg())

    def leave(self) -> None:
        self.say(TransferLeaveMsg("stopped"))
        self.die()

    def die(self) -> None:
        """Stop for good. What it has sent may still arrive."""
        self.gone = True
        self.memory.forget(self.peer)
        self.inbox.clear()
        self.reset()
