"""A request becomes known: from now on it ends exactly once, and its client is told."""

from .deadlines import Alarm
from .records import Request
from .tables import Tables, WatchedClient
from .tenants import join_tenant


def accept(t: Tables, request: Request) -> None:
    """Take `request` in; it is PENDING."""
    t.requests[request.request_id] = request
    t.deadlines.arm(Alarm.REQUEST, request.request_id, request.deadline)
    join_tenant(t, request)
    if request.cancel_on_disconnect:
        _watch(t, request)


def _watch(t: Tables, request: Request) -> None:
    """End the request when nothing is heard of its client any more."""
    watched = t.watched.get(request.client)
    if watched is None:
        watched = t.watched[request.client] = WatchedClient(t.now + t.settings.client_lease_s)
        t.deadlines.arm(Alarm.CLIENT, request.client, watched.expires_at)
    watched.request_ids.add(request.request_id)
