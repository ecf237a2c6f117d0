"""What every engine must do. A new engine joins the fixture at the top."""

import asyncio

import pytest
import torch
from msgspec.structs import replace

from triptych.schemas.errors import TransferError
from triptych.schemas.memory import EngineName, PoolAddress, Slot
from triptych.transport.tensors.engines.nixl import NixlEngine
from triptych.transport.tensors.engines.nixl_agent import nixl_installed

from .conftest import open_pool
from .memory_engine import MemoryEngine
from .payloads import random_bytes

SIZES = [0, 1, 4096, (1 << 20) - 100]
ENGINES = ["memory", pytest.param("nixl", marks=pytest.mark.skipif(not nixl_installed(), reason="needs nixl"))]


class Ends:
    """A sender's pool with its engine, and a receiver's pool that the engine reaches."""

    def __init__(self, kind):
        self.sender, self.receiver = open_pool(4 << 20), open_pool(4 << 20)
        self.quiet = 0
        if kind == "memory":
            self.engine, self.other = MemoryEngine(self.receiver), MemoryEngine(self.sender)
            self.address = self.receiver.address
        else:
            self.engine, self.other = (
                NixlEngine(pool.address.segment, pool.all_memory) for pool in (self.sender, self.receiver)
            )
            self.address = replace(self.receiver.address, engines=(EngineName.NIXL,), nixl=self.other.address)
        self.other.expect("all", replace(self.sender.address, engines=(EngineName.NIXL,), nixl=self.address.nixl))

    def note_quiet(self):
        self.quiet += 1

    def fill(self, nbytes):
        """Return random bytes that lie in a slot of the sender's pool."""
        source = self.sender.memory(self.sender.allocate(nbytes).slot_id)[:nbytes]
        return source.copy_(random_bytes((nbytes,), nbytes))

    async def write(self, source, target, address=None, timeout_s=30.0):
        return await self.engine.write(
            source, address or self.address, target, timeout_s=timeout_s, on_quiet=self.note_quiet
        )

    async def aclose(self):
        await self.engine.aclose()
        await self.other.aclose()
        self.sender.close()
        self.receiver.close()


@pytest.fixture(params=ENGINES)
async def ends(request):
    made = Ends(request.param)
    yield made
    await made.aclose()


async def test_exactly_the_bytes_arrive(ends):
    """Every byte arrives in the slot, and the byte behind them is untouched, in the slot and outside it."""
    for nbytes in SIZES:
        before, target, after = (ends.receiver.allocate(nbytes + 1) for _ in range(3))
        for slot in (before, target, after):
            ends.receiver.memory(slot.slot_id).fill_(0xEE)
        source = ends.fill(nbytes)
        assert await ends.write(source, target) >= 0
        written = ends.receiver.memory(target.slot_id)
        assert torch.equal(written[:nbytes], source)
        untouched = (written[nbytes:], *(ends.receiver.memory(slot.slot_id) for slot in (before, after)))
        assert all((memory == 0xEE).all() for memory in untouched)
        for slot in (before, target, after):
            ends.receiver.free(slot.slot_id)
    assert (ends.engine.name, ends.engine.reaches(ends.address), ends.quiet) == (EngineName.NIXL, True, len(SIZES))


async def test_many_writes_at_once_do_not_mix(ends):
    """Writes of all sizes started together each arrive in their own slot."""
    sources = [ends.fill(nbytes) for nbytes in [*SIZES, 5000]]
    slots = [ends.receiver.allocate(source.nbytes) for source in sources]
    await asyncio.gather(*map(ends.write, sources, slots))
    for source, slot in zip(sources, slots, strict=True):
        assert torch.equal(ends.receiver.memory(slot.slot_id)[: source.nbytes], source)


@pytest.mark.parametrize(
    "target", [Slot(0, (4 << 20) - 4096, 8192), Slot(0, 4 << 20, 4096), Slot(0, 0, 4095), Slot(0, 2**47, 4096)]
)
async def test_nothing_is_written_outside_the_slot_and_pool(ends, target):
    """A slot that is too small, or not inside the receiver's pool, is an error before a byte is written."""
    ends.receiver.all_memory.fill_(0xEE)
    with pytest.raises(TransferError):
        await ends.write(ends.fill(4096), target)
    assert ((ends.receiver.all_memory == 0xEE).all(), ends.quiet) == (True, 1)


async def test_other_pools_are_out_of_reach(ends):
    """A pool that the engine cannot write to is not reached, and writing there is an error."""
    elsewhere = PoolAddress("elsewhere", "nowhere", 4096)
    assert not ends.engine.reaches(elsewhere)
    with pytest.raises(TransferError, match="nowhere"):
        await ends.write(ends.fill(1), Slot(0, 0, 4096), elsewhere)
    assert ends.quiet == 1


async def test_forgotten_pool_is_found_again(ends):
    """Forgetting a pool, known or not, is no harm: the next write finds it again."""
    source, slot = ends.fill(8), ends.receiver.allocate(8)
    for _ in range(3):
        ends.engine.forget(ends.address)
        await ends.write(source, slot)
    ends.engine.forget(ends.address)
    ends.engine.forget(ends.address)


async def test_nothing_moves_once_a_cancelled_write_has_ended(ends):
    """A task cancelled during a write ends when the slot is quiet: whatever is put there afterwards stays."""
    source, slot = ends.fill(2 << 20), ends.receiver.allocate(2 << 20)
    task = asyncio.create_task(ends.write(source, slot))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert ends.quiet == 1
    ends.receiver.memory(slot.slot_id).fill_(0xEE)
    await ends.engine.aclose()
    assert (ends.receiver.memory(slot.slot_id) == 0xEE).all()


async def test_expectations_end_in_any_order(ends):
    """Keys come and go, known or not, and writes arrive all the same."""
    for key in ("a", "b", "a"):
        ends.other.expect(key, ends.address)
    for key in ("never", "a", "a", "b", "all"):
        ends.other.expected_over(key)
    ends.other.expect("again", ends.address)
    await ends.write(ends.fill(8), ends.receiver.allocate(8))
