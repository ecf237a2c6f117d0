"""What the machine costs: processor time in `handle`, by the kind of message. Only here is a real clock looked at."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from time import process_time_ns

from ..broker.machine.commands import Command
from ..broker.machine.events import Event
from ..broker.machine.server import DiffusionServer

#: readings of the clock from which its own cost is taken
_READINGS = 1000


class Cost:
    """Events of one kind."""

    __slots__ = ("events", "spent_ns")

    def __init__(self) -> None:
        self.events = 0
        #: processor time
        self.spent_ns = 0


class Meter:
    """A machine whose `handle` is timed."""

    __slots__ = ("_clock_ns", "_handle", "by_kind", "counting")

    def __init__(self, server: DiffusionServer) -> None:
        self._handle = server.handle
        self._clock_ns = min(_reading_ns() for _ in range(_READINGS))
        self.by_kind: dict[type, Cost] = {}
        #: False while what happens is not to be counted
        self.counting = True

    def handle(self, event: Event, now: float) -> list[Command]:
        """Let the machine handle `event`, and note what that took."""
        begun = process_time_ns()
        commands = self._handle(event, now)
        spent_ns = process_time_ns() - begun - self._clock_ns
        if self.counting:
            about: object = getattr(event, "msg", event)
            kind = type(about)
            cost = self.by_kind.get(kind)
            if cost is None:
                cost = self.by_kind[kind] = Cost()
            cost.events += 1
            cost.spent_ns += spent_ns
        return commands

    @property
    def events(self) -> int:
        """How many events were handled."""
        return sum(cost.events for cost in self.by_kind.values())

    @property
    def spent_s(self) -> float:
        """The processor time of all of them."""
        return sum(cost.spent_ns for cost in self.by_kind.values()) / 1e9


def _reading_ns() -> int:
    begun = process_time_ns()
    return process_time_ns() - begun


@contextmanager
def without_collector() -> Generator[None]:
    """Keep Python's collector of cycles away, whose cost grows with all there is. A run leaves no cycles behind."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
