"""How late the loop is."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from triptych.broker.shell.loop_lag import LagStatistics, LoopLag


class SlowLoop:
    """A loop whose time is set by hand, and which calls timers only when told."""

    def __init__(self) -> None:
        self.now = 100.0
        self._due: list[tuple[asyncio.TimerHandle, Callable[[], Any]]] = []
        self._real = asyncio.new_event_loop()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], Any], /) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, (), self._real)
        self._due.append((handle, callback))
        return handle

    def turn(self, now: float) -> int:
        """Call what is due at `now`, and return how many that were."""
        self.now = now
        due = [entry for entry in self._due if entry[0].when() <= now and not entry[0].cancelled()]
        self._due = [entry for entry in self._due if entry not in due]
        for _, callback in due:
            callback()
        return len(due)

    def close(self) -> None:
        self._real.close()


@pytest.fixture
def loop() -> Iterator[SlowLoop]:
    slow = SlowLoop()
    yield slow
    slow.close()


def test_a_loop_that_keeps_time_has_no_lag(loop: SlowLoop) -> None:
    """A timer that fires when it is due counts as 0."""
    lag = LoopLag(loop, period_s=1.0)
    assert [loop.turn(now) for now in (100.5, 101.0, 102.0)] == [0, 1, 1]
    assert lag.statistics() == LagStatistics(last_s=0.0, max_s=0.0, mean_s=0.0)


def test_the_last_lag_the_largest_and_the_average_are_told(loop: SlowLoop) -> None:
    """Late by 0.5 s, then by 0.25 s."""
    lag = LoopLag(loop, period_s=1.0)
    loop.turn(101.5)
    assert lag.statistics() == LagStatistics(last_s=0.5, max_s=0.5, mean_s=0.05)
    loop.turn(102.75)
    assert lag.statistics() == LagStatistics(last_s=0.25, max_s=0.5, mean_s=pytest.approx(0.07))


def test_a_long_hold_up_is_one_measurement(loop: SlowLoop) -> None:
    """The timers that were missed meanwhile are not made up for."""
    lag = LoopLag(loop, period_s=1.0)
    assert [loop.turn(now) for now in (160.0, 160.5, 161.0)] == [1, 0, 1]
    assert lag.statistics().max_s == 59.0


def test_a_closed_one_measures_no_more(loop: SlowLoop) -> None:
    """Its timer is gone."""
    lag = LoopLag(loop, period_s=1.0)
    lag.close()
    assert loop.turn(200.0) == 0
    assert lag.statistics() == LagStatistics()


async def test_what_holds_the_running_loop_up_is_seen() -> None:
    """What takes 50 ms makes a timer of the running loop late by about that."""
    lag = LoopLag(asyncio.get_running_loop(), period_s=0.001)
    time.sleep(0.05)  # noqa: ASYNC251  (the hold-up)
    await asyncio.sleep(0)  # the turn in which the timer is due
    await asyncio.sleep(0)
    lag.close()
    assert lag.statistics().max_s >= 0.049
