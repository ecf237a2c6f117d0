"""Whether the broker still answers, and which PING an answer is for."""

import secrets
from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import Struct

from ..schemas.client import PingMsg, PongMsg

#: between two PINGs while requests are in flight, in seconds
PING_INTERVAL_S = 2.0
#: so many PINGs without a word from the broker, and it counts as unreachable
MAX_UNANSWERED = 5
#: request ids that one PING can name
MAX_PING_IDS = 4096


class KeepAlive(Struct):
    """Counts PINGs rather than seconds, so that a stopped clock or a busy loop costs no request."""

    interval_s: float = PING_INTERVAL_S
    unanswered: int = 0

    def heard(self) -> None:
        """Note that the broker said something, whatever it was."""
        self.unanswered = 0

    def lost(self) -> bool:
        """Return whether the broker counts as unreachable; where not, another PING is to be sent."""
        if self.unanswered == MAX_UNANSWERED:
            return True
        self.unanswered += 1
        return False

    @property
    def silence_s(self) -> float:
        """How long the broker has said nothing, in seconds."""
        return self.unanswered * self.interval_s


class Pings:
    """Numbers the PINGs of one session, so that an old PONG says nothing of what was submitted since.

    Each PING names, before the requests, one that does not exist; PONG, which tells the unknown ones, tells it back.
    """

    def __init__(self) -> None:
        self._mark = f"ping/{secrets.token_hex(8)}/"
        #: how many were made
        self.count = 0

    def make(self, request_ids: Iterable[str]) -> Iterator[PingMsg]:
        """Yield PINGs, one at least, that name `request_ids` all together."""
        left = iter(request_ids)
        chunk = tuple(islice(left, MAX_PING_IDS - 1))
        while True:
            self.count += 1
            yield PingMsg((f"{self._mark}{self.count}", *chunk))
            chunk = tuple(islice(left, MAX_PING_IDS - 1))
            if not chunk:
                return

    def number_of(self, pong: PongMsg) -> int:
        """Return which PING it answers, counted from 1, or 0 where it does not tell."""
        for name in pong.unknown:
            number = name.removeprefix(self._mark)
            if number != name and number.isascii() and number.isdecimal():
                return int(number)
        return 0
