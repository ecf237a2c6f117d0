"""The messages between a client and the service that keeps its result, over the service's data link.

FETCH asks for one piece and is answered by CHUNK or FETCH_FAILED. The reader asks for a few pieces ahead, and for
another one with each that comes, so what is under way is bounded by its own asking. END lets the service drop the
result.
"""

from msgspec import Struct

from .errors import ErrorInfo
from .identifiers import RequestId
from .transfer import Claim, Piece


class FetchMsg(Struct, frozen=True, tag_field="msg_type", tag="fetch"):
    """Send this piece."""

    claim: Claim
    piece: Piece


class FetchEndMsg(Struct, frozen=True, tag_field="msg_type", tag="fetch_end"):
    """The reader wants no more, since it has all or has given up. Not answered."""

    claim: Claim


ReaderMsg = FetchMsg | FetchEndMsg


class ChunkMsg(Struct, frozen=True, tag_field="msg_type", tag="chunk"):
    """The attachment is the piece."""

    request_id: RequestId
    piece: Piece


class FetchFailedMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="fetch_failed"):
    """There is no such piece for this claim. Without a request id: the message was bad."""

    error: ErrorInfo
    request_id: RequestId | None = None


HolderMsg = ChunkMsg | FetchFailedMsg
