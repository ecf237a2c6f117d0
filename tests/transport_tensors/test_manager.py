import asyncio
import gc
import threading
import weakref
from time import perf_counter

import pytest
import torch

from triptych.schemas.errors import ManifestMismatch, PayloadTooLarge, PoolExhausted, TransferError, WriteOverdue
from triptych.schemas.manifest import TensorEntry, TensorManifest
from triptych.schemas.memory import PoolAddress, Slot
from triptych.transport.tensors.buddy import BuddyStatistics, NotAllocated
from triptych.transport.tensors.manager import DiffusionTransferManager, TransferStatistics
from triptych.transport.tensors.pool import PoolStatistics
from triptych.transport.tensors.streams import HostTransferStream

from .conftest import (
    LARGE,
    HeldStream,
    descriptors,
    in_use,
    maps,
    open_manager,
    open_pool,
    segment_exists,
    until,
)
from .memory_engine import MemoryEngine

MiB = 1 << 20


@pytest.fixture
async def held(stream: HeldStream):
    """Yield a manager whose copies the test holds back through `stream`."""
    pool = open_pool(4 * MiB)
    made = DiffusionTransferManager(pool, stream, None, pool.address)
    yield made
    stream.let_go()
    await made.aclose()


@pytest.fixture
async def pushing(stream: HeldStream):
    """Yield a manager, the pool it pushes to and the engine, whose writes the test can hold back."""
    pool, receiver = open_pool(4 * MiB), open_pool(4 * MiB)
    engine = MemoryEngine(receiver)
    made = DiffusionTransferManager(pool, stream, engine, pool.address)
    yield made, receiver, engine
    await made.aclose()
    receiver.close()


