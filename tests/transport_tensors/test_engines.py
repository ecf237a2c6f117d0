"""What every engine must do. A new engine joins the list at the top."""

import asyncio
import sys
import threading
from asyncio.subprocess import PIPE
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace

from triptych.schemas.errors import TransferError
from triptych.schemas.transfer import PoolAddress, Slot
from triptych.transport.tensors.engines.shm import ShmEngine
from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.streams import INLINE_BYTES
from triptych.transport.tensors.values import each_tensor

from .conftest import LARGE, maps, open_pool
from .payloads import bytes_of, random_bytes

RECEIVER = Path(__file__).with_name("receiver.py")
SIZES = [0, 1, 4096, INLINE_BYTES + 1]


@pytest.fixture(params=[ShmEngine])
async def engine(request):
    made = request.param()
    yield made
    await made.aclose()


@pytest.fixture
def pools():
    opened = open_pool(4 << 20), open_pool(4 << 20)
    yield opened
    for pool in opened:
        pool.close()


def fill(pool, nbytes):
    """Return random bytes that lie in a slot of the pool."""
    source = pool.memory(pool.allocate(nbytes).slot_id)[:nbytes]
    return source.copy_(random_bytes((nbytes,), nbytes))


@pytest.mark.parametrize("nbytes", SIZES)
async def test_exactly_the_bytes_arrive(engine, pools, nbytes):
    """Every byte arrives in the slot, and the byte behind them is untouched, in the slot and outside it."""
    sender, receiver = pools
    before, target, after = (receiver.allocate(nbytes + 1) for _ in range(3))
    for slot in (before, target, after):
        receiver.memory(slot.slot_id).fill_(0xEE)
    source = fill(sender, nbytes)
    assert engine.reaches(receiver.address)
    assert await engine.write(source, receiver.address, target) >= 0
    assert torch.equal(receiver.memory(target.slot_id)[:nbytes], source)
    untouched = (receiver.memory(target.slot_id)[nbytes:], *(receiver.memory(s.slot_id) for s in (before, after)))
    assert all((memory == 0xEE).all() for memory in untouched)


async def test_many_writes_at_once_do_not_mix(engine, pools):
    """Writes of all sizes started together each arrive in their own slot."""
    sender, receiver = pools
    sources = [fill(sender, nbytes) for nbytes in SIZES * 2]
    slots = [receiver.allocate(source.nbytes) for source in sources]
    await asyncio.gather(*(engine.write(*of) for of in zip(sources, [receiver.address] * 8, slots, strict=True)))
    for source, slot in zip(sources, slots, strict=True):
        assert torch.equal(receiver.memory(slot.slot_id)[: source.nbytes], source)


@pytest.mark.parametrize(
    "target", [Slot(0, (4 << 20) - 4096, 8192), Slot(0, 4 << 20, 4096), Slot(0, 0, 4095), Slot(0, 2**47, 4096)]
)
async def test_nothing_is_written_outside_the_slot_and_pool(engine, pools, target):
    """A slot that is too small, or not inside the receiver's pool, is an error before a byte is written."""
    sender, receiver = pools
    whole = receiver.memory(receiver.allocate(4 << 20).slot_id).fill_(0xEE)
    with pytest.raises(TransferError):
        await engine.write(fill(sender, 4096), receiver.address, target)
    assert (whole == 0xEE).all()


async def test_other_host_is_out_of_reach(engine, pools):
    """An address of nowhere is not reached, and writing there is an error."""
    sender, receiver = pools
    elsewhere = replace(receiver.address, host_id="elsewhere")
    assert not engine.reaches(elsewhere)
    with pytest.raises(TransferError, match="elsewhere"):
        await engine.write(fill(sender, 1), elsewhere, Slot(0, 0, 4096))


@pytest.mark.parametrize("known", [False, True])
async def test_pool_that_is_gone_is_an_error(engine, pools, known):
    """Writing to a pool that was closed fails, whether or not it was written to before."""
    sender, receiver = pools
    source, slot = fill(sender, 8), receiver.allocate(8)
    if known:
        await engine.write(source, receiver.address, slot)
    receiver.close()
    for _ in range(2):
        with pytest.raises(TransferError, match=receiver.address.segment):
            await engine.write(source, receiver.address, slot)


