"""An engine within one process: it knows its pools by their segments, and writes when the test lets it."""

import asyncio

from triptych.schemas.errors import TransferError, WriteOverdue
from triptych.schemas.memory import EngineName


class MemoryEngine:
    name = EngineName.NIXL

    def __init__(self, *pools):
        self.pools = {pool.address.segment: pool for pool in pools}
        self.gate = asyncio.Event()
        self.gate.set()
        self.expected = {}
        self.forgotten = []
        self._late = set()

    def reaches(self, address):
        return address.segment in self.pools and address.host_id == self.pools[address.segment].address.host_id

    async def write(self, source, address, target, *, timeout_s, on_quiet):
        task = asyncio.create_task(self._write(source, address, target, on_quiet))
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            self._late.add(task)
            raise WriteOverdue("held", timeout_s)
        return task.result()

    async def _write(self, source, address, target, on_quiet):
        try:
            if not self.reaches(address):
                raise TransferError(f"{address.segment} on {address.host_id} is not known here")
            if source.nbytes > target.size or target.offset + target.size > address.size:
                raise TransferError("it does not fit")
            await self.gate.wait()
            memory = self.pools[address.segment].all_memory
            memory[target.offset : target.offset + source.nbytes].copy_(source)
        finally:
            on_quiet()
        return 1e-6

    def expect(self, key, address):
        self.expected[key] = address

    def expected_over(self, key):
        self.expected.pop(key, None)

    def forget(self, address):
        self.forgotten.append(address.segment)

    async def aclose(self):
        self.gate.set()
        await asyncio.gather(*self._late, return_exceptions=True)