async def turns(count=5):
    """Let everything that is ready on the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


def payload(value=1.0, nbytes=MiB):
    return {"x": torch.full((nbytes // 4,), value)}


async def test_whole_hop(pushing):
    """A payload staged, pushed to another pool and loaded there is what was sent; then both pools are empty again."""
    sender, pool, _ = pushing
    receiver = DiffusionTransferManager(pool, HostTransferStream(), None, pool.address)
    sent = {"x": torch.randn(3, 5).T, "many": [None, torch.arange(300_000), torch.tensor(True)]}
    staged = await sender.stage_tensors_async(sent)
    slot = receiver.allocate_receive(staged.manifest.data_size)
    seconds = await sender.push(staged.slot, staged.manifest.data_size, receiver.address, slot)
    sender.release(staged.slot.slot_id)
    loaded = await receiver.load_tensors_async(slot, staged.manifest, "cpu")
    receiver.release(slot.slot_id)
    assert torch.equal(loaded.tensors["x"], sent["x"])
    assert loaded.tensors["many"][0] is None
    assert all(torch.equal(loaded.tensors["many"][n], sent["many"][n]) for n in (1, 2))
    assert min(staged.duration_s, seconds, loaded.duration_s) > 0
    size, nothing = staged.manifest.data_size, (0, 0)
    empty = PoolStatistics(BuddyStatistics(4 * MiB, 4 * MiB, 4 * MiB, 0), 0, 0, 0)
    assert sender.statistics() == TransferStatistics(empty, (1, size), (1, size), nothing, nothing)
    assert receiver.statistics() == TransferStatistics(empty, nothing, nothing, (1, size), nothing)
    await receiver.aclose()


async def test_empty_payload(manager: DiffusionTransferManager):
    """Nothing but a list of gaps and an empty tensor make the hop, too."""
    staged = await manager.stage_tensors_async({"gaps": [None, None], "empty": torch.empty(0, 3)})
    assert staged.manifest.data_size == 0
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, "cpu")
    assert (loaded.tensors["gaps"], loaded.tensors["empty"].shape) == ([None, None], (0, 3))


async def test_loaded_tensors_own_their_memory(manager: DiffusionTransferManager):
    """What was loaded does not change when its slot is used again."""
    staged = await manager.stage_tensors_async(payload(1.0))
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, "cpu")
    manager.release(staged.slot.slot_id)
    again = await manager.stage_tensors_async(payload(2.0))
    assert again.slot.offset == staged.slot.offset
    assert (loaded.tensors["x"] == 1).all()


async def test_source_stays_alive_until_its_copy(held, stream: HeldStream):
    """Source tensors that nobody else refers to are held until their copy has run, and let go after it."""
    tensor = torch.full((MiB // 4,), 3.0)
    alive = weakref.ref(tensor)
    stream.hold()
    task = asyncio.create_task(held.stage_tensors_async({"x": tensor}))
    del tensor
    await turns()
    gc.collect()
    assert (alive() is not None, task.done()) == (True, False)
    stream.let_go()
    staged = await task
    del task
    gc.collect()
    assert alive() is None
    loaded = await held.load_tensors_async(staged.slot, staged.manifest, "cpu")
    assert (loaded.tensors["x"] == 3).all()


async def test_cancelled_staging_frees_its_slot_only_after_the_copy(held, stream: HeldStream):
    """A staging task that is cancelled holds its slot while the copy can still run, then gives it back."""
    stream.hold()
    task = asyncio.create_task(held.stage_tensors_async(payload()))
    await turns()
    task.cancel()
    await turns()
    assert (task.done(), in_use(held)) == (False, 1)
    stream.let_go()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_use(held) == 0


async def test_failed_copy_frees_its_slot(held, stream: HeldStream):
    """A payload changed under its copy costs an error, not a slot, and writes nothing outside its place."""
    for change in (lambda sent: sent.clear(), lambda sent: sent["x"].resize_(2 * MiB)):
        sent = payload()
        stream.hold()
        task = asyncio.create_task(held.stage_tensors_async(sent))
        await turns()
        change(sent)
        stream.let_go()
        with pytest.raises((ValueError, RuntimeError)):
            await task
        assert in_use(held) == 0


async def test_slot_released_while_it_loads_is_freed_after_the_load(held, stream: HeldStream):
    """A receive slot given back too early stays in use until the load's event; given back twice is an error."""
    staged = await held.stage_tensors_async(payload(5.0))
    stream.hold()
    task = asyncio.create_task(held.load_tensors_async(staged.slot, staged.manifest, "cpu"))
    await turns()
    held.release(staged.slot.slot_id)
    with pytest.raises(NotAllocated):
        held.release(staged.slot.slot_id)
    other = held.allocate_receive(MiB)
    assert (other.offset != staged.slot.offset, in_use(held)) == (True, 2)
    stream.let_go()
    assert ((await task).tensors["x"] == 5).all()
    assert in_use(held) == 1


async def test_cancelled_load_ends_only_after_the_copy(held, stream: HeldStream):
    """A loading task that is cancelled, twice even, ends when nothing reads the slot any more, and not before."""
    staged = await held.stage_tensors_async(payload())
    stream.hold()
    task = asyncio.create_task(held.load_tensors_async(staged.slot, staged.manifest, "cpu"))
    for _ in range(2):
        await turns()
        task.cancel()
    held.release(staged.slot.slot_id)
    await turns()
    assert (task.done(), in_use(held)) == (False, 1)
    stream.let_go()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_use(held) == 0


async def test_slot_released_while_it_is_pushed_is_freed_after_the_push(pushing):
    """The sender's slot stays in use while the engine reads it."""
    sender, receiver, engine = pushing
    staged = await sender.stage_tensors_async(payload(9.0))
    target = receiver.allocate(MiB)
    engine.gate.clear()
    task = asyncio.create_task(sender.push(staged.slot, staged.manifest.data_size, receiver.address, target))
    await turns()
    sender.release(staged.slot.slot_id)
    assert in_use(sender) == 1
    engine.gate.set()
    await task
    assert in_use(sender) == 0
    assert (receiver.memory(target.slot_id).view(torch.float32) == 9).all()


