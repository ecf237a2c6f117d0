"""The one thread on which a device computes."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from msgspec import Struct

from ..schemas.sampling import SamplingParams
from .models import Models
from .pipelines.interface import Steps
from .pipelines.stage import StageOutput
from .threads import wait_quiet


class Computed(Struct, frozen=True):
    """What a stage gave, and when it began (with its weights in memory) and ended, by `time.perf_counter`."""

    output: StageOutput
    started: float
    finished: float


class ComputeThread:
    """Computes one request after the other, in the order they are given, away from the event loop."""

    def __init__(self, models: Models, threads: int) -> None:
        self.models = models
        self._executor = ThreadPoolExecutor(1, "compute", torch.set_num_threads, (threads,))

    async def run(
        self,
        model: str,
        params: SamplingParams,
        inputs: StageOutput,
        on_start: Callable[[], None],
        on_step: Callable[[int], None],
    ) -> Computed:
        """Compute, after loading the model where it must be. `on_start` and `on_step` are called in the event loop.

        When cancelled it stops before the next step, and returns only after the thread has let go of `inputs`. Weights
        that are being loaded are loaded to the end.
        """
        loop = asyncio.get_running_loop()
        cancelled = threading.Event()

        def work() -> Computed | None:
            if cancelled.is_set():
                return None
            loop.call_soon_threadsafe(on_start)
            stage = self.models.stage(model)
            started = time.perf_counter()
            with torch.inference_mode():
                steps = stage(params, inputs)
                output = _drawn(steps, cancelled, lambda step: loop.call_soon_threadsafe(on_step, step))
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

    def close(self) -> None:
        """Wait for the thread to end. Nothing may run on it any more."""
        self._executor.shutdown()


def _drawn(steps: Steps, cancelled: threading.Event, on_step: Callable[[int], object]) -> StageOutput | None:
    """Return what `steps` come to, or None where `cancelled` was set in between."""
    while not cancelled.is_set():
        try:
            on_step(next(steps))
        except StopIteration as stop:
            return stop.value
    steps.close()
    return None
