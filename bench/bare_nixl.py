"""What NIXL reaches by itself between two processes that do nothing else but poll it."""

import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path
from time import perf_counter

import msgspec
import torch
from msgspec import Struct

from triptych.transport.tensors.engines.nixl_agent import NixlAgent, Region

from .pipe import Pipe

POOL_BYTES = 256 << 20


class Reached(Struct, frozen=True):
    """How the receiving agent is reached."""

    metadata: bytes
    base: int


class BareWriter:
    """Writes to the other process, one write after the other."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._memory = torch.ones(POOL_BYTES, dtype=torch.uint8)
        self._agent = NixlAgent("bare-sender/1", Region(self._memory.data_ptr(), POOL_BYTES))
        reached = msgspec.msgpack.decode(pipe.recv_bytes(), type=Reached)
        self._base = reached.base
        self._peer = self._agent.add_peer(reached.metadata)

    def write(self, nbytes: int, count: int) -> list[float]:
        """Write `nbytes`, `count` times, each to its own place, and return the seconds that each took."""
        self._pipe.send_bytes(b"poll")
        self._pipe.recv_bytes()
        spaced = 1 << (nbytes - 1).bit_length()
        seconds = [self._write(nbytes, number * spaced) for number in range(count)]
        self._pipe.send_bytes(b"rest")
        return seconds

    def _write(self, nbytes: int, offset: int) -> float:
        begun = perf_counter()
        target = Region(self._base + offset, nbytes)
        handle = self._agent.post(self._memory.data_ptr() + offset, target, self._peer)
        while not self._agent.passed(handle):
            pass
        self._agent.release(handle)
        return perf_counter() - begun

    def close(self) -> None:
        """End the agent."""
        self._agent.close()


@contextmanager
def bare_writer() -> Generator[BareWriter, None, None]:
    """Run the other process for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder, Listener(str(Path(folder, "bare")), family="AF_UNIX") as listener:
        argv = [sys.executable, "-m", "bench.bare_nixl", str(listener.address)]
        with subprocess.Popen(argv) as process, listener.accept() as pipe:  # noqa: S603
            writer = BareWriter(pipe)
            yield writer
            writer.close()
            pipe.close()
            process.wait()


def _receive(address: str) -> None:
    memory = torch.full((POOL_BYTES,), 2, dtype=torch.uint8)
    agent = NixlAgent("bare-receiver/1", Region(memory.data_ptr(), POOL_BYTES))
    with Client(address, family="AF_UNIX") as pipe:
        pipe.send_bytes(msgspec.msgpack.encode(Reached(agent.metadata, memory.data_ptr())))
        try:
            while pipe.recv_bytes():
                pipe.send_bytes(b"ready")
                while not pipe.poll():
                    agent.progress()
                pipe.recv_bytes()
        except EOFError:
            agent.close()


if __name__ == "__main__":
    _receive(sys.argv[1])
