"""The event loop under a command, and what signals do to it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_cancellable(body: Coroutine[None, None, T]) -> T:
    """Run `body`; a signal cancels it, a second one cancels its clean-up."""

    async def main() -> T:
        task = asyncio.ensure_future(body)
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    return asyncio.run(main())


def run_until_signal(body: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `body` with an event that the first signal sets; the second one cancels `body`."""

    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.ensure_future(body(stop))

        def interrupt() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
        await task

    asyncio.run(main())
