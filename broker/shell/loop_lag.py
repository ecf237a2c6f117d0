"""How late the loop is: what everybody in it waits for whoever has its turn."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

#: of a measurement, in seconds; an idle broker does not notice it
PERIOD_S = 0.25
#: the weight of the newest measurement in the average
WEIGHT = 0.1


class Timers(Protocol):
    """The part of an event loop that is measured."""

    def time(self) -> float:
        """Return the loop's time, in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], Any], /) -> asyncio.TimerHandle:
        """Call `callback` at `when` or, where the loop is busy then, later."""
        ...


class LagStatistics(Struct, frozen=True):
    """How late timers fired, in seconds."""

    #: the last one
    last_s: float = 0.0
    #: the latest one of all
    max_s: float = 0.0
    #: the moving average of some ten
    mean_s: float = 0.0


class LoopLag:
    """Measures the lag of a loop from now on, by a timer that is due each `period_s`."""

    def __init__(self, loop: Timers, period_s: float = PERIOD_S) -> None:
        self._loop = loop
        self._period_s = period_s
        self._statistics = LagStatistics()
        self._timer = self._set()

    def statistics(self) -> LagStatistics:
        """Return what was measured so far."""
        return self._statistics

    def close(self) -> None:
        """Measure no more."""
        self._timer.cancel()

    def _set(self) -> asyncio.TimerHandle:
        return self._loop.call_at(self._loop.time() + self._period_s, self._measure)

    def _measure(self) -> None:
        lag_s = max(0.0, self._loop.time() - self._timer.when())
        known = self._statistics
        mean_s = known.mean_s + WEIGHT * (lag_s - known.mean_s)
        self._statistics = LagStatistics(lag_s, max(lag_s, known.max_s), mean_s)
        self._timer = self._set()
