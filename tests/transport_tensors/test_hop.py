"""What a hop must do whatever moves it: in place or by NIXL, within one process and between two."""

import asyncio
import gc
from hashlib import sha256

import pytest
import torch

from triptych.schemas.errors import ConfigError, TransferError
from triptych.schemas.memory import EngineName
from triptych.transport.tensors.engines import choice, nixl_agent
from triptych.transport.tensors.values import each_tensor

from .conftest import descriptors, open_manager
from .payloads import bytes_of, random_bytes

MiB = 1 << 20
WAYS = ["shm", pytest.param("nixl", marks=pytest.mark.skipif(not nixl_agent.nixl_installed(), reason="needs nixl"))]
way = pytest.mark.parametrize("way", WAYS)

PAYLOADS = {
    "many kinds": {
        "x": random_bytes((3, 16), 1).view(torch.bfloat16),
        "l": [None, random_bytes((5,), 2).view(torch.float8_e5m2)],
    },
    "strided": {"x": random_bytes((MiB,), 3).view(torch.float32).view(512, 512).T},
    "nothing": {"x": torch.empty(0), "l": [None]},
    "one byte": {"x": random_bytes((1,), 4)},
    "odd sizes": {"x": random_bytes((MiB - 100,), 5), "y": random_bytes((100,), 6)},
    "thousands": {"l": [random_bytes((n % 700,), n) for n in range(3000)]},
}


def digests(payload):
    return {
        f"{name}{index}": sha256(bytes_of(tensor.contiguous().view(-1).view(torch.uint8))).hexdigest()
        for name, index, tensor in each_tensor(payload)
    }


@pytest.fixture
async def managers(way):
    opened = [open_manager(engine=way) for _ in range(2)]
    yield opened
    for manager in opened:
        await manager.aclose()


async def hop(sender, receiver, payload, way):
    """Move the payload and return what arrived; leave nothing in the pools."""
    staged = await sender.stage_tensors_async(payload)
    if way == "shm":
        read = await receiver.read_in_place_async(staged.slot, staged.manifest, sender.address, "cpu")
        arrived = digests(read.tensors)
        read.close()
    else:
        key = object()
        slot = receiver.allocate_receive(staged.manifest.data_size)
        receiver.expect(key, sender.address)
        await sender.push(staged.slot, staged.manifest.data_size, receiver.address, slot)
        receiver.expected_over(key)
        arrived = digests((await receiver.load_tensors_async(slot, staged.manifest, "cpu")).tensors)
        receiver.release(slot.slot_id)
    sender.release(staged.slot.slot_id)
    return arrived


@way
async def test_within_one_process(managers, way):
    """Every payload arrives bit for bit, over and over, both ways, and all at once; the pools are empty afterwards."""
    there, here = managers
    for payload in PAYLOADS.values():
        assert await hop(there, here, payload, way) == digests(payload)
        assert await hop(here, there, payload, way) == digests(payload)
    together = await asyncio.gather(*(hop(there, here, payload, way) for payload in PAYLOADS.values()))
    assert together == [digests(payload) for payload in PAYLOADS.values()]
    assert [manager.statistics().pool.slots for manager in managers] == [0, 0]


@way
async def test_between_two_processes(way, other_process):
    """Every payload staged here arrives in another process, bit for bit, and that process ends cleanly."""
    manager = open_manager(engine=way)
    other, ready = await other_process(way)
    for payload in PAYLOADS.values():
        staged = await manager.stage_tensors_async(payload)
        if way == "shm":
            other.say({"read": (staged.slot, staged.manifest, manager.address)})
        else:
            other.say({"expect": manager.address})
            await manager.push(staged.slot, staged.manifest.data_size, ready.address, ready.slots[0])
            other.say({"load": (ready.slots[0], staged.manifest)})
        assert await other.answer() == digests(payload)
        manager.release(staged.slot.slot_id)
    assert await other.end() == 0
    await manager.aclose()


@way
async def test_address_names_the_engines(managers, way):
    """A pool's address says what moves payloads to and from it, and only with NIXL how its agent is reached."""
    address = managers[0].address
    assert (address.engines, address.nixl is None) == ((EngineName(way),), way == "shm")


@way
async def test_each_way_refuses_the_pools_of_the_other(managers, way):
    """A pool without an agent cannot be written to, and one that is not offered for it cannot be read in place."""
    sender, receiver = managers
    staged = await sender.stage_tensors_async({"x": torch.ones(1)})
    wrong = (
        sender.push(staged.slot, 4, receiver.address, receiver.allocate_receive(4))
        if way == "shm"
        else receiver.read_in_place_async(staged.slot, staged.manifest, sender.address, "cpu")
    )
    with pytest.raises(TransferError):
        await wrong


@way
async def test_closing_leaves_no_descriptor(way):
    """Opened and closed again and again, with a hop each time, a manager keeps no descriptor open."""
    for warm in (True, False):
        before = descriptors() if not warm else None
        there, here = open_manager(engine=way), open_manager(engine=way)
        await hop(there, here, {"x": torch.ones(9)}, way)
        await there.aclose()
        await here.aclose()
    assert len(descriptors()) <= len(before)


async def test_auto_prefers_in_place(monkeypatch):
    """`auto` reads in place on one host, and has NIXL for the others where that is installed and starts."""
    if nixl_agent.nixl_installed():
        manager = open_manager(engine="auto")
        assert manager.address.engines == (EngineName.SHM, EngineName.NIXL)
        await manager.aclose()
    monkeypatch.setattr(choice, "nixl_installed", lambda: True)
    monkeypatch.setattr(nixl_agent, "nixl_installed", lambda: False)  # and so it does not start
    for installed in (True, False):
        monkeypatch.setattr(choice, "nixl_installed", lambda installed=installed: installed)
        manager = open_manager(engine="auto")
        assert (manager.address.engines, manager.address.nixl) == ((EngineName.SHM,), None)
        await manager.aclose()


def test_impossible_choices_name_the_way_out(monkeypatch):
    """An engine that there is not, NIXL without its package, device memory without NIXL: what was set, what to set."""
    gc.collect()
    before = descriptors()
    monkeypatch.setattr(nixl_agent, "nixl_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"engine is 'nixl'; allowed: .*pip install '.\[serve\]'"):
        open_manager(engine="nixl")
    with pytest.raises(ConfigError, match="engine is 'ucx'; allowed: auto, shm, nixl"):
        open_manager(engine="ucx")
    with pytest.raises(ConfigError, match="engine is 'shm'; allowed: auto or nixl: nobody else"):
        open_manager(engine="shm", pool_device="meta")
    gc.collect()
    assert descriptors() == before
