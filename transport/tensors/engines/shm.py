"""The engine between services that can map each other's shared memory: one copy, from pool to pool."""

from time import perf_counter

import torch
from torch import Tensor

from ....schemas.errors import TransferError
from ....schemas.transfer import PoolAddress, Slot
from ..shared_memory import Segment, attach, host_id
from ..streams import HostTransferStream

#: segments of other services that stay mapped, the least recently used dropped first
KEPT_SEGMENTS = 64


class ShmEngine:
    """Maps each receiver's segment once and copies into it, large payloads on a thread of its own."""

    name = "shm"

    def __init__(self, kept_segments: int = KEPT_SEGMENTS) -> None:
        self._host_id = host_id()
        self._stream = HostTransferStream("triptych-shm")
        self._kept_segments = kept_segments
        #: the least recently used first
        self._segments: dict[str, Segment] = {}

    def reaches(self, address: PoolAddress) -> bool:
        """Return whether that pool lies in shared memory that this process can map."""
        return address.host_id == self._host_id

    async def write(self, source: Tensor, address: PoolAddress, target: Slot) -> float:
        """Copy `source` into the receiver's slot, exactly its bytes."""
        begun = perf_counter()
        destination = self._destination(source.nbytes, address, target)
        event = self._stream.submit(lambda: destination.copy_(source), nbytes=source.nbytes)
        await event.settle()
        return perf_counter() - begun

    def forget(self, address: PoolAddress) -> None:
        """Unmap that pool's segment; a write that runs keeps the mapping until it is done."""
        segment = self._segments.pop(address.segment, None)
        if segment is not None:
            segment.close()

    async def aclose(self) -> None:
        """Finish the writes that run and unmap everything."""
        try:
            await self._stream.aclose()
        finally:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()

    def _destination(self, nbytes: int, address: PoolAddress, target: Slot) -> Tensor:
        segment = self._segment(address)
        if not segment.owner_lives():
            self.forget(address)
            raise TransferError(f"the owner of the segment {address.segment} is gone")
        if nbytes > target.size or target.offset + target.size > segment.size:
            raise TransferError(
                f"{nbytes} bytes do not fit into the slot of {target.size} bytes at {target.offset} "
                f"of the segment {address.segment}, which has {segment.size}"
            )
        memory = torch.frombuffer(segment.mapping, dtype=torch.uint8)
        return memory[target.offset : target.offset + nbytes]

    def _segment(self, address: PoolAddress) -> Segment:
        if not self.reaches(address):
            raise TransferError(f"the segment {address.segment} is on another host, {address.host_id}")
        segment = self._segments.pop(address.segment, None) or attach(address.segment)
        self._segments[address.segment] = segment
        while len(self._segments) > self._kept_segments:
            self._segments.pop(next(iter(self._segments))).close()
        return segment
