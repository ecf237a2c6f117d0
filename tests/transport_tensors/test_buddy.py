import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triptych.schemas.errors import PayloadTooLarge, PoolExhausted
from triptych.transport.tensors.buddy import Block, BuddyAllocator, BuddyStatistics, NotAllocated

UNIT = 512


class Allocations(RuleBasedStateMachine):
    """Any order of allocating and freeing."""

    def __init__(self):
        super().__init__()
        self.buddies = BuddyAllocator(29 * UNIT, UNIT)
        self.held: list[tuple[int, Block]] = []

    @rule(nbytes=st.integers(0, 18 * UNIT))
    def allocate(self, nbytes):
        free = self.buddies.statistics()
        if nbytes > 16 * UNIT:
            with pytest.raises(PayloadTooLarge):
                self.buddies.allocate(nbytes)
        elif max(nbytes, 1) > free.largest_free:
            with pytest.raises(PoolExhausted, match=rf"{nbytes} bytes now \({free.free} bytes are free in all\)"):
                self.buddies.allocate(nbytes)
        else:
            self.held.append((nbytes, self.buddies.allocate(nbytes)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data):
        _, block = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.buddies.free(block.offset)

    @rule(offset=st.integers(-1, 29).map(lambda unit: unit * UNIT))
    def free_what_is_not_held(self, offset):
        if all(block.offset != offset for _, block in self.held):
            with pytest.raises(NotAllocated):
                self.buddies.free(offset)

    @invariant()
    def blocks_are_disjoint_and_fit(self):
        end = 0
        for nbytes, block in sorted(self.held, key=lambda held: held[1].offset):
            assert block.offset >= end
            assert nbytes <= block.size < max(2 * nbytes, UNIT + 1)
            assert block.offset % block.size == 0
            end = block.offset + block.size
        assert end <= 29 * UNIT

    @invariant()
    def state_is_consistent(self):
        self.buddies.check()
        assert self.buddies.statistics().blocks_in_use == len(self.held)

    def teardown(self):
        for _, block in self.held:
            self.buddies.free(block.offset)
        assert self.buddies.statistics() == BuddyStatistics(29 * UNIT, 29 * UNIT, 16 * UNIT, 0)


TestAllocations = Allocations.TestCase


@given(order=st.permutations(range(16)))
def test_exhausted_and_freed_in_any_order_it_is_whole_again(order):
    """Sixteen smallest blocks fill the range; freed in any order they join into the one block it began as."""
    buddies = BuddyAllocator(16 * UNIT, UNIT)
    offsets = [buddies.allocate(UNIT).offset for _ in range(16)]
    with pytest.raises(PoolExhausted):
        buddies.allocate(0)
    for place in order:
        buddies.free(offsets[place])
        buddies.check()
    assert buddies.allocate(16 * UNIT) == Block(0, 16 * UNIT)


def test_statistics_tell_fragmentation():
    """With every second block held, half is free and no two free blocks lie together."""
    buddies = BuddyAllocator(8 * UNIT, UNIT)
    for block in [buddies.allocate(1) for _ in range(8)][::2]:
        buddies.free(block.offset)
    statistics = buddies.statistics()
    assert (statistics, statistics.fragmentation) == (BuddyStatistics(8 * UNIT, 4 * UNIT, UNIT, 4), 0.75)


def test_never_fitting_request_names_the_setting():
    """A request beyond the largest block is refused with its size, the limit, and what to raise."""
    with pytest.raises(PayloadTooLarge, match=r"^4097 bytes do not fit into 4096; raise pool_bytes$"):
        BuddyAllocator(4096, UNIT).allocate(4097)


@pytest.mark.parametrize(("capacity", "min_block"), [(0, 512), (100, 512), (1000, 512), (512, 0), (512, 500)])
def test_impossible_ranges_are_refused(capacity, min_block):
    """The smallest block is a power of two and the capacity a positive multiple of it."""
    with pytest.raises(ValueError, match="allowed:"):
        BuddyAllocator(capacity, min_block)


def test_negative_request_is_refused():
    """Nothing can be smaller than empty."""
    with pytest.raises(ValueError, match="nbytes is -1"):
        BuddyAllocator(512, 512).allocate(-1)
