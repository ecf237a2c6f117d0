"""How a service that is forgotten comes back: the time is the test's."""

import asyncio
from collections.abc import Awaitable, Callable

from triptych.services.incarnations import LONGEST_PAUSE_S, STEADY_S, Clock, Forgotten, run_incarnations

Run = Callable[[int], Awaitable[Forgotten | None]]


class Life:
    """Incarnations that last as long as the test says, and the clock they go by."""

    def __init__(self, lasting: list[float], exceed: int = 0) -> None:
        self.now = 0.0
        self.incarnations: list[int] = []
        self.pauses: list[float] = []
        self._lasting = lasting
        self._exceed = exceed

    async def run(self, incarnation: int) -> Forgotten | None:
        self.incarnations.append(incarnation)
        self.now += self._lasting.pop(0)
        return Forgotten(self._exceed) if self._lasting else None

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now, lambda: 1000, self.pause)


async def test_a_service_that_is_forgotten_at_once_waits_longer_each_time() -> None:
    """Up to a limit: a broker that takes nobody is not asked many times a second."""
    life = Life([0.0] * 10)
    await run_incarnations(life.run, asyncio.Event(), life.clock)
    assert life.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


async def test_a_service_that_lasted_comes_back_soon() -> None:
    """What was before it does not count any more."""
    life = Life([0.0, 0.0, 0.0, STEADY_S + 1, 0.0])
    await run_incarnations(life.run, asyncio.Event(), life.clock)
    assert life.pauses == [0.1, 0.2, 0.4, 0.05]


async def test_each_incarnation_is_newer_than_the_one_before() -> None:
    """By the clock, by what the broker says, and though the clock stands still."""
    life = Life([0.0] * 3)
    await run_incarnations(life.run, asyncio.Event(), life.clock)
    assert life.incarnations == [1000, 1001, 1002]
    life = Life([0.0] * 2, exceed=5000)
    await run_incarnations(life.run, asyncio.Event(), life.clock)
    assert life.incarnations == [1000, 5001]


async def test_a_service_that_is_told_to_stop_does_not_come_back() -> None:
    """Not after an incarnation, and not out of a pause."""
    stop = asyncio.Event()
    life = Life([0.0] * 2)

    async def forever(_seconds: float) -> None:
        stop.set()
        await asyncio.Event().wait()

    await run_incarnations(life.run, stop, Clock(lambda: 0.0, lambda: 1000, forever))
    assert life.incarnations == [1000]
