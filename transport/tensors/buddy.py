"""A buddy allocator over a range of offsets: power-of-two blocks, every step O(log n)."""

from msgspec import Struct

from ...schemas.errors import PayloadTooLarge, PoolExhausted


class NotAllocated(LookupError):
    """What is given back is not in use: it never was, or it was given back before. A bug of the caller."""


class Block(Struct, frozen=True):
    """A piece of the range; `size` is a power of two and `offset` a multiple of it."""

    offset: int
    #: bytes
    size: int


class BuddyStatistics(Struct, frozen=True):
    """The state of an allocator, in bytes."""

    capacity: int
    free: int
    largest_free: int
    blocks_in_use: int

    @property
    def fragmentation(self) -> float:
        """Return the share of the free bytes that lie outside the largest free block."""
        return 1 - self.largest_free / self.free if self.free else 0.0


class BuddyAllocator:
    """Hands out blocks of `min_block` bytes times a power of two. A request of 0 bytes gets the smallest block.

    Free neighbours of one size whose union is aligned (buddies) are always joined. A capacity that is no power of two
    is the sum of the powers in it, and the largest of them is the largest request.
    """

    def __init__(self, capacity: int, min_block: int, *, setting: str = "pool_bytes") -> None:
        if min_block < 1 or min_block & (min_block - 1):
            raise ValueError(f"min_block is {min_block}; allowed: a power of two")
        if capacity < min_block or capacity % min_block:
            raise ValueError(f"capacity is {capacity}; allowed: a positive multiple of min_block, {min_block}")
        self.capacity = capacity
        self.min_block = min_block
        #: named in the error about a request that can never fit
        self._setting = setting
        top = (capacity // min_block).bit_length() - 1
        #: by order, the offsets of the free blocks of `min_block << order` bytes; a dict for its order
        self._free: list[dict[int, None]] = [{} for _ in range(top + 1)]
        #: bit `order` is set where `_free[order]` is not empty
        self._orders_free = 0
        #: the order of the block in use at each offset
        self._used: dict[int, int] = {}
        self._free_bytes = capacity
        offset = 0
        for order in range(top, -1, -1):
            if capacity // min_block >> order & 1:
                self._put(offset, order)
                offset += min_block << order

    @property
    def largest(self) -> int:
        """Return the size of the largest request that can ever be served."""
        return self.min_block << (len(self._free) - 1)

    def block_size(self, nbytes: int) -> int:
        """Return the size of the block that `nbytes` need, or raise PayloadTooLarge where no such block can be."""
        return self.min_block << self._order(nbytes)

    def allocate(self, nbytes: int) -> Block:
        """Take a block of at least `nbytes`; raise PoolExhausted if none is free, PayloadTooLarge if none can be."""
        order = self._order(nbytes)
        candidates = self._orders_free >> order
        if not candidates:
            raise PoolExhausted(nbytes, self._free_bytes)
        found = order + (candidates & -candidates).bit_length() - 1
        offset = next(reversed(self._free[found]))
        self._take(offset, found)
        for smaller in range(order, found):
            self._free[smaller][offset + (self.min_block << smaller)] = None
        self._orders_free |= (1 << found) - (1 << order)
        self._used[offset] = order
        self._free_bytes -= self.min_block << order
        return Block(offset, self.min_block << order)

    def free(self, offset: int) -> None:
        """Give back the block at `offset` and join it with its buddy as far up as that is free; raise NotAllocated."""
        order = self._used.pop(offset, None)
        if order is None:
            raise NotAllocated(f"no block at offset {offset} is in use")
        size = self.min_block << order
        self._free_bytes += size
        for free in self._free[order:-1]:
            if offset ^ size not in free:
                break
            self._take(offset ^ size, order)
            offset &= ~size
            size *= 2
            order += 1
        self._put(offset, order)

    def statistics(self) -> BuddyStatistics:
        """Return the state as it is now."""
        largest = self.min_block << (self._orders_free.bit_length() - 1) if self._orders_free else 0
        return BuddyStatistics(self.capacity, self._free_bytes, largest, len(self._used))

    def check(self) -> None:
        """Raise AssertionError unless the blocks tile the range and no two free buddies lie beside each other."""
        free = [(offset, order) for order, offsets in enumerate(self._free) for offset in offsets]
        position = 0
        for offset, order in sorted([*free, *self._used.items()]):
            _expect(offset == position, f"gap or overlap at {position}")
            position = offset + (self.min_block << order)
        _expect(position == self.capacity, f"the blocks end at {position}")
        _expect(sum(self.min_block << order for _, order in free) == self._free_bytes, "free bytes miscounted")
        for order, offsets in enumerate(self._free):
            _expect(bool(offsets) == bool(self._orders_free >> order & 1), f"order {order} misflagged")
            _expect(all(offset ^ (self.min_block << order) not in offsets for offset in offsets), "buddies not joined")

    def _order(self, nbytes: int) -> int:
        if nbytes < 0:
            raise ValueError(f"nbytes is {nbytes}; allowed: 0 or more")
        if nbytes > self.largest:
            raise PayloadTooLarge(nbytes, self.largest, self._setting)
        return max(-(-nbytes // self.min_block) - 1, 0).bit_length()

    def _put(self, offset: int, order: int) -> None:
        self._free[order][offset] = None
        self._orders_free |= 1 << order

    def _take(self, offset: int, order: int) -> None:
        del self._free[order][offset]
        if not self._free[order]:
            self._orders_free &= ~(1 << order)


def _expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise AssertionError(otherwise)
