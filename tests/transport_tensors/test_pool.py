import asyncio
from pathlib import Path

import pytest
import torch

from triptych.schemas.errors import PayloadTooLarge, PoolExhausted, TransferError
from triptych.transport.tensors.buddy import BuddyStatistics, NotAllocated
from triptych.transport.tensors.pool import PoolStatistics
from triptych.transport.tensors.shared_memory import DIRECTORY

from .conftest import open_pool, until

UNIT = 4096


def waiting(pool):
    return pool.statistics().waiting


async def queue_up(pool, *sizes):
    """Start one waiting task for each size, in order."""
    tasks = []
    for size in sizes:
        tasks.append(asyncio.create_task(pool.wait_allocate(size)))
        await until(lambda: waiting(pool) == len(tasks))
    return tasks


def test_slots_are_pieces_of_the_segment(pool):
    """A slot's memory lies at its offset, has its size, and no two slots share a byte."""
    slots = [pool.allocate(nbytes) for nbytes in (1, UNIT + 1, 0)]
    for value, slot in enumerate(slots, 1):
        pool.memory(slot.slot_id).fill_(value)
    assert [slot.size for slot in slots] == [UNIT, 2 * UNIT, UNIT]
    assert [set(pool.memory(slot.slot_id).tolist()) for slot in slots] == [{1}, {2}, {3}]
    seen = torch.frombuffer(bytearray(Path(DIRECTORY, pool.address.segment).read_bytes()), dtype=torch.uint8)
    for slot in slots:
        assert torch.equal(seen[slot.offset : slot.offset + slot.size], pool.memory(slot.slot_id))


def test_capacity_is_rounded_up_to_a_power_of_two():
    """The address tells the real size, and the largest payload is as large as the pool."""
    pool = open_pool(5 * UNIT)
    assert (pool.address.size, pool.allocate(8 * UNIT).size) == (8 * UNIT, 8 * UNIT)
    pool.close()


def test_freed_twice_is_an_error(pool):
    """A slot is given back once, and is unknown after that, as one that never was."""
    slot = pool.allocate(1)
    pool.free(slot.slot_id)
    for slot_id in (slot.slot_id, 77):
        for use in (pool.free, pool.retire, pool.slot, pool.memory):
            with pytest.raises(NotAllocated, match=f"no slot {slot_id} is in use"):
                use(slot_id)


def test_slot_ids_are_not_reused_soon(pool):
    """A slot id that went about the network names nothing else shortly after."""
    first = pool.allocate(1)
    pool.free(first.slot_id)
    assert pool.allocate(1).slot_id != first.slot_id


def test_retired_slot_is_kept_out_of_use(pool):
    """A retired slot is nobody's, its bytes are not given out again, and the statistics show them."""
    kept = pool.allocate(8 * UNIT)
    pool.retire(kept.slot_id)
    with pytest.raises(NotAllocated):
        pool.free(kept.slot_id)
    rest = pool.allocate(8 * UNIT)
    assert rest.offset != kept.offset
    with pytest.raises(PoolExhausted):
        pool.allocate(1)
    memory = BuddyStatistics(16 * UNIT, 0, 0, 2)
    assert pool.statistics() == PoolStatistics(memory, slots=1, retired=8 * UNIT, waiting=0)


async def test_waiters_are_served_in_order(pool):
    """Room goes to who waits longest, also where a later and smaller request would fit already."""
    held = [pool.allocate(4 * UNIT) for _ in range(4)]
    large, small, last = await queue_up(pool, 8 * UNIT, 1, 4 * UNIT)
    pool.free(held[0].slot_id)
    with pytest.raises(PoolExhausted):
        pool.allocate(1)
    assert [task.done() for task in (large, small, last)] == [False, False, False]
    pool.free(held[1].slot_id)
    assert (await large).size == 8 * UNIT
    pool.free(held[2].slot_id)
    assert (await small).size == UNIT
    assert (last.done(), waiting(pool)) == (False, 1)
    pool.free(held[3].slot_id)
    assert (await last).size == 4 * UNIT


async def test_room_at_once_is_not_waited_for(pool):
    """Where there is room and nobody waits, the slot is there without a turn of the loop."""
    with pytest.raises(StopIteration) as finished:
        pool.wait_allocate(1).send(None)
    assert finished.value.value == pool.slot(0)


async def test_never_fitting_request_does_not_wait(pool):
    """More than the whole pool is refused at once, also behind others who wait."""
    held = pool.allocate(16 * UNIT)
    (task,) = await queue_up(pool, 1)
    for _ in range(2):
        with pytest.raises(PayloadTooLarge, match=r"65537 bytes do not fit into 65536; raise pool_bytes"):
            await pool.wait_allocate(16 * UNIT + 1)
    pool.free(held.slot_id)
    await task


async def test_cancelled_waiter_lets_the_next_pass(pool):
    """When the first in line is cancelled, those behind it get the room that was too small for it."""
    held = [pool.allocate(8 * UNIT) for _ in range(2)]
    large, small = await queue_up(pool, 16 * UNIT, 1)
    pool.free(held[0].slot_id)
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    assert ((await small).size, waiting(pool)) == (UNIT, 0)


async def test_cancelled_after_the_grant_gives_the_slot_back(pool):
    """A slot granted to a task that is cancelled before it runs again goes to the next in line."""
    held = pool.allocate(16 * UNIT)
    first, second = await queue_up(pool, 16 * UNIT, 16 * UNIT)
    pool.free(held.slot_id)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert ((await second).size, pool.statistics().slots) == (16 * UNIT, 1)


async def test_cancelled_and_freed_in_one_turn(pool):
    """A waiter cancelled just before room comes is passed over, and no room is lost."""
    held = pool.allocate(16 * UNIT)
    first, second = await queue_up(pool, 16 * UNIT, 16 * UNIT)
    first.cancel()
    pool.free(held.slot_id)
    with pytest.raises(asyncio.CancelledError):
        await first
    pool.free((await second).slot_id)
    assert pool.statistics() == PoolStatistics(BuddyStatistics(16 * UNIT, 16 * UNIT, 16 * UNIT, 0), 0, 0, 0)


async def test_closing_tells_those_who_wait(pool):
    """Whoever waits for room when the pool closes gets an error, as does whoever comes after."""
    pool.allocate(16 * UNIT)
    (task,) = await queue_up(pool, 1)
    pool.close()
    for late in (task, pool.wait_allocate(1)):
        with pytest.raises(TransferError, match="closed"):
            await late
    pool.close()


def test_leaked_view_survives_closing():
    """A view that somebody kept is still readable after the pool closed; the segment has no name any more."""
    pool = open_pool(UNIT)
    view = pool.memory(pool.allocate(1).slot_id).fill_(5)
    pool.close()
    assert (set(view.tolist()), Path(DIRECTORY, pool.address.segment).exists()) == ({5}, False)
