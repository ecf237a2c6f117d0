"""What waits to be fetched: for whom, for how long, and how much of it. No socket and no clock here."""

import asyncio
import hmac
from collections import OrderedDict
from dataclasses import dataclass

from msgspec import Struct

from ...schemas.errors import MalformedMessage, PayloadTooLarge, ResultGone
from ...schemas.transfer import Claim, Piece
from ...transport.link.codec import Frame

#: a result that was made or read so recently is in use, and never dropped to make room, in seconds
IN_USE_S = 5.0
#: a result that is read is kept for at most so many times its `ttl_s`
LONGEST_LIFE = 4
#: a reader may have every byte so many times: over the data link, and again through the broker
MAX_READS = 2


class OutboxLimits(Struct, frozen=True):
    """How much is kept, and how long."""

    #: of all results together
    max_bytes: int
    #: from when a result was made or last read, in seconds
    ttl_s: float


@dataclass(slots=True, eq=False)
class _Entry:
    token: bytes
    files: tuple[Frame, ...]
    size: int
    made_at: float
    #: made or last read
    used_at: float
    #: bytes that may still be read
    readable: int
    #: whose it is; None until somebody shows the token
    reader: bytes | None = None


class Outbox:
    """Results by request. Each goes when its reader wants no more, when its time is up, or to make room for another."""

    def __init__(self, limits: OutboxLimits) -> None:
        self._limits = limits
        #: the one used longest ago first
        self._entries = OrderedDict[str, _Entry]()
        self._held = 0
        self._changed = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        """How much is kept."""
        return self._held

    def __len__(self) -> int:
        return len(self._entries)

    async def wait_changed(self) -> None:
        """Wait until a result has gone or been taken in."""
        self._changed.clear()
        await self._changed.wait()

    def make_room(self, size: int, now: float) -> bool:
        """Say whether `size` bytes fit, dropping first what nobody seems to want. Raises `PayloadTooLarge`."""
        limit = self._limits.max_bytes
        if size > limit:
            raise PayloadTooLarge(size, limit, "outbox_bytes")
        self.expire(now)
        for request_id, entry in list(self._entries.items()):
            if self._held + size <= limit or entry.used_at + IN_USE_S > now:
                break
            self.drop(request_id)
        return self._held + size <= limit

    def room_at(self, now: float) -> float:
        """Return when asking for room again may help, if nothing changes before."""
        oldest = next(iter(self._entries.values()), None)
        return now if oldest is None else oldest.used_at + IN_USE_S

    def put(self, request_id: str, token: bytes, files: tuple[Frame, ...], now: float) -> None:
        """Keep `files`, for which there is room, in place of an older result of the same request."""
        self.drop(request_id)
        size = sum(map(len, files))
        self._entries[request_id] = _Entry(token, files, size, now, now, MAX_READS * size)
        self._held += size
        self._changed.set()

    def read(self, claim: Claim, piece: Piece, now: float) -> Frame:
        """Return the bytes of `piece`, not copied. Raises `ResultGone`, or `MalformedMessage` for no such piece."""
        entry = self._claimed(claim)
        if piece.medium >= len(entry.files) or piece.offset + piece.length > len(entry.files[piece.medium]):
            raise MalformedMessage(f"the result has no bytes {piece.offset} + {piece.length} of medium {piece.medium}")
        if piece.length > entry.readable:
            self.drop(claim.request_id)
            raise ResultGone(claim.request_id)
        entry.readable -= piece.length
        entry.used_at = now
        self._entries.move_to_end(claim.request_id)
        return memoryview(entry.files[piece.medium])[piece.offset : piece.offset + piece.length]

    def end(self, claim: Claim) -> None:
        """Drop the result; its reader wants no more. Raises `ResultGone` where the claim is none."""
        self._claimed(claim)
        self.drop(claim.request_id)

    def drop(self, request_id: str) -> None:
        """Drop the result, if there is one."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._held -= entry.size
            self._changed.set()

    def withdraw(self, request_id: str, token: bytes) -> None:
        """Drop the result with this token, if it is still there."""
        entry = self._entries.get(request_id)
        if entry is not None and hmac.compare_digest(entry.token, token):
            self.drop(request_id)

    def expire(self, now: float) -> list[str]:
        """Drop what has had its time, and return of which requests it was."""
        over = [request_id for request_id, entry in self._entries.items() if self._ends_at(entry) <= now]
        for request_id in over:
            self.drop(request_id)
        return over

    def next_deadline(self) -> float | None:
        """Return when `expire` must be called."""
        return min(map(self._ends_at, self._entries.values()), default=None)

    def _ends_at(self, entry: _Entry) -> float:
        ttl_s = self._limits.ttl_s
        return min(entry.used_at + ttl_s, entry.made_at + LONGEST_LIFE * ttl_s)

    def _claimed(self, claim: Claim) -> _Entry:
        """Return the result that is `claim`'s; the first to show the token makes it its own."""
        entry = self._entries.get(claim.request_id)
        known = hmac.compare_digest(claim.token, claim.token if entry is None else entry.token)
        if entry is None or not known:
            raise ResultGone(claim.request_id)
        if entry.reader is None:
            entry.reader = claim.reader
        if not hmac.compare_digest(entry.reader, claim.reader):
            raise ResultGone(claim.request_id)
        return entry
