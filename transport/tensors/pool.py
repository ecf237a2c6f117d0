"""The pool: one shared-memory segment, handed out in slots."""

from asyncio import CancelledError, Future, get_running_loop
from contextlib import ExitStack

import torch
from msgspec import Struct
from torch import Tensor

from ...schemas.errors import PoolExhausted, TransferError
from ...schemas.memory import PoolAddress, Slot
from .buddy import BuddyAllocator, BuddyStatistics, NotAllocated
from .page_lock import page_lock
from .shared_memory import create, host_id, segment_name

MIN_BLOCK = 4096


class PoolStatistics(Struct, frozen=True):
    """The state of a pool."""

    memory: BuddyStatistics
    slots: int
    #: bytes kept out of use for fear of a lost writer
    retired: int
    #: tasks that wait for room
    waiting: int


class TransferTensorBuffer:
    """The memory that this service's tensors leave from and arrive in. For the thread of one event loop.

    Who waits for room is served in order, and nobody overtakes: a small request does not starve a large one.
    """

    def __init__(
        self,
        capacity: int,
        *,
        instance_id: str,
        incarnation: int,
        device: str = "cpu",
        pool_device: str = "cpu",
        min_block: int = MIN_BLOCK,
    ) -> None:
        rounded = max(min_block, 1 << (capacity - 1).bit_length())
        self._buddies = BuddyAllocator(rounded, min_block)
        on_host = torch.device(pool_device).type == "cpu"
        with ExitStack() as on_error:
            # a pool in device memory has a segment too, a small one: its lock tells that the owner lives
            self._segment = create(segment_name(instance_id, incarnation), rounded if on_host else min_block)
            on_error.callback(self._segment.close)
            self._memory: Tensor | None
            if on_host:
                self._memory = torch.frombuffer(self._segment.mapping, dtype=torch.uint8)
                self._unlock = page_lock(self._memory, device)
            else:
                self._memory = torch.empty(rounded, dtype=torch.uint8, device=pool_device)
                self._unlock = _nothing
            on_error.pop_all()
        self.address = PoolAddress(host_id(), self._segment.name, rounded)
        self._slots: dict[int, Slot] = {}
        #: slots that are in nobody's hands and not given out again before they are restored
        self._retired: dict[int, Slot] = {}
        #: each waiter with the bytes it waits for, the first to be served first
        self._waiters: dict[Future[Slot], int] = {}
        self._next_id = 0

    def allocate(self, nbytes: int) -> Slot:
        """Take a slot of at least `nbytes` now; raise PoolExhausted where there is no room, or others wait for it."""
        self._bytes()
        if self._waiters:
            self._buddies.block_size(nbytes)
            raise PoolExhausted(nbytes, self._buddies.statistics().free)
        return self._grant(nbytes)

    async def wait_allocate(self, nbytes: int) -> Slot:
        """Take a slot of at least `nbytes`, waiting for room; raise PayloadTooLarge at once where that is in vain."""
        try:
            return self.allocate(nbytes)
        except PoolExhausted:
            waiter: Future[Slot] = get_running_loop().create_future()
        self._waiters[waiter] = nbytes
        try:
            return await waiter
        except CancelledError:
            self._give_up(waiter)
            raise

    def slot(self, slot_id: int) -> Slot:
        """Return the slot in use under that id; raise NotAllocated."""
        slot = self._slots.get(slot_id)
        if slot is None:
            raise NotAllocated(f"no slot {slot_id} is in use")
        return slot

    def memory(self, slot_id: int) -> Tensor:
        """Return the bytes of a slot in use; raise NotAllocated."""
        slot = self.slot(slot_id)
        return self._bytes()[slot.offset : slot.offset + slot.size]

    def free(self, slot_id: int) -> None:
        """Give a slot back and serve those who wait; raise NotAllocated."""
        slot = self.slot(slot_id)
        del self._slots[slot_id]
        self._buddies.free(slot.offset)
        self._serve()

    def retire(self, slot_id: int) -> None:
        """Keep a slot out of use until it is restored: a lost writer may still write there. Raise NotAllocated."""
        self._retired[slot_id] = self.slot(slot_id)
        del self._slots[slot_id]

    def restore(self, slot_id: int) -> None:
        """Take a retired slot's memory back, since nobody writes there any more; raise NotAllocated."""
        slot = self._retired.pop(slot_id, None)
        if slot is None:
            raise NotAllocated(f"no slot {slot_id} is retired")
        self._buddies.free(slot.offset)
        self._serve()

    @property
    def all_memory(self) -> Tensor:
        """Return all bytes; raise TransferError once the pool is closed."""
        return self._bytes()

    def statistics(self) -> PoolStatistics:
        """Return the state as it is now."""
        retired = sum(slot.size for slot in self._retired.values())
        return PoolStatistics(self._buddies.statistics(), len(self._slots), retired, len(self._waiters))

    def close(self) -> None:
        """Give the memory up; whoever waits for room is told."""
        if self._memory is None:
            return
        self._memory = None
        self._unlock()
        self._segment.close()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(TransferError("the pool was closed while this waited for room in it"))
        self._waiters.clear()

    def _grant(self, nbytes: int) -> Slot:
        block = self._buddies.allocate(nbytes)
        while self._next_id in self._slots or self._next_id in self._retired:
            self._next_id = (self._next_id + 1) % 2**31
        slot = Slot(self._next_id, block.offset, block.size)
        self._next_id = (self._next_id + 1) % 2**31
        self._slots[slot.slot_id] = slot
        return slot

    def _serve(self) -> None:
        """Grant room to the first waiters as far as it goes and pass over those cancelled meanwhile."""
        while self._waiters:
            waiter, nbytes = next(iter(self._waiters.items()))
            if not waiter.done():
                try:
                    slot = self._grant(nbytes)
                except PoolExhausted:
                    return
                waiter.set_result(slot)
            del self._waiters[waiter]

    def _give_up(self, waiter: "Future[Slot]") -> None:
        """Take a cancelled waiter out of the line; what it was granted and never saw goes to the next."""
        if self._memory is None:
            return
        if waiter.done() and not waiter.cancelled():
            self.free(waiter.result().slot_id)
        else:
            self._waiters.pop(waiter, None)
            self._serve()

    def _bytes(self) -> Tensor:
        if self._memory is None:
            raise TransferError("the pool is closed")
        return self._memory


def _nothing() -> None:
    """Undo nothing."""