async def test_slot_of_an_overdue_push_is_freed_when_the_engine_lets_go(pushing):
    """A push past its time fails, and its slot, though released, is not used again while the engine may read it."""
    sender, receiver, engine = pushing
    staged = await sender.stage_tensors_async(payload(2.0))
    engine.gate.clear()
    with pytest.raises(WriteOverdue, match=r"within 0.01 s"):
        await sender.push(staged.slot, MiB, receiver.address, receiver.allocate(MiB), timeout_s=0.01)
    sender.release(staged.slot.slot_id)
    again = await sender.stage_tensors_async(payload(3.0))
    assert (again.slot.offset != staged.slot.offset, in_use(sender)) == (True, 2)
    engine.gate.set()
    await until(lambda: in_use(sender) == 1)
    assert sender.statistics().pushed == (0, 0)


async def test_expectations_and_losses_reach_the_engine(pushing):
    """What is expected is told to the engine and taken back, and so is a pool that is gone."""
    manager, receiver, engine = pushing
    manager.expect("a", receiver.address)
    assert engine.expected == {"a": receiver.address}
    manager.expected_over("a")
    manager.expected_over("never")
    manager.forget(receiver.address)
    assert (engine.expected, engine.forgotten) == ({}, [receiver.address.segment])


async def test_retired_slot_never_comes_back(held, stream: HeldStream):
    """A slot retired while it loads, even after its release, is not handed out when the load is done."""
    staged = await held.stage_tensors_async(payload())
    stream.hold()
    task = asyncio.create_task(held.load_tensors_async(staged.slot, staged.manifest, "cpu"))
    await turns()
    held.release(staged.slot.slot_id)
    held.retire(staged.slot.slot_id)
    stream.let_go()
    await task
    assert held.statistics().pool == PoolStatistics(BuddyStatistics(4 * MiB, 3 * MiB, 2 * MiB, 1), 0, MiB, 0)


async def test_staging_waits_for_room(manager: DiffusionTransferManager):
    """With the pool full a staging task waits, and goes on when a slot is released."""
    full = manager.allocate_receive(8 * MiB)
    task = asyncio.create_task(manager.stage_tensors_async(payload(4.0)))
    await turns()
    assert (task.done(), manager.statistics().pool.waiting) == (False, 1)
    manager.release(full.slot_id)
    staged = await task
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, "cpu")
    assert (loaded.tensors["x"] == 4).all()


async def test_payload_larger_than_the_pool_is_refused_at_once(manager: DiffusionTransferManager):
    """What can never fit is refused, with the sizes and the setting to raise."""
    with pytest.raises(PayloadTooLarge, match=r"8388608; raise pool_bytes"):
        await manager.stage_tensors_async(payload(nbytes=9 * MiB))
    assert in_use(manager) == 0


async def test_preallocated_slots_come_all_or_none(manager: DiffusionTransferManager):
    """Receive slots are set aside together; where they do not all fit, none is kept."""
    slots = manager.register_prealloc_as_receive(3, MiB + 1)
    assert ([slot.size for slot in slots], len({slot.slot_id for slot in slots}), in_use(manager)) == (
        [2 * MiB] * 3,
        3,
        3,
    )
    with pytest.raises(PoolExhausted):
        manager.register_prealloc_as_receive(2, 2 * MiB)
    assert in_use(manager) == 3


async def test_lying_manifest_is_refused_before_anything_is_read(held, stream: HeldStream):
    """A manifest or a slot that is not what the pool says is refused without submitting a copy."""
    slot = held.allocate_receive(4096)
    fits, lies = (TensorManifest(n, (TensorEntry("x", None, "uint8", (n,), 0, n),)) for n in (4096, 8192))
    other_slots = Slot(slot.slot_id, slot.offset, 8192), Slot(slot.slot_id, slot.offset + 4096, 4096), Slot(99, 0, 4096)
    stream.hold()
    for claimed, manifest in ((slot, lies), *((other, fits) for other in other_slots)):
        with pytest.raises(ManifestMismatch):
            await held.load_tensors_async(claimed, manifest, "cpu")
    assert held.statistics().loaded == (0, 0)


