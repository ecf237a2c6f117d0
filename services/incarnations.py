"""One incarnation of a service after the other, for as long as the broker forgets them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from msgspec import Struct

from .waiting import first_of

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")

#: before a service that was forgotten registers anew: longer each time, unless an incarnation lasted; in seconds
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
STEADY_S = 10.0


class Forgotten(Struct, frozen=True):
    """The broker does not know an incarnation any more; the next one must be above `exceed`."""

    exceed: int = 0


class Clock(Struct, frozen=True):
    """The time that a row of incarnations goes by."""

    #: seconds, for how long one lasted
    monotonic: Callable[[], float] = time.monotonic
    #: for their numbers: later processes have greater ones
    nanoseconds: Callable[[], int] = time.time_ns
    #: waits so many seconds
    pause: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep


async def run_incarnations(
    run: Callable[[int], Awaitable[Forgotten | None]], stop: asyncio.Event, clock: Clock | None = None
) -> None:
    """Run incarnations, each with a number of its own, until one was stopped or `stop` is set."""
    clock = clock or Clock()
    forgotten: Forgotten | None = Forgotten()
    incarnation, pause_s = 0, FIRST_PAUSE_S
    while forgotten is not None and not stop.is_set():
        began = clock.monotonic()
        incarnation = max(clock.nanoseconds(), forgotten.exceed + 1, incarnation + 1)
        forgotten = await run(incarnation)
        if forgotten is not None:
            log.warning("the broker does not know this service any more")
            pause_s = next_pause(pause_s, clock.monotonic() - began)
            await first_of(clock.pause(pause_s), stop.wait())


def next_pause(pause_s: float, lasted_s: float) -> float:
    """Return how long to wait after an incarnation that lasted so long, where the last wait was `pause_s`."""
    return FIRST_PAUSE_S if lasted_s > STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
