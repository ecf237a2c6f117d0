import asyncio
import gc
import os
import signal

import pytest
import torch
from msgspec.structs import replace

from triptych.schemas.errors import ManifestMismatch, TransferError
from triptych.schemas.manifest import EMPTY_MANIFEST, TensorEntry, TensorManifest
from triptych.schemas.memory import EngineName, Slot
from triptych.transport.tensors import in_place
from triptych.transport.tensors.in_place import ForeignSegments
from triptych.transport.tensors.manager import DiffusionTransferManager

from .conftest import HeldStream, descriptors, maps, open_manager, open_pool
from .payloads import arrived, bytes_of, random_bytes

KIB = 1024


@pytest.fixture
async def sender():
    opened = open_manager(1 << 20)
    yield opened
    await opened.aclose()


def numbers(value, nbytes=64 * KIB):
    return {"x": torch.full((nbytes // 4,), float(value))}


async def read(manager, staged, sender, device="cpu"):
    return await manager.read_in_place_async(staged.slot, staged.manifest, sender.address, device)


async def test_payload_is_read_bit_for_bit(manager: DiffusionTransferManager, sender):
    """Every tensor, with gaps, odd shapes and none at all, is what was sent."""
    sent = {"a": random_bytes((3, 5), 1).view(torch.bool).T, "l": [None, random_bytes((7,), 2), torch.empty(0, 4)]}
    staged = await sender.stage_tensors_async(sent)
    got = await read(manager, staged, sender)
    assert (arrived(got.tensors["a"]), got.tensors["a"].dtype) == (bytes_of(sent["a"].view(torch.uint8)), torch.bool)
    assert (got.tensors["l"][0], got.tensors["l"][2].shape) == (None, (0, 4))
    assert torch.equal(got.tensors["l"][1], sent["l"][1])
    assert (got.holds_slot, got.duration_s > 0) == (True, True)
    got.close()
    assert (got.tensors, manager.statistics().read_in_place) == ({}, (1, staged.manifest.data_size))


async def test_no_bytes_need_no_mapping(manager, sender):
    """A payload of no bytes makes the hop, too."""
    staged = await sender.stage_tensors_async({"gaps": [None], "empty": torch.empty(0)})
    before = maps()
    got = await read(manager, staged, sender)
    assert (got.tensors["gaps"], got.tensors["empty"].shape, maps()) == ([None], (0,), before)


async def test_tensors_are_the_senders_own_bytes(manager, sender):
    """Nothing is copied: what the owner puts into the slot while it is read is seen in the views."""
    staged = await sender.stage_tensors_async(numbers(1))
    got = await read(manager, staged, sender)
    sender._pool.memory(staged.slot.slot_id).view(torch.float32).fill_(2)
    assert (got.tensors["x"] == 2).all()


async def test_what_a_reader_writes_stays_its_own(manager, sender):
    """A view written to changes nothing in the sender's pool, and later payloads in that place are read unharmed."""
    staged = await sender.stage_tensors_async(numbers(1))
    for value in (1, 2, 3):
        got = await read(manager, staged, sender)
        assert (got.tensors["x"] == value).all()
        got.tensors["x"].fill_(9)
        assert (sender._pool.memory(staged.slot.slot_id).view(torch.float32) == value).all()
        kept = got.tensors["x"] if value == 1 else None
        got.close()
        sender.release(staged.slot.slot_id)
        again = await sender.stage_tensors_async(numbers(value + 1))
        assert again.slot.offset == staged.slot.offset
        staged = again
        assert kept is None or (kept == 9).all()


async def test_readers_do_not_see_each_other(manager, sender):
    """Two readers of one slot: what one writes the other does not read."""
    staged = await sender.stage_tensors_async(numbers(1))
    one, other = await read(manager, staged, sender), await read(manager, staged, sender)
    one.tensors["x"].fill_(5)
    assert (other.tensors["x"] == 1).all()


async def test_leaked_views_outlive_everything(manager, sender):
    """A view kept past the closing of its read, its pool and its reader is still there to be read."""
    staged = await sender.stage_tensors_async(numbers(4))
    got = await read(manager, staged, sender)
    kept = got.tensors["x"]
    got.close()
    await sender.aclose()
    manager.forget(sender.address)
    await manager.aclose()
    gc.collect()
    assert ((kept == 4).all(), maps().count("\n")) == (True, 1)
    del kept
    assert maps() == ""


async def test_slots_in_the_middle_of_a_segment(manager, sender):
    """Slots of all sizes, at whatever offsets the pool puts them, are read from their own place."""
    staged = [await sender.stage_tensors_async(numbers(n, 4 * n * KIB)) for n in (1, 5, 1, 3, 16)]
    for n, one in zip((1, 5, 1, 3, 16), staged, strict=True):
        got = await read(manager, one, sender)
        assert (got.tensors["x"] == n).all()
        assert got.tensors["x"].shape == (n * KIB,)


@pytest.mark.parametrize(
    "lie",
    [
        lambda staged: (Slot(0, 0, 4096), staged.manifest),
        lambda staged: (Slot(0, (1 << 20) - 4096, 64 * KIB), staged.manifest),
        lambda staged: (Slot(0, 2**47, 64 * KIB), staged.manifest),
        lambda staged: (staged.slot, TensorManifest(2**40, staged.manifest.entries)),
        lambda staged: (staged.slot, TensorManifest(512, (TensorEntry("x", None, "uint8", (1,), 512, 1),))),
    ],
)
async def test_lies_are_refused_before_anything_is_read(manager, sender, lie):
    """A manifest that does not fit its slot, and a slot that does not fit its segment."""
    staged = await sender.stage_tensors_async(numbers(1))
    slot, manifest = lie(staged)
    with pytest.raises(ManifestMismatch):
        await manager.read_in_place_async(slot, manifest, sender.address, "cpu")
    assert manager.statistics().read_in_place == (0, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"host_id": "elsewhere"},
        {"segment": "../etc/passwd"},
        {"segment": "triptych-never-1"},
        {"engines": (EngineName.NIXL,)},
    ],
)
async def test_what_is_no_pool_of_this_host_is_refused(manager, sender, changed):
    """Another host, a name that is none, a segment that is not there, a pool that is not offered for reading."""
    before = descriptors()
    with pytest.raises(TransferError):
        await manager.read_in_place_async(Slot(0, 0, 4096), EMPTY_MANIFEST, replace(sender.address, **changed), "cpu")
    assert descriptors() == before


@pytest.mark.parametrize("known", [False, True])
async def test_pool_that_is_gone_is_refused(manager, sender, known):
    """Reading from a pool that was closed fails, whether or not it was read from before."""
    staged = await sender.stage_tensors_async(numbers(1))
    if known:
        (await read(manager, staged, sender)).close()
    await sender.aclose()
    for _ in range(2):
        with pytest.raises(TransferError, match=sender.address.segment):
            await read(manager, staged, sender)


async def test_only_so_many_segments_stay_open():
    """The segments used last stay open, and any is read all the same; forgetting one lets it go."""
    before = descriptors()
    segments, pools = ForeignSegments(kept_segments=2), [open_pool(4096) for _ in range(3)]
    owned = descriptors()
    slot = Slot(0, 0, 4096)
    for used in (0, 1, 2, 0, 1, 0, 2):
        pools[used].all_memory.fill_(used + 1)
        assert set(segments.map_slot(pools[used].address, slot, 4096).tolist()) == {used + 1}
    assert len(descriptors()) == len(owned) + 2
    segments.forget(pools[0].address)
    segments.forget(pools[1].address)
    assert len(descriptors()) == len(owned) + 1
    segments.close()
    for pool in pools:
        pool.close()
    assert (descriptors(), maps()) == (before, "")


async def test_device_copies_out_of_the_slot(sender, stream: HeldStream, monkeypatch):
    """For a device the slot is copied on the stream; its segment is page-locked once, and until the copy is over.

    Even when its pool is forgotten and the reader cancelled meanwhile.
    """
    locks = []

    def page_lock(memory, device):
        locks.append((memory.nbytes, device.type))
        return lambda: locks.append("unlocked")

    monkeypatch.setattr(in_place, "page_lock", page_lock)
    pool = open_pool(4096)
    manager = DiffusionTransferManager(pool, stream, None, pool.address)
    staged = await sender.stage_tensors_async(numbers(1, 1 << 20))
    opened = descriptors()
    for _ in range(2):
        got = await read(manager, staged, sender, "meta")
        assert (got.holds_slot, got.tensors["x"].device.type) == (False, "meta")
    stream.hold()
    task = asyncio.create_task(read(manager, staged, sender, "meta"))
    await asyncio.sleep(0)
    manager.forget(sender.address)
    task.cancel()
    await asyncio.sleep(0)
    assert (task.done(), locks) == (False, [(1 << 20, "meta")])
    stream.let_go()
    await asyncio.wait([task])
    assert (task.cancelled(), locks) == (True, [(1 << 20, "meta"), "unlocked"])
    del task
    gc.collect()
    assert len(descriptors()) == len(opened)
    await manager.aclose()


async def test_owner_killed_while_it_is_read(manager, other_process):
    """The bytes of a sender that dies stay readable for those who read them; nobody begins after that."""
    process, ready = await other_process("shm")
    process.say({"stage": 7})
    slot, manifest = await process.staged()
    got = await manager.read_in_place_async(slot, manifest, ready.address, "cpu")
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert (got.tensors["x"] == 7).all()
    with pytest.raises(TransferError, match="is gone"):
        await manager.read_in_place_async(slot, manifest, ready.address, "cpu")
