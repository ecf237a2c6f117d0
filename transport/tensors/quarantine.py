"""Slots whose writer was lost, and when they may be used again."""

from collections.abc import Callable, Container

from msgspec import Struct

from ...schemas.memory import PoolAddress

#: after a writer on another host was forgotten. It only hung, perhaps, and the bytes it had on their way still arrive;
#: but none of its writes outlives its own timeout by more than what it was doing at that moment
FORGOTTEN_S = 180.0


class _Kept(Struct):
    writer: PoolAddress | None
    forgotten_at: float | None = None


class Quarantine:
    """The slots kept out of use. Without a writer to watch, a slot stays for good.

    A writer on this host has let go when its process is gone, which its segment's lock tells. One on another host has
    let go some time after it was forgotten.
    """

    def __init__(self, lives: Callable[[PoolAddress], bool], here: str, forgotten_s: float = FORGOTTEN_S) -> None:
        self._lives = lives
        #: the id of this host
        self._here = here
        self._forgotten_s = forgotten_s
        self._kept: dict[int, _Kept] = {}

    def add(self, slot_id: int, writer: PoolAddress | None) -> None:
        """Keep a slot that `writer` may still write."""
        self._kept[slot_id] = _Kept(writer)

    def forget(self, writer: PoolAddress, now: float) -> None:
        """Take note that the writer's service is gone."""
        for kept in self._kept.values():
            known = kept.writer
            if known is not None and (known.host_id, known.segment) == (writer.host_id, writer.segment):
                kept.forgotten_at = kept.forgotten_at or now

    def take_safe(self, now: float, busy: Container[int] = ()) -> list[int]:
        """Return the slots, but for `busy` ones, whose writers have let go, and keep them no longer."""
        safe = [slot_id for slot_id, kept in self._kept.items() if slot_id not in busy and self._let_go(kept, now)]
        for slot_id in safe:
            del self._kept[slot_id]
        return safe

    def waits(self) -> bool:
        """Return whether some slot may come back."""
        return any(kept.writer is not None for kept in self._kept.values())

    def _let_go(self, kept: _Kept, now: float) -> bool:
        if kept.writer is None:
            return False
        if kept.writer.host_id == self._here:
            return not self._lives(kept.writer)
        return kept.forgotten_at is not None and now - kept.forgotten_at >= self._forgotten_s
