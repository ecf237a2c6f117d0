"""What a service does with tensors: stage its output, push it, and load its input."""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager

import torch
from msgspec import Struct

from ...schemas.errors import ManifestMismatch, TransferError
from ...schemas.manifest import TensorManifest
from ...schemas.transfer import PoolAddress, Slot
from .buddy import NotAllocated
from .copies import pack, unpack
from .engines.base import Engine
from .engines.shm import ShmEngine
from .manifests import check_manifest, plan
from .pool import PoolStatistics, TransferTensorBuffer
from .streams import TransferStream, open_transfer_stream
from .values import TensorValue, each_tensor

#: what handling one tensor costs beside its bytes, in the bytes that could be copied meanwhile
ENTRY_BYTES = 64 * 1024


class Staged(Struct, frozen=True):
    """Tensors that lie in a slot of the pool, as the manifest says."""

    slot: Slot
    manifest: TensorManifest
    #: what the copy took
    duration_s: float


class Loaded(Struct, frozen=True):
    """Tensors that own their memory, on the device they were asked for."""

    tensors: dict[str, TensorValue]
    #: what the copy took
    duration_s: float


class Moved(Struct):
    """Payloads and bytes moved since the start."""

    count: int = 0
    nbytes: int = 0

    def add(self, nbytes: int) -> None:
        """Count one payload."""
        self.count += 1
        self.nbytes += nbytes


class TransferStatistics(Struct, frozen=True):
    """The state of the pool, and (payloads, bytes) moved since the start."""

    pool: PoolStatistics
    staged: tuple[int, int]
    pushed: tuple[int, int]
    loaded: tuple[int, int]


