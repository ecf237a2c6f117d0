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
from ...schemas.errors import InvalidRequest, Overloaded, RequestCancelled, RequestError, VersionMismatch
from ...schemas.roles import Role
from ...schemas.sampling import SamplingLimits, check_sampling_params
from ...schemas.states import TERMINAL_STATES, RequestState
from ...schemas.transfer import PROTOCOL_VERSION
from .deadlines import Alarm
from .endings import end_early
from .events import ClientSpoke
from .records import Request
from .results import relay_end, relay_fetch
from .story import Story
from .tables import Tables
from .work import enqueue

#: in seconds; the schema allows no more
LONGEST_TIMEOUT_S = 7 * 86_400.0


def client_spoke(t: Tables, event: ClientSpoke) -> None:
    """Handle a message from a client."""
    HANDLERS[type(event.msg)](t, event.peer, event.msg)


def _hello(t: Tables, peer: bytes, msg: HelloMsg) -> None:
    if msg.protocol_version != PROTOCOL_VERSION:
        t.tell_client(peer, ErrorMsg(VersionMismatch(PROTOCOL_VERSION, msg.protocol_version).info()))
        return
    t.tell_client(peer, WelcomeMsg(PROTOCOL_VERSION, t.package_version, _limits(t)))


def _submit(t: Tables, peer: bytes, msg: SubmitMsg) -> None:
    try:
        _check_submission(t, msg)
    except RequestError as error:
        t.tell_client(peer, ErrorMsg(error.info(), msg.request_id))
        return
    t.arrivals += 1
    timeout_s = t.settings.request_timeout_s if msg.timeout_s is None else msg.timeout_s
    request = Request(msg.request_id, peer, msg.params, t.arrivals, t.now, timeout_s, Story())
    t.requests[msg.request_id] = request
    t.deadlines.arm(Alarm.REQUEST, msg.request_id, t.now + timeout_s)
    position = len(t.pools[Role.ENCODER].waiting)
    missing = tuple(role for role in Role if not t.pools[role].members)
    enqueue(t, request, Role.ENCODER, "submitted")
    t.tell_client(peer, QueuedMsg(msg.request_id, position, missing))


def _cancel(t: Tables, peer: bytes, msg: CancelMsg) -> None:
    request = t.requests.get(msg.request_id)
    if request is None or request.client != peer or request.state in TERMINAL_STATES:
        t.ignore(peer, msg, f"it has no live request {msg.request_id}")
        return
    end_early(t, request, RequestState.CANCELLED, RequestCancelled("client"), "cancelled by the client")


def _ping(t: Tables, peer: bytes, msg: PingMsg) -> None:
    t.tell_client(peer, PongMsg(tuple(name for name in msg.request_ids if not _waits_for(t, peer, name))))


HANDLERS: Mapping[type, Callable[..., None]] = {
    HelloMsg: _hello,
    SubmitMsg: _submit,
    CancelMsg: _cancel,
    PingMsg: _ping,
    RelayFetchMsg: relay_fetch,
    RelayEndMsg: relay_end,
}


def _check_submission(t: Tables, msg: SubmitMsg) -> None:
    """Raise the reason not to accept the request."""
    if msg.request_id in t.requests or msg.request_id in t.ended:
        raise InvalidRequest("request_id", msg.request_id, "an id that was not used before")
    if msg.timeout_s is not None and not 0 < msg.timeout_s <= LONGEST_TIMEOUT_S:
        raise InvalidRequest("timeout_s", msg.timeout_s, f"seconds, more than 0 and at most {LONGEST_TIMEOUT_S:g}")
    check_sampling_params(msg.params, _limits(t) or SamplingLimits())
    queued = len(t.pools[Role.ENCODER].waiting)
    if queued >= t.settings.max_queued:
        raise Overloaded(queued, t.pace.retry_after_s())


def _limits(t: Tables) -> SamplingLimits | None:
    """Return what the encoder that registered first allows."""
    encoder = next(iter(t.pools[Role.ENCODER].members.values()), None)
    return None if encoder is None else encoder.registration.limits


def _waits_for(t: Tables, peer: bytes, request_id: str) -> bool:
    request = t.requests.get(request_id)
    return request is not None and request.client == peer and request.state not in TERMINAL_STATES
