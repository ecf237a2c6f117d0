"""The receive slots of one instance: who may write where."""

from bisect import bisect_left, insort
from collections.abc import Iterable

from ...schemas.memory import Slot


def slot_problem(slot: Slot, pool_size: int) -> str | None:
    """Say why `slot` does not lie in a pool of `pool_size` bytes."""
    if slot.offset + slot.size > pool_size:
        return f"slot {slot.slot_id} is {slot.offset}+{slot.size} bytes of a pool of {pool_size}"
    return None


def overlap_problem(slots: Iterable[Slot]) -> str | None:
    """Say which of `slots` share an id or a byte."""
    ids: set[int] = set()
    end, last = 0, None
    for slot in sorted(slots, key=lambda slot: slot.offset):
        if slot.slot_id in ids:
            return f"slot {slot.slot_id} is named twice"
        if last is not None and slot.size and slot.offset < end:
            return f"slots {last} and {slot.slot_id} overlap"
        ids.add(slot.slot_id)
        if slot.size:
            end, last = slot.offset + slot.size, slot.slot_id
    return None


class ReceiveSlots:
    """Pre-allocated slots, handed out by the broker, and dynamic ones, that the instance allocated for one request.

    Each slot is free, taken or retired; a dynamic one is taken, then forgotten.
    """

    __slots__ = ("_free", "_ranges", "fixed", "retired", "taken")

    def __init__(self, fixed: Iterable[Slot]) -> None:
        #: the pre-allocated slots by id, as registered; never changes
        self.fixed = {slot.slot_id: slot for slot in fixed}
        #: by id; pre-allocated and dynamic
        self.taken: dict[int, Slot] = {}
        #: ids of pre-allocated slots that a lost writer may still write
        self.retired: set[int] = set()
        #: (size, slot id) of the free pre-allocated slots, sorted
        self._free = sorted((slot.size, slot.slot_id) for slot in self.fixed.values())
        #: (offset, end) of every slot that exists and is not empty, sorted
        self._ranges = sorted((slot.offset, slot.offset + slot.size) for slot in self.fixed.values() if slot.size)

    @property
    def free_count(self) -> int:
        """How many pre-allocated slots are free."""
        return len(self._free)

    def free_ids(self) -> set[int]:
        """Return the ids of the free pre-allocated slots. For checks only: it costs O(n)."""
        return {slot_id for _, slot_id in self._free}

    def take(self, size: int) -> Slot | None:
        """Hand out the smallest free pre-allocated slot of at least `size` bytes."""
        place = bisect_left(self._free, (size, -1))
        if place == len(self._free):
            return None
        slot = self.fixed[self._free.pop(place)[1]]
        self.taken[slot.slot_id] = slot
        return slot

    def adoption_problem(self, slot: Slot, size: int, pool_size: int) -> str | None:
        """Say why `slot` cannot be a dynamic slot for `size` bytes."""
        if slot.size < size:
            return f"slot {slot.slot_id} has {slot.size} bytes, {size} were asked for"
        if slot.slot_id in self.taken or slot.slot_id in self.fixed:
            return f"slot {slot.slot_id} exists already"
        if slot.size and self._overlaps(slot):
            return f"slot {slot.slot_id} overlaps another receive slot"
        return slot_problem(slot, pool_size)

    def take_back(self, slot: Slot) -> None:
        """Note that `slot`, pre-allocated or dynamic, is taken already."""
        if slot.slot_id in self.fixed:
            self._free.remove((slot.size, slot.slot_id))
            self.taken[slot.slot_id] = slot
        else:
            self.adopt(slot)

    def adopt(self, slot: Slot) -> None:
        """Take a dynamic slot in."""
        self.taken[slot.slot_id] = slot
        if slot.size:
            insort(self._ranges, (slot.offset, slot.offset + slot.size))

    def give_back(self, slot: Slot, *, retire: bool = False) -> None:
        """End the use of `slot`; a pre-allocated one is free again, or retired for good."""
        del self.taken[slot.slot_id]
        if slot.slot_id not in self.fixed:
            if slot.size:
                del self._ranges[bisect_left(self._ranges, (slot.offset, slot.offset + slot.size))]
        elif retire:
            self.retired.add(slot.slot_id)
        else:
            insort(self._free, (slot.size, slot.slot_id))

    def _overlaps(self, slot: Slot) -> bool:
        place = bisect_left(self._ranges, (slot.offset + slot.size, -1))
        return place > 0 and self._ranges[place - 1][1] > slot.offset
