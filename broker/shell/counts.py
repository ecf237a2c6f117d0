"""What the shell counts."""

from dataclasses import dataclass

from ...schemas.status import MessageCounts


@dataclass(slots=True)
class Counts:
    """Messages since the broker's start; `MessageCounts` says what each number means."""

    received: int = 0
    ignored: int = 0
    malformed: int = 0
    undeliverable: int = 0

    def statistics(self) -> MessageCounts:
        """Return the numbers as they stand."""
        return MessageCounts(self.received, self.ignored, self.malformed, self.undeliverable)
