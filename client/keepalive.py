"""Whether the broker still answers."""

from msgspec import Struct

#: between two PINGs while requests are in flight, in seconds
PING_INTERVAL_S = 2.0
#: so many PINGs without a word from the broker, and it counts as unreachable
MAX_UNANSWERED = 5


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
