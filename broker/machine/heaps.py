"""A heap whose items can be moved and taken out again."""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")

#: the smallest comes first; NaN must never get in
Key = tuple[float, ...]

#: stale entries that a heap may always keep
SLACK = 64


class KeyedHeap(Generic[Item]):
    """Items by key, the smallest first; equal keys keep the order they came in. O(log n) each, amortised.

    An item that is moved or taken out leaves a stale entry behind. Stale entries are dropped when they come to the top,
    or all at once when they outnumber the live ones.
    """

    __slots__ = ("_entries", "_live", "_serial")

    def __init__(self) -> None:
        self._entries: list[tuple[Key, int, Item]] = []
        #: item: the key and the serial number of the one entry that counts
        self._live: dict[Item, tuple[Key, int]] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def put(self, item: Item, key: Key) -> None:
        """Put `item` in, or move it."""
        known = self._live.get(item)
        if known is not None and known[0] == key:
            return
        self._serial += 1
        self._live[item] = (key, self._serial)
        heappush(self._entries, (key, self._serial, item))
        self._compact()

    def discard(self, item: Item) -> None:
        """Take `item` out, if it is in."""
        if self._live.pop(item, None) is not None:
            self._compact()

    def first(self) -> Item | None:
        """Return the item with the smallest key."""
        entry = self._first_entry()
        return None if entry is None else entry[2]

    def first_key(self) -> Key | None:
        """Return the smallest key."""
        entry = self._first_entry()
        return None if entry is None else entry[0]

    def key_of(self, item: Item) -> Key | None:
        """Return the key of `item`, or None where it is not in."""
        known = self._live.get(item)
        return None if known is None else known[0]

    def items(self) -> list[Item]:
        """Return all items, in no order. For checks and status only: it costs O(n)."""
        return list(self._live)

    def _first_entry(self) -> tuple[Key, int, Item] | None:
        entries, live = self._entries, self._live
        while entries:
            key, serial, item = entries[0]
            if live.get(item) == (key, serial):
                return entries[0]
            heappop(entries)
        return None

    def _compact(self) -> None:
        if len(self._entries) > 2 * len(self._live) + SLACK:
            self._entries = [(key, serial, item) for item, (key, serial) in self._live.items()]
            heapify(self._entries)
