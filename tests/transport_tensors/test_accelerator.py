import asyncio
import os
import weakref

import pytest
import torch

from triptych.schemas.memory import EngineName
from triptych.transport.tensors.engines.nixl_agent import nixl_installed
from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.streams import open_transfer_stream

pytestmark = [
    pytest.mark.accelerator,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="torch finds no accelerator"),
]
KIND = getattr(torch.accelerator.current_accelerator(), "type", "none")


@pytest.fixture
async def stream():
    opened = open_transfer_stream(KIND)
    yield opened
    await opened.aclose()


@pytest.fixture
async def manager():
    opened = DiffusionTransferManager.open(
        instance_id="accelerator", incarnation=os.getpid(), pool_bytes=64 << 20, device=KIND
    )
    yield opened
    await opened.aclose()


def compute_slowly():
    """Give the compute stream work that takes it a while, and return what depends on it."""
    matrix = torch.eye(4096, device=KIND)
    for _ in range(200):
        matrix = matrix @ matrix
    return matrix.sum(0)


async def test_hop_through_the_device(manager):
    """Tensors on the device are staged and loaded back to it bit for bit."""
    sent = {"x": torch.randn(1000, 1000, device=KIND).T, "l": [None, torch.arange(7, device=KIND).to(torch.bfloat16)]}
    staged = await manager.stage_tensors_async(sent)
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, KIND)
    assert torch.equal(loaded.tensors["x"], sent["x"])
    assert torch.equal(loaded.tensors["l"][1], sent["l"][1])
    assert loaded.tensors["x"].device.type == KIND


async def test_staging_waits_for_the_compute_stream(manager):
    """What a slow kernel is still computing is staged as the kernel leaves it."""
    result = compute_slowly()
    staged = await manager.stage_tensors_async({"x": result})
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, "cpu")
    assert torch.equal(loaded.tensors["x"], torch.ones(4096))


async def test_event_behind_a_slow_kernel_does_not_block_the_loop(stream):
    """The loop runs on while the device works; the event passes only after the kernel."""
    compute_slowly()
    mark = torch.Event(KIND)
    mark.record()
    stream.wait_for_compute()
    event = stream.record()
    turns = 0
    while not event.passed():
        await asyncio.sleep(0)
        turns += 1
    assert (mark.query(), turns > 0) == (True, True)


async def test_source_stays_alive_until_the_device_has_read_it(stream):
    """A source tensor that nobody else refers to lives until the event of its copy."""
    source = compute_slowly()
    alive = weakref.ref(source)
    stream.wait_for_compute()
    event = stream.submit(lambda source=source: source.to("cpu", non_blocking=True), nbytes=source.nbytes)
    del source
    assert alive() is not None or event.passed()
    assert torch.equal(await event, torch.ones(4096))


async def test_load_overlaps_compute(manager):
    """A load completes on the host while a slow kernel before it still runs."""
    staged = await manager.stage_tensors_async({"x": torch.ones(1 << 20, device=KIND)})
    compute_slowly()
    mark = torch.Event(KIND)
    mark.record()
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, KIND)
    still_computing = not mark.query()
    assert (still_computing, bool((loaded.tensors["x"] == 1).all())) == (True, True)


async def test_slot_of_another_pool_is_copied_to_the_device(manager):
    """A payload of another service on this host comes to the device in one copy, and its slot is quiet then."""
    sender = DiffusionTransferManager.open(instance_id="accelerator-s", incarnation=os.getpid(), pool_bytes=64 << 20)
    for value in (1.0, 2.0):
        staged = await sender.stage_tensors_async({"x": torch.full((1 << 20,), value)})
        read = await manager.read_in_place_async(staged.slot, staged.manifest, sender.address, KIND)
        sender.release(staged.slot.slot_id)
        assert (read.holds_slot, read.tensors["x"].device.type) == (False, KIND)
        assert bool((read.tensors["x"] == value).all())
    manager.forget(sender.address)
    await sender.aclose()


@pytest.mark.skipif(not nixl_installed(), reason="needs nixl")
async def test_pools_in_device_memory():
    """Between pools in device memory NIXL moves the bytes from device to device, and they arrive unchanged."""
    ends = [
        DiffusionTransferManager.open(
            instance_id=f"direct-{n}",
            incarnation=os.getpid(),
            pool_bytes=64 << 20,
            device=KIND,
            engine="nixl",
            pool_device=KIND,
        )
        for n in range(2)
    ]
    sender, receiver = ends
    assert [end.address.engines for end in ends] == [(EngineName.NIXL,)] * 2
    assert all(end.address.nixl.device is not None for end in ends)
    sent = torch.randn(1000, 1000, device=KIND).T
    staged = await sender.stage_tensors_async({"x": sent})
    slot = receiver.allocate_receive(staged.manifest.data_size)
    receiver.expect("test", sender.address)
    await sender.push(staged.slot, staged.manifest.data_size, receiver.address, slot)
    loaded = await receiver.load_tensors_async(slot, staged.manifest, KIND)
    assert torch.equal(loaded.tensors["x"], sent)
    for end in ends:
        await end.aclose()
