"""What is going to happen, in order: the clock of a simulation."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


class Agenda:
    """Deeds by time; those of one moment are done in the order in which they were entered."""

    __slots__ = ("_entries", "_serial", "now", "passing")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[Any], None], Any, bool]] = []
        self._serial = 0
        #: in simulated seconds
        self.now = 0.0
        #: deeds to come but standing ones
        self.passing = 0

    def after(self, delay_s: float, deed: Callable[[T], None], about: T) -> None:
        """Enter `deed(about)` for `delay_s` from now."""
        self._serial += 1
        self.passing += 1
        heappush(self._entries, (self.now + delay_s, self._serial, deed, about, False))

    def standing(self, delay_s: float, deed: Callable[[T], None], about: T) -> None:
        """Enter `deed(about)` for `delay_s` from now; it need not be waited for when all else is over."""
        self._serial += 1
        heappush(self._entries, (self.now + delay_s, self._serial, deed, about, True))

    def next_time(self) -> float | None:
        """Return when something happens next."""
        return self._entries[0][0] if self._entries else None

    def wait_until(self, when: float) -> None:
        """Let time pass until `when`, unless that is over already; nothing is to happen before."""
        self.now = max(self.now, when)

    def do_next(self) -> None:
        """Let time pass until the next deed, and do it."""
        self.now, _, deed, about, standing = heappop(self._entries)
        self.passing -= not standing
        deed(about)
