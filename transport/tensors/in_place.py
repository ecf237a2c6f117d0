"""Reading a slot of another service's pool where it lies, on one host."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from ...schemas.errors import ManifestMismatch, TransferError
from ...schemas.memory import EngineName, PoolAddress, Slot
from .page_lock import page_lock
from .shared_memory import Segment, attach, host_id
from .values import TensorValue

#: segments of other services that stay open, the least recently used dropped first
KEPT_SEGMENTS = 64


class InPlace:
    """Tensors of another service's slot. Whoever reads them closes this when done, and only then.

    On the CPU they are views of the slot without a copy: what the reader writes into them it alone sees, and what the
    owner writes into the slot after the closing may be seen in views that were kept. On an accelerator they are copies.
    """

    def __init__(self, tensors: dict[str, TensorValue], duration_s: float, *, holds_slot: bool) -> None:
        self.tensors = tensors
        #: what mapping, or the copy, took
        self.duration_s = duration_s
        #: whether the owner must leave the slot alone until this is closed
        self.holds_slot = holds_slot

    def close(self) -> None:
        """Let the slot go: its mapping goes with the last view."""
        self.tensors = {}


class _Foreign:
    """A segment of another service, with what is kept for reading it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        #: readers whose copies run
        self.readers = 0
        self.leaving = False
        self._locked: tuple[Tensor, Callable[[], None]] | None = None

    def memory(self, device: torch.device) -> Tensor:
        """Return all bytes of the segment, page-locked for the device, the first time they are asked for."""
        if self._locked is None:
            memory = torch.frombuffer(self.segment.mapping, dtype=torch.uint8)
            self._locked = memory, page_lock(memory, device)
        return self._locked[0]

    def close(self) -> None:
        """Let the segment go, once nobody copies from it."""
        self.leaving = True
        if self.readers:
            return
        if self._locked is not None:
            self._locked[1]()
            self._locked = None
        self.segment.close()


class ForeignSegments:
    """The segments of other services on this host that this one reads from, each opened once."""

    def __init__(self, kept_segments: int = KEPT_SEGMENTS) -> None:
        self._host_id = host_id()
        self._kept_segments = kept_segments
        #: the least recently used first
        self._open: dict[str, _Foreign] = {}

    def map_slot(self, address: PoolAddress, slot: Slot, nbytes: int) -> Tensor:
        """Map the first `nbytes` of a slot for this one reader: what it writes is its own."""
        segment = self._living(address, slot).segment
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        mapping, skipped = segment.map_private(slot.offset, nbytes)
        return torch.frombuffer(mapping, dtype=torch.uint8, offset=skipped, count=nbytes)

    @contextmanager
    def locked(self, address: PoolAddress, slot: Slot, device: torch.device) -> Generator[Tensor, None, None]:
        """Give the bytes of a slot, page-locked for the device for as long as the context lasts."""
        foreign = self._living(address, slot)
        foreign.readers += 1
        try:
            yield foreign.memory(device)[slot.offset : slot.offset + slot.size]
        finally:
            foreign.readers -= 1
            if foreign.leaving:
                foreign.close()

    def owner_lives(self, address: PoolAddress) -> bool:
        """Return whether the owner of a pool on this host is there; one on another host is taken to be."""
        if address.host_id != self._host_id:
            return True
        with suppress(TransferError):
            return self._foreign(address).segment.owner_lives()
        return False

    def forget(self, address: PoolAddress) -> None:
        """Let a segment go; tensors that lie in it stay readable."""
        foreign = self._open.pop(address.segment, None)
        if foreign is not None:
            foreign.close()

    def close(self) -> None:
        """Let all segments go."""
        for foreign in self._open.values():
            foreign.close()
        self._open.clear()

    def _living(self, address: PoolAddress, slot: Slot) -> _Foreign:
        if EngineName.SHM not in address.engines:
            raise TransferError(f"the segment {address.segment} is not for others to read")
        foreign = self._foreign(address)
        if not foreign.segment.owner_lives():
            self.forget(address)
            raise TransferError(f"the owner of the segment {address.segment} is gone")
        if slot.offset + slot.size > foreign.segment.size:
            raise ManifestMismatch(
                f"a slot of {slot.size} bytes at {slot.offset} of the segment {address.segment}, "
                f"which has {foreign.segment.size}"
            )
        return foreign

    def _foreign(self, address: PoolAddress) -> _Foreign:
        if address.host_id != self._host_id:
            raise TransferError(f"the segment {address.segment} is on another host, {address.host_id}")
        foreign = self._open.pop(address.segment, None) or _Foreign(attach(address.segment))
        self._open[address.segment] = foreign
        while len(self._open) > self._kept_segments:
            self._open.pop(next(iter(self._open))).close()
        return foreign
