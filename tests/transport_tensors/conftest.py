"""Pools, managers and streams that leave nothing behind, and a way to hold a stream back."""

import asyncio
import os
import threading
from itertools import count
from pathlib import Path

import pytest

from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.pool import TransferTensorBuffer
from triptych.transport.tensors.shared_memory import DIRECTORY
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


@pytest.fixture
async def manager():
    opened = DiffusionTransferManager.open(
        instance_id=f"test-{os.getpid()}", incarnation=next(_incarnations), pool_bytes=8 << 20
    )
    yield opened
    await opened.aclose()


def maps():
    """Return the lines of this process's memory map that are shared-memory segments."""
    return "".join(line for line in Path("/proc/self/maps").read_text().splitlines(True) if DIRECTORY in line)


def segment_exists(name):
    return Path(DIRECTORY, name).exists()


def descriptors():
    return sorted(Path("/proc/self/fd").iterdir())


async def until(condition):
    """Let everything that is ready on the loop run until the condition holds."""
    while not condition():  # noqa: ASYNC110  # what it waits for happens on this very loop or has no event
        await asyncio.sleep(0)


def in_use(manager):
    """Return the number of slots that somebody holds."""
    return manager.statistics().pool.slots
