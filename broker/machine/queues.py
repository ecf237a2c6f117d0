"""The requests that wait for a role: by class, then fairly between tenants, then by arrival.

Between classes a request counts as one of the next better class for each `ageing_s` it has waited, so none starves.
Within a class the tenants share the work by weight: start-time fair queueing (Goyal, Vin, Cheng 1996), which is deficit
round robin without its rounds. A tenant's virtual time advances by the cost of what it is given over its weight, and
the one that is furthest behind is next, at O(log n) however much the costs differ (here by five orders of magnitude,
for which a round would have to be as long as the largest).
"""

from collections import Counter
from collections.abc import Callable

from ...schemas.context import Priority
from .heaps import KeyedHeap
from .records import Request, Tenant

#: the most urgent class first
_CLASSES = tuple(Priority)


class _Flow:
    """The requests of one tenant in one class, by arrival."""

    __slots__ = ("requests", "tenant", "virtual")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.requests = KeyedHeap[Request]()
        self.virtual = 0.0


class _Class:
    """The flows of one class."""

    __slots__ = ("_admits", "_ahead", "_behind", "_flows", "_heads", "_now")

    def __init__(self, admits: Callable[[Tenant], bool]) -> None:
        self._admits = admits
        self._flows: dict[str, _Flow] = {}
        #: those that can be served, the furthest behind first
        self._behind = KeyedHeap[_Flow]()
        #: the same, the one whose first request is the oldest first
        self._heads = KeyedHeap[_Flow]()
        #: those without a request that have had more than their share so far
        self._ahead = KeyedHeap[_Flow]()
        #: the virtual time of the flow that was served last
        self._now = 0.0

    def put(self, request: Request) -> None:
        name = request.tenant.name
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = _Flow(request.tenant)
        if not len(flow.requests):
            flow.tenant = request.tenant
            flow.virtual = max(flow.virtual, self._now)
            self._ahead.discard(flow)
        flow.requests.put(request, (request.arrival,))
        self._rank(flow)

    def discard(self, request: Request) -> None:
        flow = self._flows.get(request.tenant.name)
        if flow is not None:
            flow.requests.discard(request)
            self._rank(flow)

    def charge(self, request: Request, cost: float) -> None:
        """Note that `request`, which is in, is served."""
        flow = self._flows[request.tenant.name]
        self._now = max(self._now, flow.virtual)
        flow.virtual += cost / flow.tenant.settings.weight
        self._rank(flow)
        self._forget()

    def refund(self, request: Request, cost: float) -> None:
        """Note that `request`, which is in again, was not served after all."""
        flow = self._flows[request.tenant.name]
        flow.virtual -= cost / flow.tenant.settings.weight
        self._rank(flow)

    def refresh(self, tenant: str) -> None:
        flow = self._flows.get(tenant)
        if flow is not None:
            self._rank(flow)

    def oldest(self) -> Request | None:
        flow = self._heads.first()
        return None if flow is None else flow.requests.first()

    def first(self) -> Request | None:
        flow = self._behind.first()
        return None if flow is None else flow.requests.first()

    def requests(self) -> list[Request]:
        return [request for flow in self._flows.values() for request in flow.requests.items()]

    def __contains__(self, request: Request) -> bool:
        flow = self._flows.get(request.tenant.name)
        return flow is not None and request in flow.requests

    def _rank(self, flow: _Flow) -> None:
        """Put `flow` where its state belongs."""
        head = flow.requests.first()
        if head is None:
            self._behind.discard(flow)
            self._heads.discard(flow)
            self._ahead.put(flow, (flow.virtual,))
            self._forget()
        elif self._admits(flow.tenant):
            self._behind.put(flow, (flow.virtual, head.arrival))
            self._heads.put(flow, (head.arrival,))
        else:
            self._behind.discard(flow)
            self._heads.discard(flow)

    def _forget(self) -> None:
        """Drop the flows without a request that have had no more than their share."""
        while (key := self._ahead.first_key()) is not None and key[0] <= self._now:
            flow = self._ahead.first()
            if flow is not None:
                self._ahead.discard(flow)
                del self._flows[flow.tenant.name]


class FairQueue:
    """Requests in the order in which they are to be served; see the module.

    A parked request fits none of the free instances; it does not hold up those behind it, and is tried again soon.
    Tenants that `admits` is not true of are passed over.
    """

    __slots__ = ("_ageing_s", "_classes", "_parked", "_waiting", "by_class")

    def __init__(self, ageing_s: float, admits: Callable[[Tenant], bool]) -> None:
        self._ageing_s = ageing_s
        self._classes = {priority: _Class(admits) for priority in _CLASSES}
        self._parked = KeyedHeap[Request]()
        self._waiting = 0
        #: how many wait in each class, parked ones included
        self.by_class = Counter[Priority]()

    def __len__(self) -> int:
        return self._waiting

    def __contains__(self, request: Request) -> bool:
        return request in self._parked or request in self._classes[request.priority]

    @property
    def parked_count(self) -> int:
        """How many are parked."""
        return len(self._parked)

    def put(self, request: Request) -> None:
        """Let `request` wait, or end its parking."""
        if request in self._parked:
            self._parked.discard(request)
        elif request not in self._classes[request.priority]:
            self._count(request, 1)
        self._classes[request.priority].put(request)

    def put_back(self, request: Request, cost: float) -> None:
        """Let `request` wait again that was taken and could not be served."""
        self.put(request)
        self._classes[request.priority].refund(request, cost)

    def park(self, request: Request) -> None:
        """Let `request`, which waits, wait without being `first`."""
        self._classes[request.priority].discard(request)
        self._parked.put(request, (request.arrival,))

    def take(self, request: Request, cost: float) -> None:
        """Take `request`, which is `first`, out to be served, at its tenant's expense."""
        self._classes[request.priority].charge(request, cost)
        self.discard(request)

    def discard(self, request: Request) -> None:
        """Take `request` out, if it is in."""
        if request in self:
            self._count(request, -1)
            self._parked.discard(request)
            self._classes[request.priority].discard(request)

    def refresh(self, tenant: str) -> None:
        """Note that what `admits` says of `tenant` has changed."""
        for flows in self._classes.values():
            flows.refresh(tenant)

    def first(self) -> Request | None:
        """Return the request that comes next; it stays in."""
        best, best_since = None, 0.0
        for place, flows in enumerate(self._classes.values()):
            oldest = flows.oldest()
            if oldest is None:
                continue
            since = oldest.accepted_at + place * self._ageing_s
            if best is None or since < best_since:
                best, best_since = flows, since
        return None if best is None else best.first()

    def first_parked(self) -> Request | None:
        """Return the parked request that came first."""
        return self._parked.first()

    def is_parked(self, request: Request) -> bool:
        """Say whether `request` is parked."""
        return request in self._parked

    def requests(self) -> list[Request]:
        """Return all, in no order. For checks only: it costs O(n)."""
        live = [request for flows in self._classes.values() for request in flows.requests()]
        return [*live, *self._parked.items()]

    def _count(self, request: Request, change: int) -> None:
        self._waiting += change
        self.by_class[request.priority] += change
