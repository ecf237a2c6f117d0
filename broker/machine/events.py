"""What happened: everything the machine can be told. `peer` is a ZeroMQ routing id."""

from msgspec import Struct

from ...schemas.admin import AdminMsg
from ...schemas.client import ClientMsg
from ...schemas.transfer import ServiceMsg


class ServiceSpoke(Struct, frozen=True):
    """A service sent `msg`; `attachments` are the bytes of a DONE's media, opaque here."""

    peer: bytes
    msg: ServiceMsg
    attachments: tuple[bytes, ...] = ()


class ClientSpoke(Struct, frozen=True):
    """A client sent `msg`."""

    peer: bytes
    msg: ClientMsg


class OperatorSpoke(Struct, frozen=True):
    """An operator sent `msg`."""

    peer: bytes
    msg: AdminMsg


class ServiceVanished(Struct, frozen=True):
    """Nothing can be sent to the service any more, for `reason`."""

    peer: bytes
    reason: str


class ClientVanished(Struct, frozen=True):
    """Nothing can be sent to the client any more, for `reason`."""

    peer: bytes
    reason: str


class TimePassed(Struct, frozen=True):
    """It is `now`; a deadline may have come."""


Event = ServiceSpoke | ClientSpoke | OperatorSpoke | ServiceVanished | ClientVanished | TimePassed
