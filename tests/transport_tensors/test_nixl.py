"""NIXL when things go wrong: peers that stop and die, writes that do not end, agents that lie."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from triptych.schemas.errors import ConfigError, TransferError, WriteOverdue
from triptych.schemas.memory import NixlAddress
from triptych.transport.tensors.engines.nixl import agent_name
from triptych.transport.tensors.engines.nixl_agent import NixlAgent, Region, nixl_installed

from .conftest import in_use, open_manager, segment_exists, until

pytestmark = pytest.mark.skipif(not nixl_installed(), reason="needs nixl")
MiB = 1 << 20


@pytest.fixture
async def sender(monkeypatch):
    """Yield a manager whose NIXL speaks TCP alone, as between hosts, for which the other end must do its part."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    opened = open_manager(64 * MiB, engine="nixl")
    yield opened
    await opened.aclose()


async def staged(sender, value=1.0, nbytes=MiB):
    return await sender.stage_tensors_async({"x": torch.full((nbytes // 4,), value)})


async def test_stopped_peer_makes_a_write_overdue(sender, other_process):
    """A peer that stops costs the write its time, no more; the slot stays in use until the peer goes on."""
    other, ready = await other_process("nixl")
    sent = await staged(sender)
    os.kill(other.pid, signal.SIGSTOP)
    with pytest.raises(WriteOverdue, match=r"1048576 bytes to 'other/\w+' did not move within 0.2 s"):
        await sender.push(sent.slot, MiB, ready.address, ready.slots[0], timeout_s=0.2)
    sender.release(sent.slot.slot_id)
    assert in_use(sender) == 1
    other.say({"expect": sender.address})
    os.kill(other.pid, signal.SIGCONT)
    async with asyncio.timeout(20):
        await until(lambda: in_use(sender) == 0)
    again = await staged(sender, 2.0)
    await sender.push(again.slot, MiB, ready.address, ready.slots[1])


async def test_killed_peer_ends_the_write(sender, other_process):
    """A peer that dies in the middle of a write is an error, and the sender's slot is free at once."""
    other, ready = await other_process("nixl", 64 * MiB)
    sent = await staged(sender, nbytes=16 * MiB)
    os.kill(other.pid, signal.SIGSTOP)
    push = asyncio.create_task(sender.push(sent.slot, 16 * MiB, ready.address, ready.slots[0]))
    await asyncio.sleep(0.1)  # the write is under way, and cannot end
    os.kill(other.pid, signal.SIGKILL)
    with pytest.raises(TransferError):
        await push
    sender.release(sent.slot.slot_id)
    assert in_use(sender) == 0
    with pytest.raises(TransferError):
        await sender.push((await staged(sender)).slot, MiB, ready.address, ready.slots[0], timeout_s=5)
    sender.forget(ready.address)


async def test_closing_with_a_write_under_way(sender, other_process):
    """Closing the sender fails its writes and returns within seconds, though the peer never answers."""
    other, ready = await other_process("nixl")
    sent = await staged(sender)
    os.kill(other.pid, signal.SIGSTOP)
    push = asyncio.create_task(sender.push(sent.slot, MiB, ready.address, ready.slots[0]))
    await asyncio.sleep(0.1)
    sender.release(sent.slot.slot_id)
    async with asyncio.timeout(10):
        await sender.aclose()
    with pytest.raises(TransferError, match="closed"):
        await push
    assert (in_use(sender), segment_exists(sender.address.segment)) == (0, False)
    assert not [thread for thread in threading.enumerate() if thread.name == "triptych-nixl"]


async def test_receiver_that_closes_is_an_error(sender, other_process):
    """A peer that went away in good order cannot be written to, and a new one under another name can."""
    other, ready = await other_process("nixl")
    sent = await staged(sender)
    other.say({"expect": sender.address})
    await sender.push(sent.slot, MiB, ready.address, ready.slots[0])
    assert await other.end() == 0
    with pytest.raises(TransferError):
        await sender.push(sent.slot, MiB, ready.address, ready.slots[0], timeout_s=5)
    other, ready = await other_process("nixl")
    other.say({"expect": sender.address})
    await sender.push(sent.slot, MiB, ready.address, ready.slots[0])


async def test_same_name_with_other_metadata_is_a_new_peer(sender):
    """An agent of a known name with other metadata takes the former one's place, and the bytes go to it alone."""
    receivers = [open_manager(engine="nixl") for _ in range(2)]
    first, second = (receiver.address for receiver in receivers)
    sent = await staged(sender)
    slots = [receiver.allocate_receive(MiB) for receiver in receivers]
    for receiver in receivers:
        receiver.expect("test", sender.address)
    await sender.push(sent.slot, MiB, first, slots[0])
    posing = replace(second, nixl=replace(second.nixl, agent=first.nixl.agent))
    with pytest.raises(TransferError, match="is of"):
        await sender.push(sent.slot, MiB, posing, slots[1])
    await sender.push(sent.slot, MiB, first, slots[0])
    await sender.push(sent.slot, MiB, second, slots[1])
    for receiver in receivers:
        await receiver.aclose()


@pytest.mark.parametrize("metadata", [b"", b"nonsense", b"\x80\x04K\x01." * 20, bytes(1000)])
async def test_metadata_that_is_none_is_an_error(sender, metadata):
    """Whatever a peer sends for metadata is an error at worst, and the engine goes on."""
    sent = await staged(sender)
    hostile = replace(sender.address, nixl=NixlAddress("liar", metadata, 0))
    for _ in range(2):
        with pytest.raises(TransferError):
            await sender.push(sent.slot, MiB, hostile, sent.slot, timeout_s=5)
    assert in_use(sender) == 1


async def test_memory_that_was_not_offered_is_not_written(sender):
    """A base that lies outside the memory the peer registered is refused by the sender's own NIXL."""
    receiver = open_manager(engine="nixl")
    address = receiver.address
    wrong = replace(address, nixl=replace(address.nixl, base=address.nixl.base + (8 << 20)))
    receiver.expect("test", sender.address)
    sent = await staged(sender)
    with pytest.raises(TransferError):
        await sender.push(sent.slot, MiB, wrong, receiver.allocate_receive(MiB), timeout_s=5)
    await receiver.aclose()


async def test_idle_thread_sleeps(sender):
    """With nothing under way the engine's thread uses no processor time at all, also after it was busy."""
    receiver = open_manager(engine="nixl")
    receiver.expect("test", sender.address)
    sent = await staged(sender)
    await sender.push(sent.slot, MiB, receiver.address, receiver.allocate_receive(MiB))
    receiver.expected_over("test")
    await asyncio.sleep(0.05)
    threads = [thread.native_id for thread in threading.enumerate() if thread.name == "triptych-nixl"]
    before = [switches(thread) for thread in threads]
    await asyncio.sleep(0.3)
    assert ([switches(thread) for thread in threads], len(threads)) == (before, 2)
    await receiver.aclose()


def switches(thread):
    """Return how often a thread woke up."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return [line for line in status.splitlines() if "ctxt_switches" in line]


def test_no_name_is_the_beginning_of_another():
    """Agents of one instance, and of instances with similar names, have names of which none begins another."""
    names = [agent_name(name, number) for name in ("a", "aa", "a-1") for number in (1, 16, 17, 2**62 - 1)]
    assert not [(one, other) for one in names for other in names if one != other and other.startswith(one)]


def test_what_nixl_refuses_is_a_setting():
    """An agent that cannot be opened says so, with the setting to change."""
    with pytest.raises(ConfigError, match="engine is 'nixl'; allowed: shm; NIXL does not start here"):
        NixlAgent("x/1", Region(4096, 4096, 99))


@pytest.mark.parametrize("setting", ["shm", "nixl"])
def test_package_is_imported_only_when_wanted_and_says_nothing(setting):
    """A service without NIXL does not import it; one with it prints no line of its, and keeps its own logging."""
    code = f"""
import logging, sys
from triptych.transport.tensors.manager import DiffusionTransferManager
manager = DiffusionTransferManager.open(instance_id="quiet", incarnation=1, pool_bytes=4096, engine="{setting}")
manager._pool.close()
print("nixl" in sys.modules, logging.raiseExceptions)
sys.stdout.flush()
import os; os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{setting == 'nixl'} True\n", "")
