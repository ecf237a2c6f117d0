"""Work in another thread, from which nobody goes away before the thread has let go."""

import asyncio
import threading
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


async def wait_quiet(future: asyncio.Future[T]) -> None:
    """Wait until `future` is over, however often this task is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()


async def collect_in_thread(items: Iterable[T]) -> list[T]:
    """Draw all of `items` in a thread.

    When cancelled it draws no more, and returns only after the thread has let go of what `items` refers to.
    """
    cancelled = threading.Event()

    def draw() -> list[T]:
        drawn: list[T] = []
        for item in items:
            drawn.append(item)
            if cancelled.is_set():
                break
        return drawn

    drawing = asyncio.get_running_loop().run_in_executor(None, draw)
    try:
        return await asyncio.shield(drawing)
    except asyncio.CancelledError:
        cancelled.set()
        await wait_quiet(drawing)
        raise
