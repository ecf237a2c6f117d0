"""The engine between any two services: NIXL, which finds the best way both ends have (RDMA, shared memory, TCP)."""

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from threading import get_ident
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from ....schemas.errors import TransferError
from ....schemas.memory import EngineName, NixlAddress, PoolAddress, Slot
from .nixl_agent import NixlAgent, Region
from .nixl_pump import CLOSE_S, Flight, NixlPump, Outcome

#: for the thread to end after its writes have; NIXL blocks in a call beyond that
HANG_S = 5.0

T = TypeVar("T")


def agent_name(instance_id: str, incarnation: int) -> str:
    """Return the name of the agent of one incarnation of an instance. No such name is the beginning of another."""
    return f"{instance_id}/{incarnation:016x}"


class NixlEngine:
    """One agent over one pool, and the thread that moves its writes on."""

    name = EngineName.NIXL

    def __init__(self, name: str, memory: Tensor) -> None:
        device = (memory.device.index or 0) if memory.device.type != "cpu" else None

        def open_agent() -> NixlAgent:
            if device is not None:
                torch.accelerator.set_device_index(device)
            return NixlAgent(name, Region(memory.data_ptr(), memory.nbytes, device))

        #: the thread keeps `memory` alive, for as long as NIXL knows of it
        self._pump = NixlPump(open_agent)
        self._closed = False
        #: how the agents of others reach the pool
        self.address = NixlAddress(name, self._pump.opened.result(), memory.data_ptr(), device)

    def reaches(self, address: PoolAddress) -> bool:
        """Return whether the pool has an agent."""
        return address.nixl is not None and EngineName.NIXL in address.engines

    async def write(
        self, source: Tensor, address: PoolAddress, target: Slot, *, timeout_s: float, on_quiet: Callable[[], None]
    ) -> float:
        """Write `source`, a piece of this engine's pool, into the slot of another pool, exactly its bytes."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[float] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            if outcome.quiet:
                on_quiet()
            if not over.done():
                over.set_exception(outcome.error) if outcome.error else over.set_result(outcome.seconds)

        here = get_ident()

        def tell(outcome: Outcome) -> None:
            if get_ident() == here:
                settle(outcome)
                return
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(settle, outcome)

        try:
            peer = self._check(source, address, target)
            if source.nbytes:
                at = Region(peer.base + target.offset, source.nbytes, peer.device)
                self._pump.start(Flight(source, at, peer, timeout_s, tell))
            else:
                settle(Outcome(0.0, None, quiet=True))
        except BaseException:
            on_quiet()
            raise
        return over.result() if over.done() else await _uncut(over)

    def expect(self, key: Hashable, address: PoolAddress) -> None:
        """Keep the thread at work for what the owner of that pool writes here."""
        if self.reaches(address):
            self._pump.expect(key)

    def expected_over(self, key: Hashable) -> None:
        """Look once more, then let the thread sleep, unless there is something else."""
        self._pump.expected_over(key)

    def forget(self, address: PoolAddress) -> None:
        """Drop that pool's agent, once writes to it are over."""
        if address.nixl is not None:
            self._pump.forget(address.nixl.agent)

    async def aclose(self) -> None:
        """Fail the writes under way, and return when nothing of them touches the pool any more.

        Where NIXL hangs, its thread keeps the pool's memory from being unmapped, and this raises.
        """
        if self._closed:
            return
        self._closed = True
        self._pump.close()
        await _uncut(asyncio.wrap_future(self._pump.closed), CLOSE_S + HANG_S)
        self._pump.thread.join()

    def _check(self, source: Tensor, address: PoolAddress, target: Slot) -> NixlAddress:
        if self._closed:
            raise TransferError("the engine is closed")
        if address.nixl is None or not self.reaches(address):
            raise TransferError(f"the pool {address.segment} on the host {address.host_id} has no NIXL agent")
        if source.nbytes > target.size or target.offset + target.size > address.size:
            raise TransferError(
                f"{source.nbytes} bytes do not fit into the slot of {target.size} bytes at {target.offset} "
                f"of the pool {address.segment}, which has {address.size}"
            )
        return address.nixl


async def _uncut(future: "asyncio.Future[T]", limit_s: float | None = None) -> T:
    """Wait for the future; raise a cancellation only when it is done, TransferError when that takes too long."""
    deadline = None if limit_s is None else perf_counter() + limit_s
    cut: asyncio.CancelledError | None = None
    while not future.done():
        left = None if deadline is None else deadline - perf_counter()
        if left is not None and left <= 0:
            raise TransferError(f"NIXL does not come back from a call for {limit_s:g} s")
        try:
            await asyncio.wait([future], timeout=left)
        except asyncio.CancelledError as error:
            cut = error
    if cut is not None:
        future.exception()
        raise cut
    return future.result()
