"""The one tree of errors: by whose fault it is, and what to do about it.

TriptychError
├── RequestError             the request cannot be served as it stands; change it or ask again
│   ├── InvalidRequest       a field has a value that is not allowed: correct it
│   ├── Overloaded           the queue is full: ask again after `retry_after_s`
│   ├── TenantLimit          its tenant has as much waiting as it may: ask again after `retry_after_s`
│   ├── DeadlineUnreachable  the stages that are left take longer than the time that is left
│   ├── RequestTimedOut      its time ran out
│   ├── RequestCancelled     somebody cancelled it
│   ├── RequestFailed        every attempt failed, with the reason of each
│   ├── RequestLost          the broker does not know it (any more)
│   └── ResultGone           its result cannot be fetched (any more)
├── LinkError                the two ends do not come together
│   ├── BrokerUnreachable    nothing answers at that endpoint
│   ├── PeerUnreachable      a peer is gone, or reads too slowly
│   ├── VersionMismatch      they speak different protocol versions
│   └── RegistrationRefused  the broker does not take this service
├── PeerError                the other side sent what it must not send; it is dropped
│   ├── MalformedMessage     frames that are no message of the protocol
│   └── ManifestMismatch     a manifest that does not fit its slot
├── ResourceError            this host cannot hold what is asked
│   ├── PoolExhausted        no room now; it comes back
│   └── PayloadTooLarge      never any room; a setting must change
├── TransferError            an engine could not move the bytes
│   └── WriteOverdue         nor could it stop: the slots at both ends may still be touched
├── ConfigError              a setting has a value that is not allowed
├── UnknownName              nothing of that kind has this name: take one that exists
├── ProcessDied              a process that was started here ended by itself
└── InvalidTransition        the broker's machine broke its own rules: a bug, with the request's story
"""

import signal
from typing import ClassVar, Self

from msgspec import Struct

type_of: dict[str, type["TriptychError"]] = {}

Detail = str | int | float | bool | list[str] | None


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """An error on the wire: `code` names the class, `details` are its fields."""

    code: str
    message: str
    details: dict[str, Detail] = {}


class TriptychError(Exception):
    """Whatever goes wrong in Triptych is one of these."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, code: str) -> None:
        cls.code = code
        type_of[code] = cls

    def info(self) -> ErrorInfo:
        """Return the form of this error that travels."""
        return ErrorInfo(self.code, str(self), dict(vars(self)))

    @classmethod
    def rebuild(cls, info: ErrorInfo) -> Self:
        """Build the error again from what travelled; its fields are set as they came."""
        error = cls.__new__(cls, info.message)
        error.args = (info.message,)
        vars(error).update(info.details)
        return error


def error_from(info: ErrorInfo) -> TriptychError:
    """Return the exception for `info`; a code this version does not know gives a plain `TriptychError`."""
    return type_of.get(info.code, TriptychError).rebuild(info)


class RequestError(TriptychError, code="request_error"):
    """The request cannot be served as it stands."""


class InvalidRequest(RequestError, code="invalid_request"):
    """The field `field` has the value `value` (shortened), and `allowed` says what would be right."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = shortened(value)
        self.allowed = allowed
        super().__init__(f"{field} is {self.value}; allowed: {allowed}")


class Overloaded(RequestError, code="overloaded"):
    """The queue holds `queued` requests, its bound; ask again after `retry_after_s` seconds."""

    def __init__(self, queued: int, retry_after_s: float) -> None:
        self.queued = queued
        self.retry_after_s = retry_after_s
        super().__init__(f"the queue is full ({queued} requests wait); ask again in {retry_after_s:.1f} s")


class TenantLimit(RequestError, code="tenant_limit"):
    """`tenant` has `waiting` requests waiting, its bound; ask again after `retry_after_s` seconds."""

    def __init__(self, tenant: str, waiting: int, retry_after_s: float) -> None:
        self.tenant = tenant
        self.waiting = waiting
        self.retry_after_s = retry_after_s
        who = f"tenant {tenant}" if tenant else "the tenant without a name"
        super().__init__(f"{who} may not have more than {waiting} requests waiting; ask again in {retry_after_s:.1f} s")


class DeadlineUnreachable(RequestError, code="deadline_unreachable"):
    """The stages that are left take about `needed_s` seconds, and `left_s` are left of `timeout_s`."""

    def __init__(self, timeout_s: float, needed_s: float, left_s: float) -> None:
        self.timeout_s = timeout_s
        self.needed_s = needed_s
        self.left_s = left_s
        super().__init__(
            f"it cannot be done within its {timeout_s:g} s: it takes {needed_s:.3g} s more and has {left_s:.3g} s; "
            "give it a longer timeout or fewer steps"
        )


class RequestTimedOut(RequestError, code="timed_out"):
    """The request was not done `timeout_s` seconds after it was accepted; `state` is where it stood."""

    def __init__(self, timeout_s: float, state: str) -> None:
        self.timeout_s = timeout_s
        self.state = state
        super().__init__(f"not done after {timeout_s:g} s; it was {state}; give it a longer timeout or add instances")


class RequestCancelled(RequestError, code="cancelled"):
    """The request was cancelled by `by` (client, admin)."""

    def __init__(self, by: str) -> None:
        self.by = by
        super().__init__(f"cancelled by {by}")