async def test_forgotten_pool_is_found_again(engine, pools):
    """Forgetting a pool, known or not, is no harm: the next write finds it again."""
    sender, receiver = pools
    source, slot = fill(sender, 8), receiver.allocate(8)
    for _ in range(2):
        engine.forget(receiver.address)
        await engine.write(source, receiver.address, slot)
    engine.forget(receiver.address)
    engine.forget(receiver.address)


async def test_nothing_moves_once_a_cancelled_write_has_ended(engine, pools):
    """A task cancelled during a write ends when the slot is quiet: whatever is put there afterwards stays."""
    sender, receiver = pools
    source, slot = fill(sender, 2 << 20), receiver.allocate(2 << 20)
    task = asyncio.create_task(engine.write(source, receiver.address, slot))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    receiver.memory(slot.slot_id).fill_(0xEE)
    await engine.aclose()
    assert (receiver.memory(slot.slot_id) == 0xEE).all()


async def test_cancelled_write_of_shared_memory_waits_for_its_copy(pools):
    """Cancelled while its copy is held back, a write ends as cancelled, and only once the copy is complete."""
    sender, receiver = pools
    source, slot = fill(sender, 8), receiver.allocate(8)
    engine, gate = ShmEngine(), threading.Event()
    engine._stream.submit(gate.wait, nbytes=LARGE)
    task = asyncio.create_task(engine.write(source, receiver.address, slot))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert torch.equal(receiver.memory(slot.slot_id)[:8], source)
    await engine.aclose()


async def test_hostile_segment_name_is_an_error(engine, pools):
    """The name of a segment comes from a peer, and is no path."""
    sender, receiver = pools
    with pytest.raises(TransferError):
        await engine.write(fill(sender, 1), replace(receiver.address, segment="../etc/passwd"), Slot(0, 0, 4096))


async def test_only_so_many_segments_stay_mapped(pools):
    """The shared-memory engine keeps the segments used last, and writes to any of them all the same."""
    sender, *_ = pools
    engine = ShmEngine(kept_segments=2)
    receivers = [open_pool(4096) for _ in range(3)]
    source, slot = fill(sender, 8), Slot(0, 0, 4096)
    for used in (0, 1, 2, 0, 1, 0, 2):
        await engine.write(source, receivers[used].address, slot)
    assert [receiver for receiver in receivers if maps().count(receiver.address.segment)] == [
        receivers[0],
        receivers[2],
    ]
    await engine.aclose()
    for receiver in receivers:
        receiver.close()


class Ready(msgspec.Struct):
    """What the receiving process says first."""

    address: PoolAddress
    slots: list[Slot]


async def test_two_processes(manager: DiffusionTransferManager):
    """Tensors staged here and pushed arrive in another process, bit for bit, in slots that it set aside."""
    payloads = [
        {
            "x": random_bytes((3, 16), 1).view(torch.bfloat16),
            "l": [None, random_bytes((5,), 2).view(torch.float8_e5m2)],
        },
        {"x": random_bytes((1 << 20,), 3).view(torch.float32).view(512, 512).T},
    ]
    receiver = await asyncio.create_subprocess_exec(sys.executable, RECEIVER, stdin=PIPE, stdout=PIPE)
    try:
        ready = msgspec.json.decode(await receiver.stdout.readline(), type=Ready)
        for payload, slot in zip(payloads, ready.slots, strict=True):
            staged = await manager.stage_tensors_async(payload)
            await manager.push(staged.slot, staged.manifest.data_size, ready.address, slot)
            receiver.stdin.write(msgspec.json.encode((slot, staged.manifest)) + b"\n")
            arrived = msgspec.json.decode(await receiver.stdout.readline(), type=dict[str, str])
            assert arrived == {name: digest(tensor) for name, _, tensor in each_tensor(payload)}
        receiver.stdin.close()
        assert await receiver.wait() == 0
    finally:
        if receiver.returncode is None:
            receiver.kill()
            await receiver.wait()


def digest(tensor):
    return sha256(bytes_of(tensor.contiguous().view(-1).view(torch.uint8))).hexdigest()
