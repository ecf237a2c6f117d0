"""The requests that wait for a role, by arrival."""

from .heaps import KeyedHeap
from .records import Request


class WaitingQueue:
    """Requests in the order in which they were accepted, whenever they come (back) to the queue.

    A parked request fits none of the free instances; it does not hold up those behind it, and is tried again soon.
    """

    __slots__ = ("_parked", "_ready")

    def __init__(self) -> None:
        self._ready = KeyedHeap[Request]()
        self._parked = KeyedHeap[Request]()

    def __len__(self) -> int:
        return len(self._ready) + len(self._parked)

    def __contains__(self, request: Request) -> bool:
        return request in self._ready or request in self._parked

    @property
    def parked_count(self) -> int:
        """How many are parked."""
        return len(self._parked)

    def put(self, request: Request) -> None:
        """Let `request` wait, or end its parking."""
        self._parked.discard(request)
        self._ready.put(request, (request.arrival,))

    def park(self, request: Request) -> None:
        """Let `request` wait without being `first`."""
        self._ready.discard(request)
        self._parked.put(request, (request.arrival,))

    def discard(self, request: Request) -> None:
        """Take `request` out, if it is in."""
        self._ready.discard(request)
        self._parked.discard(request)

    def first(self) -> Request | None:
        """Return the request that comes next; it stays in."""
        return self._ready.first()

    def first_parked(self) -> Request | None:
        """Return the parked request that came first."""
        return self._parked.first()

    def is_parked(self, request: Request) -> bool:
        """Say whether `request` is parked."""
        return request in self._parked

    def requests(self) -> list[Request]:
        """Return all, in no order. For checks only: it costs O(n)."""
        return [*self._ready.items(), *self._parked.items()]