class RequestFailed(RequestError, code="failed"):
    """No attempt succeeded; `reasons` has one line for each."""

    def __init__(self, reasons: list[str]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reasons))


class RequestLost(RequestError, code="lost"):
    """The broker does not know the request: it restarted, or the request ended long ago."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"the broker does not know request {request_id} any more; submit it again")


class ResultGone(RequestError, code="result_gone"):
    """The result of the request cannot be fetched, for `reason`, which is the same for all who have no right to it."""

    def __init__(self, request_id: str, reason: str = "it was fetched, dropped or never here") -> None:
        self.request_id = request_id
        self.reason = reason
        super().__init__(f"the result of request {request_id} is gone: {reason}; submit it again")


class LinkError(TriptychError, code="link_error"):
    """The two ends do not come together."""


class BrokerUnreachable(LinkError, code="broker_unreachable"):
    """No broker answered at `endpoint` for `waited_s` seconds."""

    def __init__(self, endpoint: str, waited_s: float) -> None:
        self.endpoint = endpoint
        self.waited_s = waited_s
        waited = f" (waited {waited_s:g} s)" if waited_s else ""
        super().__init__(f"no broker answers at {endpoint}{waited}; start one with `triptych up`, or name another")


class PeerUnreachable(LinkError, code="peer_unreachable"):
    """Nothing can be sent to a peer, for `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class VersionMismatch(LinkError, code="version_mismatch"):
    """The broker speaks protocol `broker_version`, the peer `peer_version`."""

    def __init__(self, broker_version: int, peer_version: int) -> None:
        self.broker_version = broker_version
        self.peer_version = peer_version
        older = "the peer" if peer_version < broker_version else "the broker"
        super().__init__(
            f"the broker speaks protocol version {broker_version}, the peer version {peer_version}; upgrade {older}"
        )


class RegistrationRefused(LinkError, code="registration_refused"):
    """The broker does not take this service, for `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the broker refused the registration: {reason}")


class PeerError(TriptychError, code="peer_error"):
    """The other side sent what it must not send."""


class MalformedMessage(PeerError, code="malformed_message"):
    """Frames that are no message of the protocol, for `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"not a message: {reason}")


class ManifestMismatch(PeerError, code="manifest_mismatch"):
    """A manifest that does not fit its slot; nothing was read or written."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the manifest does not fit: {reason}")


class ResourceError(TriptychError, code="resource_error"):
    """This host cannot hold what is asked."""


class PoolExhausted(ResourceError, code="pool_exhausted"):
    """The pool has no free block of `needed` bytes now (`free` bytes are free in all)."""

    def __init__(self, needed: int, free: int) -> None:
        self.needed = needed
        self.free = free
        super().__init__(f"the pool has no free block of {needed} bytes now ({free} bytes are free in all)")


class PayloadTooLarge(ResourceError, code="payload_too_large"):
    """A payload of `needed` bytes can never fit; `setting` is the one to raise above `limit`."""

    def __init__(self, needed: int, limit: int, setting: str) -> None:
        self.needed = needed
        self.limit = limit
        self.setting = setting
        super().__init__(f"{needed} bytes do not fit into {limit}; raise {setting}")


class TransferError(TriptychError, code="transfer_error"):
    """An engine could not move the bytes, for `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the transfer failed: {reason}")


class WriteOverdue(TransferError, code="write_overdue"):
    """A write took longer than `timeout_s`, and cannot be stopped: it may still touch the slots at both ends."""

    def __init__(self, reason: str, timeout_s: float) -> None:
        super().__init__(f"{reason} within {timeout_s:g} s")
        self.timeout_s = timeout_s


class ConfigError(TriptychError, code="config_error"):
    """The setting `key` has the value `value`, and `allowed` says what would be right."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        self.value = shortened(value)
        self.allowed = allowed
        super().__init__(f"{key} is {self.value}; allowed: {allowed}")


class UnknownName(TriptychError, code="unknown_name"):
    """No `kind` (instance, request) is called `name`; those that are `near` are."""

    def __init__(self, kind: str, name: str, near: list[str]) -> None:
        self.kind = kind
        self.name = shortened(name)
        self.near = near
        did_you_mean = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"no {kind} is called {self.name}{did_you_mean}")


class ProcessDied(TriptychError, code="process_died"):
    """The process `name` ended by itself with `status` (negative: the signal that killed it); `last_line` it said."""

    def __init__(self, name: str, status: int, last_line: str) -> None:
        self.name = name
        self.status = status
        self.last_line = last_line.removeprefix("error: ")
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(f"{name} {how}; the last it said: {self.last_line or 'nothing'}")


class InvalidTransition(TriptychError, code="invalid_transition"):
    """The machine tried a transition that its table does not have."""

    def __init__(self, request_id: str, start: str, finish: str, story: list[str]) -> None:
        self.request_id = request_id
        self.start = start
        self.finish = finish
        self.story = story
        super().__init__(f"request {request_id}: no transition from {start} to {finish}; its story: {'; '.join(story)}")


def shortened(value: object, limit: int = 80) -> str:
    """Return `value` as a person reads it in an error: printable, and at most about `limit` characters."""
    if isinstance(value, int) and value.bit_length() > 4 * limit:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > limit:
        return f"{value[:limit]!a}… ({len(value)} characters)"
    try:
        text = ascii(value) if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or with a number of too many digits in it
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= limit + 2 else f"{text[:limit]}…"
