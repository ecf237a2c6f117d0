"""The one thread on which a device computes."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from msgspec import Struct

from ..schemas.sampling import SamplingParams
from .pipelines.interface import Stage
from .pipelines.stage import StageOutput


class Computed(Struct, frozen=True):
    """What a stage gave, and when the compute thread began and ended, in seconds of `time.perf_counter`."""

    output: StageOutput
    started: float
    finished: float


class ComputeThread:
    """Computes one request after the other, in the order they are given, away from the event loop."""

    def __init__(self, stage: Stage, threads: int) -> None:
        self._stage = stage
        self._executor = ThreadPoolExecutor(1, "compute", torch.set_num_threads, (threads,))

    async def run(
        self,
        params: SamplingParams,
        inputs: StageOutput,
        on_start: Callable[[], None],
        on_step: Callable[[int], None],
    ) -> Computed:
        """Compute. `on_start` and `on_step` are called in the event loop.

        When cancelled it stops before the next step, and returns only after the thread has let go of `inputs`.
        """
        loop = asyncio.get_running_loop()
        cancelled = threading.Event()

        def work() -> Computed | None:
            started = time.perf_counter()
            if not cancelled.is_set():
                loop.call_soon_threadsafe(on_start)
            output = self._compute(params, inputs, cancelled, lambda step: loop.call_soon_threadsafe(on_step, step))
            return None if output is None else Computed(output, started, time.perf_counter())

        running = self._executor.submit(work)
        waiting = asyncio.wrap_future(running)
        try:
            computed = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            cancelled.set()
            if not running.cancel():
                await wait_quiet(waiting)
            raise
        if computed is None:
            raise asyncio.CancelledError
        return computed

    def _compute(
        self, params: SamplingParams, inputs: StageOutput, cancelled: threading.Event, on_step: Callable[[int], object]
    ) -> StageOutput | None:
        """Return the stage's output, or None where `cancelled` was set in between."""
        with torch.inference_mode():
            steps = self._stage(params, inputs)
            while not cancelled.is_set():
                try:
                    on_step(next(steps))
                except StopIteration as stop:
                    return stop.value
            steps.close()
            return None

    def close(self) -> None:
        """Wait for the thread to end. Nothing may run on it any more."""
        self._executor.shutdown()


async def wait_quiet(future: asyncio.Future[Computed | None]) -> None:
    """Wait until `future` is over, however often this task is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()
