"""Pieces of results that pass through: which clients wait for which."""

from collections import Counter, deque

from msgspec import Struct

from ...schemas.client import RelayFetchMsg


class Relay(Struct, frozen=True):
    """A piece that `client` waits for."""

    client: bytes
    msg: RelayFetchMsg


class Asked(Struct, frozen=True):
    """A relay that its holder was asked for; given up at `expires_at`."""

    relay: Relay
    holder: bytes
    expires_at: float


class Relays:
    """All pieces that clients wait for."""

    __slots__ = ("asked", "last_id", "per_client", "waiting")

    def __init__(self) -> None:
        self.waiting = deque[Relay]()
        #: by relay id; all wait for the same time, so the oldest is the first to be given up
        self.asked: dict[int, Asked] = {}
        #: of both
        self.per_client = Counter[bytes]()
        self.last_id = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.asked)

    def earliest(self) -> float | None:
        """Return when the oldest is given up."""
        oldest = next(iter(self.asked.values()), None)
        return None if oldest is None else oldest.expires_at

    def add(self, relay: Relay) -> None:
        """Let a piece wait for its turn."""
        self.waiting.append(relay)
        self.per_client[relay.client] += 1

    def note_over(self, relay: Relay) -> None:
        """Count one piece less for its client; it is in neither list any more."""
        left = self.per_client[relay.client] - 1
        if left:
            self.per_client[relay.client] = left
        else:
            del self.per_client[relay.client]
