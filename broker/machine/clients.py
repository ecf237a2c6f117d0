"""What clients say."""

from collections.abc import Callable, Mapping

from ...schemas.client import (
    CancelMsg,
    ErrorMsg,
    HelloMsg,
    PingMsg,
    PongMsg,
    QueuedMsg,
    RelayEndMsg,
    RelayFetchMsg,
    SubmitMsg,
    WelcomeMsg,
)
from ...schemas.errors import (
    DeadlineUnreachable,
    InvalidRequest,
    Overloaded,
    RequestCancelled,
    RequestError,
    TenantLimit,
    VersionMismatch,
)
from ...schemas.roles import Role
from ...schemas.sampling import SamplingLimits, check_sampling_params
from ...schemas.states import TERMINAL_STATES, RequestState
from ...schemas.transfer import PROTOCOL_VERSION
from .acceptance import accept
from .deadlines import Alarm
from .endings import end_early
from .events import ClientSpoke
from .feasibility import BENEFIT_OF_DOUBT
from .models import Model
from .naming import model_for
from .records import Request, Tenant
from .results import relay_end, relay_fetch
from .story import Story
from .tables import Tables
from .tenants import tenant_of
from .work import enqueue

#: in seconds; the schema allows no more
LONGEST_TIMEOUT_S = 7 * 86_400.0


def client_spoke(t: Tables, event: ClientSpoke) -> None:
    """Handle a message from a client."""
    watched = t.watched.get(event.peer)
    if watched is not None:
        watched.expires_at = t.now + t.settings.client_lease_s
    HANDLERS[type(event.msg)](t, event.peer, event.msg)


def _hello(t: Tables, peer: bytes, msg: HelloMsg) -> None:
    if msg.protocol_version != PROTOCOL_VERSION:
        t.tell_client(peer, ErrorMsg(VersionMismatch(PROTOCOL_VERSION, msg.protocol_version).info()))
        return
    served = {model.name: limits for model in t.models.values() if (limits := _limits(model)) is not None}
    t.tell_client(peer, WelcomeMsg(PROTOCOL_VERSION, t.package_version, _default_limits(t, served), served))


def _submit(t: Tables, peer: bytes, msg: SubmitMsg) -> None:
    if _waits_for(t, peer, msg.request_id):
        t.tell_client(peer, QueuedMsg(msg.request_id, 0))
        return
    try:
        request = _new_request(t, peer, msg)
    except RequestError as error:
        t.tell_client(peer, ErrorMsg(error.info(), msg.request_id))
        return
    position = request.model.waiting
    accept(t, request)
    enqueue(t, request, Role.ENCODER, "submitted")
    missing = tuple(role for role, pool in request.model.pools.items() if not pool.members)
    t.tell_client(peer, QueuedMsg(msg.request_id, position, missing))


def _cancel(t: Tables, peer: bytes, msg: CancelMsg) -> None:
    request = t.requests.get(msg.request_id)
    if request is None or request.client != peer or request.state in TERMINAL_STATES:
        t.ignore(peer, msg, f"it has no live request {msg.request_id}")
        return
    end_early(t, request, RequestState.CANCELLED, RequestCancelled("client"), "cancelled by the client")


def _ping(t: Tables, peer: bytes, msg: PingMsg) -> None:
    """Name the requests that are unknown, once whoever may hold them from before a restart has had time to come."""
    unknown = (name for name in msg.request_ids if not _waits_for(t, peer, name)) if t.settled else ()
    t.tell_client(peer, PongMsg(tuple(unknown)))


def client_silent(t: Tables, peer: bytes) -> None:
    """Cancel the requests of a client that is gone, those that were to end with it. The alarm may be early."""
    watched = t.watched[peer]
    if watched.expires_at > t.now:
        t.deadlines.arm(Alarm.CLIENT, peer, watched.expires_at)
        return
    why = f"nothing was heard of the client for {t.settings.client_lease_s:g} s"
    for request_id in sorted(watched.request_ids):
        end_early(t, t.requests[request_id], RequestState.CANCELLED, RequestCancelled("disconnect"), why)


HANDLERS: Mapping[type, Callable[..., None]] = {
    HelloMsg: _hello,
    SubmitMsg: _submit,
    CancelMsg: _cancel,
    PingMsg: _ping,
    RelayFetchMsg: relay_fetch,
    RelayEndMsg: relay_end,
}


def _new_request(t: Tables, peer: bytes, msg: SubmitMsg) -> Request:
    """Return the request, or raise the reason not to accept it."""
    if msg.request_id in t.requests or msg.request_id in t.ended:
        raise InvalidRequest("request_id", msg.request_id, "an id that was not used before")
    if msg.timeout_s is not None and not 0 < msg.timeout_s <= LONGEST_TIMEOUT_S:
        raise InvalidRequest("timeout_s", msg.timeout_s, f"seconds, more than 0 and at most {LONGEST_TIMEOUT_S:g}")
    model = model_for(t, msg.model)
    check_sampling_params(msg.params, _limits(model) or SamplingLimits())
    timeout_s = t.settings.request_timeout_s if msg.timeout_s is None else msg.timeout_s
    tenant = tenant_of(t, msg.tenant)
    _check_room(t, model, tenant)
    needed_s = model.estimates.at_least_s(msg.params, tuple(Role))
    if BENEFIT_OF_DOUBT * needed_s > timeout_s:
        raise DeadlineUnreachable(timeout_s, needed_s, timeout_s)
    t.arrivals += 1
    return Request(
        msg.request_id,
        peer,
        msg.params,
        model,
        tenant,
        t.arrivals,
        t.now,
        timeout_s,
        Story(),
        msg.priority,
        msg.stage_timeout_s,
        msg.cancel_on_disconnect,
    )


def _check_room(t: Tables, model: Model, tenant: Tenant) -> None:
    """Raise where the queue, or the tenant's part of it, is full."""
    queued = len(model.pools[Role.ENCODER].waiting)
    if queued >= t.settings.max_queued:
        raise Overloaded(queued, model.pace.retry_after_s())
    most = tenant.settings.max_queued
    if most is not None and tenant.waiting >= most:
        raise TenantLimit(tenant.name, most, model.pace.retry_after_s())


def _limits(model: Model) -> SamplingLimits | None:
    """Return what the encoder of the model that registered first allows."""
    encoder = next(iter(model.pools[Role.ENCODER].members.values()), None)
    return None if encoder is None else encoder.registration.limits


def _default_limits(t: Tables, served: dict[str, SamplingLimits]) -> SamplingLimits | None:
    """Return what holds for a request that names no model."""
    if t.settings.default_model:
        return served.get(t.settings.default_model)
    return next(iter(served.values())) if len(served) == 1 else None


def _waits_for(t: Tables, peer: bytes, request_id: str) -> bool:
    request = t.requests.get(request_id)
    return request is not None and request.client == peer and request.state not in TERMINAL_STATES
