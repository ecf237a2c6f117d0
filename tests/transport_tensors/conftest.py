"""Pools, managers and streams that leave nothing behind, and a way to hold a stream back."""

import asyncio
import gc
import os
import sys
import threading
from asyncio.subprocess import PIPE
from itertools import count
from pathlib import Path

import msgspec
import pytest

from triptych.schemas.manifest import TensorManifest
from triptych.schemas.memory import PoolAddress, Slot
from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.pool import TransferTensorBuffer
from triptych.transport.tensors.shared_memory import DIRECTORY, sweep_dead_segments
from triptych.transport.tensors.streams import INLINE_BYTES, HostTransferStream

LARGE = INLINE_BYTES + 1
_incarnations = count(1)


class HeldStream(HostTransferStream):
    """A real host stream whose worker the test can hold before the jobs to come."""

    def __init__(self):
        super().__init__("triptych-held")
        self._gate = threading.Event()

    def hold(self):
        """Keep every job submitted from now on from running until `let_go`."""
        self._gate.clear()
        return self.submit(self._gate.wait, nbytes=LARGE)

    def let_go(self):
        """Let the jobs run."""
        self._gate.set()

    async def aclose(self):
        self.let_go()
        await super().aclose()


def open_pool(capacity=1 << 20, **options):
    return TransferTensorBuffer(capacity, instance_id=f"test-{os.getpid()}", incarnation=next(_incarnations), **options)


@pytest.fixture
def pool():
    opened = open_pool(16 * 4096)
    yield opened
    opened.close()


@pytest.fixture
async def stream():
    opened = HeldStream()
    yield opened
    await opened.aclose()


def open_manager(pool_bytes=8 << 20, **options):
    return DiffusionTransferManager.open(
        instance_id=f"test-{os.getpid()}", incarnation=next(_incarnations), pool_bytes=pool_bytes, **options
    )


@pytest.fixture
async def manager():
    opened = open_manager()
    yield opened
    await opened.aclose()


def maps():
    """Return the lines of this process's memory map that are shared-memory segments, of those still referred to."""
    gc.collect()
    return "".join(line for line in Path("/proc/self/maps").read_text().splitlines(True) if DIRECTORY in line)


def segment_exists(name):
    return Path(DIRECTORY, name).exists()


def descriptors():
    gc.collect()
    return sorted(Path("/proc/self/fd").iterdir())


async def until(condition):
    """Let everything that is ready on the loop run until the condition holds."""
    while not condition():  # noqa: ASYNC110  # what it waits for happens on this very loop or has no event
        await asyncio.sleep(0)


def in_use(manager):
    """Return the number of slots that somebody holds."""
    return manager.statistics().pool.slots


class Ready(msgspec.Struct):
    """What the other process says first."""

    address: PoolAddress
    slots: list[Slot]


class OtherProcess:
    """A process that runs `other.py`."""

    def __init__(self, process):
        self._process = process
        self.pid = process.pid
        self.wait = process.wait

    def say(self, request):
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")

    async def answer(self, type=dict[str, str]):  # noqa: A002
        return msgspec.json.decode(await self._process.stdout.readline(), type=type)

    async def staged(self):
        return await self.answer(tuple[Slot, TensorManifest])

    async def end(self):
        """Let it end by itself."""
        self._process.stdin.close()
        return await self._process.wait()

    async def kill(self):
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


@pytest.fixture
async def other_process():
    """Give what starts another process, of an engine; none outlives the test."""
    started = []

    async def start(engine, *arguments):
        argv = (sys.executable, Path(__file__).with_name("other.py"), engine, *map(str, arguments))
        process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, limit=1 << 24)
        other = OtherProcess(process)
        started.append(other)
        return other, await other.answer(Ready)

    yield start
    for other in started:
        await other.kill()
    sweep_dead_segments()
