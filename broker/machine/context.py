"""What goes with the work of a request, so that a broker that restarts knows it again."""

from ...schemas.context import RequestContext
from .records import Request


def context_of(request: Request, now: float) -> RequestContext:
    """Return the request as it stands."""
    return RequestContext(
        request.client,
        request.params,
        request.model.name,
        request.timeout_s,
        max(0.0, request.deadline - now),
        request.priority,
        request.tenant.name,
        request.cancel_on_disconnect,
        request.stage_timeout_s,
        tuple(request.reasons),
        tuple(request.stages),
        tuple(request.transfers),
    )
