"""Whether transfers hide behind compute: a thread computes while the next request's tensors come in."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter

import torch

from triptych.transport.tensors.values import TensorValue

#: side by side, each with and without transfers
ROUNDS = 12
REQUESTS = 20

#: the tensors of one request, and what lets them go
Brought = tuple[dict[str, TensorValue], Callable[[], Coroutine[None, None, None]]]
Bring = Callable[[], Awaitable[Brought]]

#: compute per request at least, in seconds, where its tensors come faster than that: no model is faster
LEAST_COMPUTE_S = 0.02


class Compute:
    """Work of a known length on one thread, as a service's compute thread does it."""

    def __init__(self, seconds: float) -> None:
        self._matrix = torch.randn(512, 512)
        self._product = torch.empty(512, 512)
        self._rounds = 1
        while (spent := self._spend()) < seconds:
            self._rounds = max(self._rounds + 1, int(self._rounds * seconds / spent))
        #: torch counts the threads of an operation per thread that calls it
        self.thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    def request(self) -> None:
        """Compute one request."""
        self._spend()

    def _spend(self) -> float:
        begun = perf_counter()
        for _ in range(self._rounds):
            torch.mm(self._matrix, self._matrix, out=self._product)
        return perf_counter() - begun


async def overlap(bring: Bring) -> float:
    """Return the throughput with tensors coming in, as a share of that of computing alone.

    A request computes as long as its tensors take to come, or longer.
    """
    compute = Compute(max(await _alone_s(bring), LEAST_COMPUTE_S))
    ratios: list[float] = []
    for _ in range(ROUNDS):
        alone = await _alone(compute)
        ratios.append(alone / await _pipelined(bring, compute))
    compute.thread.shutdown()
    return median(ratios)


async def _alone(compute: Compute) -> float:
    """Compute all requests one after the other; return the seconds."""
    loop = asyncio.get_running_loop()
    begun = perf_counter()
    for _ in range(REQUESTS):
        await loop.run_in_executor(compute.thread, compute.request)
    return perf_counter() - begun


async def _alone_s(bring: Bring) -> float:
    """Return how long tensors take to come while nothing computes."""
    seconds: list[float] = []
    for _ in range(10):
        begun = perf_counter()
        _, let_go = await bring()
        seconds.append(perf_counter() - begun)
        await let_go()
    return median(seconds)


async def _pipelined(bring: Bring, compute: Compute) -> float:
    """Compute each request while the next one comes in; return the seconds from the first one's being there."""
    loop = asyncio.get_running_loop()
    _, let_go = await bring()
    begun = perf_counter()
    async with asyncio.TaskGroup() as releases:
        for _ in range(REQUESTS):
            computing = loop.run_in_executor(compute.thread, compute.request)
            _, next_let_go = await bring()
            await computing
            releases.create_task(let_go())
            let_go = next_let_go
        seconds = perf_counter() - begun
    await let_go()
    return seconds
