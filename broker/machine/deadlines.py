"""The machine's alarm clock: what is due when."""

from enum import IntEnum, auto

from .heaps import KeyedHeap


class Alarm(IntEnum):
    """What a deadline is about."""

    #: an instance (by peer) has been silent for too long
    LEASE = auto()
    #: an instance (by peer) should have answered PUSH
    PUSH = auto()
    #: an instance (by peer) should have answered ABORT
    ABORT = auto()
    #: an instance (by peer) that had no room, or failed too often, may be asked again
    REST = auto()
    #: a client (by peer) whose requests end with it has been silent for too long
    CLIENT = auto()
    #: a request (by id) has had its time, or waits and cannot be done in time any more
    REQUEST = auto()
    #: an attempt of a request (by id) takes too long at its stage
    STAGE = auto()
    #: a request (by id) was taken up, and nobody else has come that holds more of it
    SETTLE = auto()
    #: ALLOC of a request (by id) should have been answered
    ALLOC = auto()
    #: a request (by id) that fitted no free instance may be tried again
    PARKED = auto()


class Deadlines:
    """One deadline per alarm and subject."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap = KeyedHeap[tuple[Alarm, str | bytes]]()

    def arm(self, alarm: Alarm, subject: str | bytes, when: float) -> None:
        """Set the alarm for `when`, in place of an earlier setting."""
        self._heap.put((alarm, subject), (when,))

    def disarm(self, alarm: Alarm, subject: str | bytes) -> None:
        """Drop the alarm, if it is set."""
        self._heap.discard((alarm, subject))

    def armed(self, alarm: Alarm, subject: str | bytes) -> bool:
        """Say whether the alarm is set."""
        return (alarm, subject) in self._heap

    def when(self, alarm: Alarm, subject: str | bytes) -> float:
        """Return what the alarm is set for; minus infinity where it is not."""
        key = self._heap.key_of((alarm, subject))
        return float("-inf") if key is None else key[0]

    def earliest(self) -> float | None:
        """Return the time of the next alarm."""
        key = self._heap.first_key()
        return None if key is None else key[0]

    def pop_due(self, now: float) -> tuple[Alarm, str | bytes] | None:
        """Take out and return an alarm whose time has come."""
        when = self.earliest()
        if when is None or when > now:
            return None
        due = self._heap.first()
        if due is not None:
            self._heap.discard(due)
        return due

    def all(self) -> list[tuple[Alarm, str | bytes]]:
        """Return every alarm that is set, in no order. For checks only: it costs O(n)."""
        return self._heap.items()