class DiffusionTransferManager:
    """Owns the pool, the stream and the engines. For the thread of one event loop.

    Each of its coroutines returns or raises (a cancellation too) only when nothing it started touches memory any more;
    a slot released while something of this service still reads or writes it is given back right after.
    """

    def __init__(self, pool: TransferTensorBuffer, stream: TransferStream, engines: Sequence[Engine]) -> None:
        self._pool = pool
        self._stream = stream
        self._engines = tuple(engines)
        #: how many of our own copies touch each slot
        self._users: Counter[int] = Counter()
        #: slots released while in use
        self._leaving: set[int] = set()
        self._staged = Moved()
        self._pushed = Moved()
        self._loaded = Moved()

    @classmethod
    def open(
        cls, *, instance_id: str, incarnation: int, pool_bytes: int, device: str = "cpu"
    ) -> "DiffusionTransferManager":
        """Return a manager with a pool of its own and the engines there are."""
        stream, engines = open_transfer_stream(device), (ShmEngine(),)
        pool = TransferTensorBuffer(pool_bytes, instance_id=instance_id, incarnation=incarnation, device=device)
        return cls(pool, stream, engines)

    @property
    def address(self) -> PoolAddress:
        """Return how the engines of other services reach the pool."""
        return self._pool.address

    async def stage_tensors_async(self, tensors: Mapping[str, TensorValue]) -> Staged:
        """Copy the tensors into a slot, waiting for room; they stay alive and must not change until this returns."""
        manifest = plan(tensors)
        slot = await self._pool.wait_allocate(manifest.data_size)
        try:
            memory = self._pool.memory(slot.slot_id)
            self._stream.wait_for_compute()
            launches = self._stream.launches
            event = self._stream.submit(
                lambda: pack(tensors, manifest, memory, non_blocking=launches), nbytes=_weight(manifest)
            )
            await event.settle()
        except BaseException:
            self._pool.free(slot.slot_id)
            raise
        self._staged.add(manifest.data_size)
        return Staged(slot, manifest, event.duration_s)

    async def load_tensors_async(self, slot: Slot, manifest: TensorManifest, device: torch.device | str) -> Loaded:
        """Copy the tensors out of a slot of this pool; raise ManifestMismatch before anything is read."""
        own = self._own(slot)
        check_manifest(manifest, own.size)
        memory = self._pool.memory(own.slot_id)
        where = torch.device(device)
        launches = self._stream.launches
        with self._using(own.slot_id):
            event = self._stream.submit(
                lambda: unpack(manifest, memory, where, non_blocking=launches), nbytes=_weight(manifest)
            )
            tensors = await event.settle()
        for _, _, tensor in each_tensor(tensors):
            self._stream.hand_to_compute(tensor)
        self._loaded.add(manifest.data_size)
        return Loaded(tensors, event.duration_s)

    async def push(self, slot: Slot, data_size: int, address: PoolAddress, target: Slot) -> float:
        """Write the first `data_size` bytes of a staged slot to `target` in another pool; return the seconds taken."""
        own = self._pool.slot(slot.slot_id)
        if not 0 <= data_size <= min(own.size, target.size):
            raise TransferError(f"{data_size} bytes from a slot of {own.size} into one of {target.size}")
        source = self._pool.memory(own.slot_id)[:data_size]
        with self._using(own.slot_id):
            duration_s = await self._engine(address).write(source, address, target)
        self._pushed.add(data_size)
        return duration_s

    def register_prealloc_as_receive(self, count: int, nbytes: int) -> tuple[Slot, ...]:
        """Set `count` slots of at least `nbytes` aside for the broker to hand out; all of them, or raise."""
        slots: list[Slot] = []
        try:
            for _ in range(count):
                slots += (self._pool.allocate(nbytes),)
        except BaseException:
            for slot in slots:
                self._pool.free(slot.slot_id)
            raise
        return tuple(slots)

    def allocate_receive(self, nbytes: int) -> Slot:
        """Set one slot of at least `nbytes` aside; raise PoolExhausted or PayloadTooLarge."""
        return self._pool.allocate(nbytes)

    def release(self, slot_id: int) -> None:
        """Give a slot back, at once or when our own copies that touch it are done; raise NotAllocated."""
        if slot_id not in self._users:
            self._pool.free(slot_id)
        elif slot_id in self._leaving:
            raise NotAllocated(f"slot {slot_id} was released before")
        else:
            self._leaving.add(slot_id)

    def retire(self, slot_id: int) -> None:
        """Keep a slot out of use for good: a writer that was lost may still write there. Raise NotAllocated."""
        self._leaving.discard(slot_id)
        self._pool.retire(slot_id)

    def forget(self, address: PoolAddress) -> None:
        """Drop what the engines keep of another service's pool: it is gone."""
        for engine in self._engines:
            engine.forget(address)

    def statistics(self) -> TransferStatistics:
        """Return the state as it is now."""
        staged, pushed, loaded = ((moved.count, moved.nbytes) for moved in (self._staged, self._pushed, self._loaded))
        return TransferStatistics(self._pool.statistics(), staged, pushed, loaded)

    async def aclose(self) -> None:
        """Finish the copies that run, then let everything go."""
        async with AsyncExitStack() as last_first:
            last_first.callback(self._pool.close)
            for engine in self._engines:
                last_first.push_async_callback(engine.aclose)
            last_first.push_async_callback(self._stream.aclose)

    @contextmanager
    def _using(self, slot_id: int) -> Generator[None, None, None]:
        self._users[slot_id] += 1
        try:
            yield
        finally:
            self._users[slot_id] -= 1
            if not self._users[slot_id]:
                del self._users[slot_id]
                if slot_id in self._leaving:
                    self._leaving.remove(slot_id)
                    self._pool.free(slot_id)

    def _own(self, slot: Slot) -> Slot:
        try:
            own = self._pool.slot(slot.slot_id)
        except NotAllocated as error:
            raise ManifestMismatch(str(error)) from error
        if own != slot:
            raise ManifestMismatch(f"slot {slot.slot_id} is {own.size} bytes at {own.offset}, not {slot}")
        return own

    def _engine(self, address: PoolAddress) -> Engine:
        for engine in self._engines:
            if engine.reaches(address):
                return engine
        raise TransferError(f"no engine of this service reaches a pool on the host {address.host_id}")


def _weight(manifest: TensorManifest) -> int:
    return manifest.data_size + ENTRY_BYTES * len(manifest.entries)