async def test_impossible_pushes_are_refused(manager: DiffusionTransferManager):
    """More bytes than a slot has, a host that no engine reaches, a slot that is not ours: an error for each."""
    mine, target = manager.allocate_receive(4096), Slot(0, 0, 8192)
    with pytest.raises(TransferError, match="4097 bytes"):
        await manager.push(mine, 4097, manager.address, target)
    with pytest.raises(TransferError, match="no engine"):
        await manager.push(mine, 1, PoolAddress("elsewhere", manager.address.segment, 4096), target)
    with pytest.raises(NotAllocated):
        await manager.push(Slot(50, 0, 4096), 1, manager.address, target)
    manager.forget(manager.address)


async def test_load_overlaps_compute(manager: DiffusionTransferManager):
    """While request A computes on its thread, B's tensors are staged and loaded from start to end."""
    begun, let_go = threading.Event(), threading.Event()
    span = []

    def compute():
        span.append(perf_counter())
        begun.set()
        assert let_go.wait(60)
        span.append(perf_counter())

    running = threading.Thread(target=compute)
    running.start()
    assert begun.wait(60)
    before = perf_counter()
    staged = await manager.stage_tensors_async(payload(6.0, 2 * MiB))
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, "cpu")
    after = perf_counter()
    let_go.set()
    running.join()
    assert span[0] < before < before + staged.duration_s + loaded.duration_s <= after < span[1]
    assert (loaded.tensors["x"] == 6).all()


async def test_events_show_the_overlap(stream: HeldStream):
    """A copy's own event says that it began and ended while the compute thread was still at work."""
    begun, let_go, ended = threading.Event(), threading.Event(), []

    def compute():
        begun.set()
        assert let_go.wait(60)
        ended.append(perf_counter())

    running = threading.Thread(target=compute)
    started = perf_counter()
    running.start()
    assert begun.wait(60)
    event = stream.submit(lambda: torch.ones(MiB).clone(), nbytes=4 * MiB)
    await event
    let_go.set()
    running.join()
    assert started < event.started_s < event.finished_s < ended[0]


async def test_closing_leaves_nothing():
    """After closing, with a copy and a waiter still under way, there is no thread, descriptor, mapping or segment."""
    before = threading.enumerate(), descriptors()
    sender, receiver = open_manager(4 * MiB), open_manager(4 * MiB)
    staged = await sender.stage_tensors_async(payload(nbytes=2 * MiB))
    read = await receiver.read_in_place_async(staged.slot, staged.manifest, sender.address, "cpu")
    read.close()
    under_way = asyncio.create_task(sender.load_tensors_async(staged.slot, staged.manifest, "cpu"))
    waiter = asyncio.create_task(sender.stage_tensors_async(payload(nbytes=4 * MiB)))
    await turns()
    for manager in (sender, receiver, sender):
        await manager.aclose()
    assert ((await under_way).tensors["x"] == 1).all()
    with pytest.raises(TransferError, match="closed"):
        await waiter
    names = [manager.address.segment for manager in (sender, receiver)]
    assert (threading.enumerate(), descriptors()) == before
    assert (maps(), [segment_exists(name) for name in names]) == ("", [False, False])


async def test_cancelled_closing_still_closes_everything():
    """A task cancelled while it closes a manager ends as cancelled, with thread and segment gone."""
    threads, gate, stream, pool = threading.enumerate(), threading.Event(), HostTransferStream(), open_pool(4096)
    manager = DiffusionTransferManager(pool, stream, None, pool.address)
    stream.submit(gate.wait, nbytes=LARGE)
    task = asyncio.create_task(manager.aclose())
    await turns()
    task.cancel()
    await turns()
    assert (task.done(), segment_exists(manager.address.segment)) == (False, True)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (threading.enumerate(), segment_exists(manager.address.segment)) == (threads, False)
