"""Waiting for one of several things."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Run all of `waits` until one of them is over; end the others."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(wait) for wait in waits]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()


async def wait_done(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is over, whatever came of it; it goes on when this is cancelled."""
    await asyncio.wait((future,))
