"""Where inputs arrive: slots the broker hands out, slots set aside for one attempt, and who is about to write there."""

from collections.abc import Container

from msgspec import Struct

from ..schemas.memory import PoolAddress, Slot
from ..transport.tensors.manager import DiffusionTransferManager
from .job import JobKey


class _Expected(Struct, frozen=True):
    writer: PoolAddress
    slot: Slot


class ReceiveSlots:
    """The receive slots of one incarnation. The broker knows who uses which; here is what must not be forgotten."""

    def __init__(self, transfers: DiffusionTransferManager, fixed: tuple[Slot, ...]) -> None:
        self._transfers = transfers
        #: the pre-allocated ones, by id
        self._fixed = {slot.slot_id: slot for slot in fixed}
        #: those of them that the broker does not hand out any more, with who may still write there
        self._retired: dict[int, PoolAddress] = {}
        self._allocated: dict[JobKey, Slot] = {}
        self._expected: dict[JobKey, _Expected] = {}

    def __len__(self) -> int:
        """How many are set aside for an attempt."""
        return len(self._allocated)

    def allocate(self, key: JobKey, size: int) -> Slot:
        """Set a slot aside for `key`. Raises `ResourceError`."""
        slot = self._transfers.allocate_receive(size)
        self._allocated[key] = slot
        return slot

    def expect(self, key: JobKey, writer: PoolAddress, slot: Slot) -> None:
        """Help along what `writer` is told to write to `slot`."""
        self._expected[key] = _Expected(writer, slot)
        self._transfers.expect(key, writer)

    def arrived(self, key: JobKey) -> None:
        """Take note that nobody writes for `key` any more."""
        self._expected_over(key)

    def give_back(self, key: JobKey) -> None:
        """Free what was set aside for `key`: it is quiet, or falls quiet by itself when a copy out of it ends."""
        slot = self._allocated.pop(key, None)
        if slot is not None:
            self._transfers.release(slot.slot_id)

    def drop(self, key: JobKey) -> None:
        """Free all that is kept for `key`; nobody writes there."""
        self._expected_over(key)
        self.give_back(key)

    def drop_unsafe(self, key: JobKey) -> bool:
        """Free what is kept for `key`, though its writer was lost and may still write; keep that out of use.

        Return whether it is a pre-allocated slot, which the broker must not hand out again.
        """
        expected = self._expected_over(key)
        slot = self._allocated.pop(key, None)
        if slot is not None:
            self._transfers.retire(slot.slot_id, expected and expected.writer)
            return False
        if expected is not None:
            self._retired[expected.slot.slot_id] = expected.writer
        return True

    def settle(self, reading: Container[JobKey], leaving: list[Slot]) -> tuple[Slot, ...]:
        """Let go of what a broker that restarted cannot know of, and return the pre-allocated slots that it may.

        Only what jobs are `reading` is kept. A slot that somebody may still write is retired. One that an aborted job
        may be `leaving` only now comes back into the pool by itself.
        """
        for key, expected in list(self._expected.items()):
            self._expected_over(key)
            if key in self._allocated:
                self._transfers.retire(self._allocated.pop(key).slot_id, expected.writer)
            else:
                self._retired[expected.slot.slot_id] = expected.writer
        for key in [key for key in self._allocated if key not in reading]:
            self.give_back(key)
        for slot_id in self._retired.keys() & self._fixed.keys():
            self._transfers.retire(self._fixed.pop(slot_id).slot_id, self._retired[slot_id])
        self._retired.clear()
        for slot in leaving:
            if self._fixed.pop(slot.slot_id, None) is not None:
                self._transfers.release(slot.slot_id)
        return tuple(self._fixed.values())

    def close(self) -> None:
        """Free all that is set aside."""
        for key in [*self._allocated, *self._expected]:
            self.drop(key)

    def _expected_over(self, key: JobKey) -> _Expected | None:
        expected = self._expected.pop(key, None)
        if expected is not None:
            self._transfers.expected_over(key)
        return expected
