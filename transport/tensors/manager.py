"""What a service does with tensors: stage its output, push it, and load its input."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import AsyncExitStack, contextmanager
from time import perf_counter

import torch
from msgspec import Struct
from msgspec.structs import replace

from ...schemas.errors import ManifestMismatch, TransferError
from ...schemas.manifest import TensorManifest
from ...schemas.memory import PoolAddress, Slot
from .buddy import NotAllocated
from .copies import pack, unpack, view
from .engines.base import Engine
from .engines.choice import EngineSetting, open_engine
from .in_place import ForeignSegments, InPlace
from .manifests import check_manifest, plan
from .pool import PoolStatistics, TransferTensorBuffer
from .quarantine import Quarantine
from .streams import TransferStream, open_transfer_stream
from .values import TensorValue, each_tensor

#: what handling one tensor costs beside its bytes, in the bytes that could be copied meanwhile
ENTRY_BYTES = 64 * 1024
#: how often slots with lost writers are looked at while there are some
QUARANTINE_CHECK_S = 1.0
#: for a push of any size, unless it is told otherwise
PUSH_TIMEOUT_S = 60.0


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
    read_in_place: tuple[int, int]


class DiffusionTransferManager:
    """Owns the pool, the stream and the engine. For the thread of one event loop.

    Each of its coroutines returns or raises (a cancellation too) only when nothing it started touches memory any more;
    a slot released while something of this service still reads or writes it is given back right after.
    """

    def __init__(
        self, pool: TransferTensorBuffer, stream: TransferStream, engine: Engine | None, address: PoolAddress
    ) -> None:
        self._pool = pool
        self._stream = stream
        self._engine = engine
        #: how other services reach the pool
        self.address = address
        self._segments = ForeignSegments()
        self._quarantine = Quarantine(self._segments.owner_lives, address.host_id)
        self._quarantine_check: asyncio.TimerHandle | None = None
        #: how many of our own copies touch each slot
        self._users: Counter[int] = Counter()
        #: slots released while in use
        self._leaving: set[int] = set()
        self._staged = Moved()
        self._pushed = Moved()
        self._loaded = Moved()
        self._read_in_place = Moved()

    @classmethod
    def open(
        cls,
        *,
        instance_id: str,
        incarnation: int,
        pool_bytes: int,
        device: str = "cpu",
        engine: EngineSetting = "shm",
        pool_device: str = "cpu",
    ) -> "DiffusionTransferManager":
        """Return a manager with a pool of its own and the engines that `engine` asks for.

        With NIXL this takes about a second. A pool on `pool_device`, not the host, is reached by NIXL alone.
        """
        stream = open_transfer_stream(device)
        pool = TransferTensorBuffer(
            pool_bytes, instance_id=instance_id, incarnation=incarnation, device=device, pool_device=pool_device
        )
        try:
            names, opened, nixl = open_engine(engine, pool.all_memory, instance_id, incarnation)
        except BaseException:
            pool.close()
            raise
        return cls(pool, stream, opened, replace(pool.address, engines=names, nixl=nixl))

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
                lambda: unpack(manifest, memory, where, non_blocking=launches), nbytes=_weight(manifest, into_new=True)
            )
            tensors = await event.settle()
        for _, _, tensor in each_tensor(tensors):
            self._stream.hand_to_compute(tensor)
        self._loaded.add(manifest.data_size)
        return Loaded(tensors, event.duration_s)

    async def read_in_place_async(
        self, slot: Slot, manifest: TensorManifest, pool: PoolAddress, device: torch.device | str
    ) -> InPlace:
        """Read a slot of another pool on this host; close what this returns when nobody reads it any more.

        Raise TransferError where that pool cannot be read, and ManifestMismatch, before anything is read.
        """
        check_manifest(manifest, slot.size)
        where = torch.device(device)
        if where.type == "cpu":
            begun = perf_counter()
            memory = self._segments.map_slot(pool, slot, manifest.data_size)
            read = InPlace(view(manifest, memory), perf_counter() - begun, holds_slot=True)
        else:
            read = await self._copy_from(slot, manifest, pool, where)
        self._read_in_place.add(manifest.data_size)
        return read

    async def push(
        self,
        slot: Slot,
        data_size: int,
        address: PoolAddress,
        target: Slot,
        timeout_s: float = PUSH_TIMEOUT_S,
        on_quiet: Callable[[], None] | None = None,
    ) -> float:
        """Write the first `data_size` bytes of a staged slot to `target` in another pool; return the seconds taken.

        Raise WriteOverdue where that is not over after `timeout_s`. The engine may then still write to `target`, and
        read the slot, which stays in use, even when released, until the engine has let go; then `on_quiet` is called.
        """
        own = self._pool.slot(slot.slot_id)
        if not 0 <= data_size <= min(own.size, target.size):
            raise TransferError(f"{data_size} bytes from a slot of {own.size} into one of {target.size}")
        engine = self._engine
        if engine is None or not engine.reaches(address):
            raise TransferError(f"no engine of this service reaches a pool on the host {address.host_id}")
        source = self._pool.memory(own.slot_id)[:data_size]

        def quiet() -> None:
            self._leave(own.slot_id)
            if on_quiet is not None:
                on_quiet()

        self._enter(own.slot_id)
        duration_s = await engine.write(source, address, target, timeout_s=timeout_s, on_quiet=quiet)
        self._pushed.add(data_size)
        return duration_s

    async def end_pushes(self) -> None:
        """Fail the pushes under way, and any to come: nothing of them touches memory when this returns."""
        if self._engine is not None:
            await self._engine.aclose()

    def expect(self, key: Hashable, pool: PoolAddress) -> None:
        """Help along what the owner of `pool` was told to write here, until `expected_over(key)`."""
        if self._engine is not None:
            self._engine.expect(key, pool)

    def expected_over(self, key: Hashable) -> None:
        """Help no longer; a key that is not expected is no harm."""
        if self._engine is not None:
            self._engine.expected_over(key)

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

    def retire(self, slot_id: int, writer: PoolAddress | None = None) -> None:
        """Keep a slot out of use: its writer was lost and may still write there. Raise NotAllocated.

        The memory comes back when `writer`, the address of its pool, has surely let go; without `writer`, never.
        """
        self._leaving.discard(slot_id)
        self._pool.retire(slot_id)
        self._quarantine.add(slot_id, writer)
        self._check_quarantine_later()

    def forget(self, address: PoolAddress) -> None:
        """Drop what is kept of another service's pool: it is gone."""
        self._segments.forget(address)
        self._quarantine.forget(address, perf_counter())
        if self._engine is not None:
            self._engine.forget(address)

    def statistics(self) -> TransferStatistics:
        """Return the state as it is now."""
        moved = (self._staged, self._pushed, self._loaded, self._read_in_place)
        return TransferStatistics(self._pool.statistics(), *((one.count, one.nbytes) for one in moved))

    async def aclose(self) -> None:
        """Finish the copies that run, then let everything go."""
        if self._quarantine_check is not None:
            self._quarantine_check.cancel()
        async with AsyncExitStack() as last_first:
            last_first.callback(self._pool.close)
            last_first.callback(self._segments.close)
            if self._engine is not None:
                last_first.push_async_callback(self._engine.aclose)
            last_first.push_async_callback(self._stream.aclose)

    async def _copy_from(
        self, slot: Slot, manifest: TensorManifest, pool: PoolAddress, device: torch.device
    ) -> InPlace:
        with self._segments.locked(pool, slot, device) as memory:
            event = self._stream.submit(
                lambda: unpack(manifest, memory, device, non_blocking=self._stream.launches), nbytes=_weight(manifest)
            )
            tensors = await event.settle()
        for _, _, tensor in each_tensor(tensors):
            self._stream.hand_to_compute(tensor)
        return InPlace(tensors, event.duration_s, holds_slot=False)

    @contextmanager
    def _using(self, slot_id: int) -> Generator[None, None, None]:
        self._enter(slot_id)
        try:
            yield
        finally:
            self._leave(slot_id)

    def _enter(self, slot_id: int) -> None:
        self._users[slot_id] += 1

    def _leave(self, slot_id: int) -> None:
        self._users[slot_id] -= 1
        if not self._users[slot_id]:
            del self._users[slot_id]
            if slot_id in self._leaving:
                self._leaving.remove(slot_id)
                self._pool.free(slot_id)

    def _check_quarantine_later(self) -> None:
        if self._quarantine_check is None and self._quarantine.waits():
            loop = asyncio.get_running_loop()
            self._quarantine_check = loop.call_later(QUARANTINE_CHECK_S, self._check_quarantine)

    def _check_quarantine(self) -> None:
        """Take memory back from writers that have let go, and look again while there are others."""
        self._quarantine_check = None
        self.expected_over(self)  # takes in what is left of a lost writer's bytes
        for slot_id in self._quarantine.take_safe(perf_counter(), busy=self._users):
            self._pool.restore(slot_id)
        self._check_quarantine_later()

    def _own(self, slot: Slot) -> Slot:
        try:
            own = self._pool.slot(slot.slot_id)
        except NotAllocated as error:
            raise ManifestMismatch(str(error)) from error
        if own != slot:
            raise ManifestMismatch(f"slot {slot.slot_id} is {own.size} bytes at {own.offset}, not {slot}")
        return own


def _weight(manifest: TensorManifest, *, into_new: bool = False) -> int:
    """Return how long a copy takes, in bytes; into memory that is new, each page of it costs about its copy again."""
    return manifest.data_size * (1 + into_new) + ENTRY_BYTES * len(manifest.entries)
