"""What the shell is to do, in this order."""

from msgspec import Struct

from ...schemas.admin import AdminReplyMsg
from ...schemas.client import ClientReplyMsg, RelayedChunkMsg
from ...schemas.roles import Role
from ...schemas.states import RequestState
from ...schemas.transfer import BrokerMsg


class TellService(Struct, frozen=True):
    """Send `msg` to a service."""

    peer: bytes
    msg: BrokerMsg


class TellClient(Struct, frozen=True):
    """Send `msg` to a client, with the bytes of its media as attachments."""

    peer: bytes
    msg: ClientReplyMsg
    attachments: tuple[bytes, ...] = ()


class TellOperator(Struct, frozen=True):
    """Send `msg` to an operator."""

    peer: bytes
    msg: AdminReplyMsg


class PassPiece(Struct, frozen=True):
    """Send a client a piece of its result, after everything else that is to be done now."""

    peer: bytes
    msg: RelayedChunkMsg
    attachments: tuple[bytes, ...]


class ReportTransition(Struct, frozen=True):
    """Log and count that a request went from `start` to `finish` because of `cause`."""

    request_id: str
    attempt: int
    start: RequestState
    finish: RequestState
    cause: str
    instance_id: str = ""


class ReportInstance(Struct, frozen=True):
    """Log and count that an instance came, went or was refused: `change`, for `reason`."""

    instance_id: str
    role: Role
    change: str
    reason: str = ""


class ReportIgnored(Struct, frozen=True):
    """Log and count a message that changed nothing: stale, from a stranger, or out of order."""

    peer: bytes
    msg_type: str
    reason: str


Command = TellService | TellClient | TellOperator | PassPiece | ReportTransition | ReportInstance | ReportIgnored
