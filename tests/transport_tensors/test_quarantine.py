import asyncio
import os
import signal

import pytest

from triptych.schemas.memory import PoolAddress
from triptych.transport.tensors import manager as manager_module
from triptych.transport.tensors.quarantine import Quarantine

from .conftest import in_use, open_manager

HERE, THERE = PoolAddress("here", "a", 1), PoolAddress("there", "b", 1)


@pytest.fixture
def living():
    return {"a", "b"}


@pytest.fixture
def quarantine(living):
    return Quarantine(lambda address: address.segment in living, "here", forgotten_s=10)


def test_slot_without_a_writer_stays(quarantine):
    """Nobody knows who may write there, so it never comes back."""
    quarantine.add(1, None)
    assert (quarantine.take_safe(1e9), quarantine.waits()) == ([], False)


def test_writer_of_this_host_has_let_go_when_dead(quarantine, living):
    """Its being forgotten says nothing, since it may only hang; its death does, and the slot comes back once."""
    quarantine.add(1, HERE)
    quarantine.forget(HERE, 0)
    assert (quarantine.take_safe(1e9), quarantine.waits()) == ([], True)
    living.remove("a")
    assert (quarantine.take_safe(0), quarantine.take_safe(0), quarantine.waits()) == ([1], [], False)


def test_writer_of_another_host_has_let_go_some_time_after_it_was_forgotten(quarantine):
    """The time runs from the first word of its loss; a pool of that name elsewhere is another."""
    quarantine.add(1, THERE)
    quarantine.add(2, THERE)
    assert quarantine.take_safe(1e9) == []
    quarantine.forget(PoolAddress("elsewhere", "b", 1), 5)
    assert quarantine.take_safe(1e9) == []
    quarantine.forget(THERE, 100)
    quarantine.forget(THERE, 105)
    assert (quarantine.take_safe(109.9), quarantine.take_safe(110, busy={2})) == ([], [1])
    assert quarantine.take_safe(111) == [2]


async def test_memory_comes_back_when_the_lost_writer_is_dead(other_process, monkeypatch):
    """A slot retired for a writer that hangs stays out of use; when that is killed, whoever waits for room gets it."""
    monkeypatch.setattr(manager_module, "QUARANTINE_CHECK_S", 0.01)
    manager = open_manager(1 << 20)
    other, ready = await other_process("shm")
    slot = manager.allocate_receive(1 << 20)
    os.kill(other.pid, signal.SIGSTOP)
    manager.retire(slot.slot_id, ready.address)
    manager.forget(ready.address)
    waiter = asyncio.create_task(manager._pool.wait_allocate(4096))
    await asyncio.sleep(0.1)
    assert (waiter.done(), manager.statistics().pool.retired, in_use(manager)) == (False, 1 << 20, 0)
    os.kill(other.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        await waiter
    assert (manager.statistics().pool.retired, manager._quarantine_check) == (0, None)
    await manager.aclose()


async def test_closing_stops_the_watch(manager):
    """A manager closed while it watches a slot leaves no timer behind."""
    manager.retire(manager.allocate_receive(1).slot_id, manager.address)
    check = manager._quarantine_check
    await manager.aclose()
    assert check.cancelled()
