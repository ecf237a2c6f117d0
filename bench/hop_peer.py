"""The receiving process of the transfer benchmark: reads, or loads, what the other says, and tells how long it took."""

import asyncio
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Client
from time import perf_counter, process_time

import msgspec
import torch
from msgspec import Struct

from triptych.schemas.manifest import TensorManifest
from triptych.schemas.memory import PoolAddress, Slot
from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.values import TensorValue

from .pipe import Pipe


class Allocate(Struct, frozen=True, tag=True):
    """Set a slot aside for a write from `sender`, and help it along. Answered with the slot."""

    nbytes: int
    sender: PoolAddress


class Load(Struct, frozen=True):
    """Load what was written to the slot, and give it back."""

    slot: Slot
    manifest: TensorManifest


class LoadAll(Struct, frozen=True, tag=True):
    """Answered with the seconds of each."""

    loads: tuple[Load, ...]


class Read(Struct, frozen=True):
    """Read a slot in place; when it is to be `quick`, nothing is measured."""

    slot: Slot
    manifest: TensorManifest
    pool: PoolAddress
    quick: bool = False


class ReadAll(Struct, frozen=True, tag=True):
    """Answered with `ReadTimes` for each."""

    reads: tuple[Read, ...]


class Stage(Struct, frozen=True, tag=True):
    """Stage a tensor of so many bytes. Answered with `PeerStaged`."""

    nbytes: int


class Push(Struct, frozen=True, tag=True):
    """Write a staged slot to another pool. Answered with the seconds."""

    slot: Slot
    nbytes: int
    pool: PoolAddress
    target: Slot


class Release(Struct, frozen=True, tag=True):
    """Drop a staged slot. Answered with 0."""

    slot_id: int


class AskCpuTime(Struct, frozen=True, tag=True):
    """Answered with the processor time this process has used, in seconds."""


class ReadTimes(Struct, frozen=True):
    """What reading in place took, in seconds."""

    #: to have the tensors
    open_s: float = 0.0
    #: to close them, unread
    close_s: float = 0.0
    #: to sum all bytes where they lie
    pass_s: float = 0.0
    #: the same sum over memory that was used before
    warm_pass_s: float = 0.0
    #: to copy them into memory of one's own
    copy_s: float = 0.0


class PeerStaged(Struct, frozen=True):
    """A slot of the other process, and what lies there."""

    slot: Slot
    manifest: TensorManifest


Request = Allocate | LoadAll | ReadAll | Stage | Push | Release | AskCpuTime
Answer = Slot | list[ReadTimes] | list[float] | PeerStaged | float
_REQUEST = msgspec.msgpack.Decoder(Request)


async def serve(manager: DiffusionTransferManager, pipe: Pipe) -> None:
    """Do what the other process says until it hangs up."""
    peer = Peer(manager)
    pipe.send_bytes(msgspec.msgpack.encode(manager.address))
    while True:
        try:
            said = await asyncio.to_thread(pipe.recv_bytes)
        except EOFError:
            return
        pipe.send_bytes(msgspec.msgpack.encode(await peer.answer(_REQUEST.decode(said))))


class Peer:
    """Answers requests, by their type."""

    def __init__(self, manager: DiffusionTransferManager) -> None:
        self._manager = manager
        self._tensors: dict[int, torch.Tensor] = {}

    async def answer(self, request: Request) -> Answer:  # noqa: PLR0911  (one line a kind)
        """Do what is asked."""
        match request:
            case Allocate():
                slot = self._manager.allocate_receive(request.nbytes)
                self._manager.expect("bench", request.sender)
                return slot
            case LoadAll():
                self._manager.expected_over("bench")
                return [await self._load(load) for load in request.loads]
            case ReadAll():
                return await _read_all(self._manager, request.reads)
            case Stage():
                return await self._stage(request.nbytes)
            case Push():
                return await self._manager.push(request.slot, request.nbytes, request.pool, request.target)
            case Release():
                self._manager.release(request.slot_id)
                return 0.0
            case AskCpuTime():
                return process_time()

    async def _load(self, request: Load) -> float:
        begun = perf_counter()
        await self._manager.load_tensors_async(request.slot, request.manifest, "cpu")
        seconds = perf_counter() - begun
        self._manager.release(request.slot.slot_id)
        return seconds

    async def _stage(self, nbytes: int) -> PeerStaged:
        tensor = self._tensors.setdefault(nbytes, torch.ones(nbytes, dtype=torch.uint8))
        staged = await self._manager.stage_tensors_async({"x": tensor})
        return PeerStaged(staged.slot, staged.manifest)


async def _read_all(manager: DiffusionTransferManager, reads: tuple[Read, ...]) -> list[ReadTimes]:
    """Open and close them all in a row, then see what reading the bytes costs."""
    hops = [await _open_and_close(manager, read) for read in reads]
    return [
        ReadTimes(*hop) if read.quick else ReadTimes(*hop, *await _passes(manager, read))
        for hop, read in zip(hops, reads, strict=True)
    ]


async def _open_and_close(manager: DiffusionTransferManager, read: Read) -> tuple[float, float]:
    begun = perf_counter()
    opened = await manager.read_in_place_async(read.slot, read.manifest, read.pool, "cpu")
    there = perf_counter()
    opened.close()
    return there - begun, perf_counter() - there


async def _passes(manager: DiffusionTransferManager, read: Read) -> tuple[float, float, float]:
    opened = await manager.read_in_place_async(read.slot, read.manifest, read.pool, "cpu")
    pass_s = timed(only(opened.tensors).sum)
    opened.close()
    again = await manager.read_in_place_async(read.slot, read.manifest, read.pool, "cpu")
    copy_s = timed(only(again.tensors).clone)
    own = only(again.tensors).clone()
    own.sum()
    again.close()
    return pass_s, timed(own.sum), copy_s


def only(tensors: dict[str, TensorValue]) -> torch.Tensor:
    """Return the one tensor of a payload."""
    (tensor,) = tensors.values()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("the payload is a list")
    return tensor


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that `action` takes."""
    begun = perf_counter()
    action()
    return perf_counter() - begun


async def _main(address: str, engine: str, pool_bytes: int) -> None:
    torch.set_num_threads(1)
    manager = DiffusionTransferManager.open(
        instance_id="bench-receiver",
        incarnation=os.getpid(),
        pool_bytes=pool_bytes,
        engine="nixl" if engine == "nixl" else "shm",
    )
    try:
        with Client(address, family="AF_UNIX") as pipe:
            await serve(manager, pipe)
    finally:
        await manager.aclose()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
