"""Payloads of every size: nothing, odd, many, and more than any counter of 32 bits holds."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from triptych.schemas.errors import PayloadTooLarge
from triptych.transport.tensors.engines.nixl_agent import nixl_installed
from triptych.transport.tensors.shared_memory import sweep_dead_segments

from .conftest import in_use, open_manager, segment_exists, until
from .payloads import random_bytes

MiB, GiB = 1 << 20, 1 << 30
OWNER = Path(__file__).with_name("segment_owner.py")


async def hop(manager, payload):
    """Stage and load, and return what came."""
    staged = await manager.stage_tensors_async(payload)
    loaded = await manager.load_tensors_async(staged.slot, staged.manifest, "cpu")
    manager.release(staged.slot.slot_id)
    return staged, loaded.tensors


@pytest.mark.parametrize("odd", [MiB - 100, MiB - 1, MiB, MiB + 1, 511, 513, 1])
async def test_odd_size_beside_a_hundred_bytes(manager, odd):
    """Tensors whose sizes are no multiple of anything lie beside each other without touching, alignment counted in."""
    payload = {"a": random_bytes((odd,), 1), "b": random_bytes((100,), 2), "c": random_bytes((odd,), 3)}
    staged, loaded = await hop(manager, payload)
    assert staged.manifest.data_size == 2 * -(-odd // 512) * 512 + 512
    assert all(torch.equal(loaded[name], tensor) for name, tensor in payload.items())


async def test_exactly_the_pool(manager):
    """A payload as large as the pool makes the hop, one byte more is refused at once with sizes and setting."""
    staged, loaded = await hop(manager, {"x": random_bytes((8 * MiB,), 1)})
    assert (staged.slot.size, loaded["x"].nbytes) == (8 * MiB, 8 * MiB)
    with pytest.raises(PayloadTooLarge, match=r"8389120 bytes do not fit into 8388608; raise pool_bytes"):
        await manager.stage_tensors_async({"x": torch.empty(8 * MiB + 1, dtype=torch.uint8)})


async def test_exhaustion_waits_its_turn(manager):
    """With twenty payloads and room for four, all make the hop; none fails for want of room."""
    holding = [await manager.stage_tensors_async({"x": torch.ones(2 * MiB, dtype=torch.uint8)}) for _ in range(4)]
    tasks = [asyncio.create_task(hop(manager, {"x": random_bytes((2 * MiB - n,), n)})) for n in range(20)]
    await until(lambda: manager.statistics().pool.waiting == 20)
    for staged in holding:
        manager.release(staged.slot.slot_id)
    done = await asyncio.gather(*tasks)
    assert all(torch.equal(loaded["x"], random_bytes((2 * MiB - n,), n)) for n, (_, loaded) in enumerate(done))
    assert in_use(manager) == 0


def test_ten_killed_owners_leave_nothing():
    """Whatever ten killed owners of segments leave behind goes with the next sweep, and nothing of a living one's."""
    owners = [
        subprocess.Popen([sys.executable, OWNER, f"kill-{n}"], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        for n in range(11)
    ]
    names = [owner.stdout.readline().decode().strip() for owner in owners]
    assert all(segment_exists(name) for name in names)
    for owner in owners[:10]:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    sweep_dead_segments()
    assert [segment_exists(name) for name in names] == [False] * 10 + [True]
    owners[10].kill()
    owners[10].communicate()
    sweep_dead_segments()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nbytes", [2 * GiB + 4097, 4 * GiB + 4097])
@pytest.mark.parametrize(
    "way", ["shm", pytest.param("nixl", marks=pytest.mark.skipif(not nixl_installed(), reason=""))]
)
async def test_beyond_thirty_two_bits(nbytes, way):
    """One tensor of more than 2 GiB, and one of more than 4 GiB, make the whole hop between pools, to the last byte."""
    pool_bytes = 1 << (nbytes - 1).bit_length()
    sender = open_manager(pool_bytes, engine=way)
    sent = torch.zeros(nbytes, dtype=torch.uint8)
    marks = [0, 1, 2**31 - 1, 2**31, nbytes - 1]
    sent[marks] = torch.arange(1, 6, dtype=torch.uint8)
    staged = await sender.stage_tensors_async({"x": sent})
    del sent
    receiver = open_manager(4096 if way == "shm" else pool_bytes, engine=way)
    if way == "shm":
        got = await receiver.read_in_place_async(staged.slot, staged.manifest, sender.address, "cpu")
        tensor = got.tensors.pop("x")
    else:
        slot = receiver.allocate_receive(staged.manifest.data_size)
        receiver.expect("test", sender.address)
        await sender.push(staged.slot, staged.manifest.data_size, receiver.address, slot)
        tensor = receiver._pool.memory(slot.slot_id)[:nbytes]
    assert (tensor[marks].tolist(), tensor.nbytes, int(tensor.count_nonzero())) == ([1, 2, 3, 4, 5], nbytes, 5)
    del tensor
    await sender.aclose()
    await receiver.aclose()
