"""Frames to messages and back. No sockets here.

A message is frame 0, the channel it belongs to; frame 1, its Struct in MessagePack; then attachments, opaque bytes.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from ...schemas.errors import MalformedMessage

In = TypeVar("In")
Out = TypeVar("Out", bound=Struct)
FrameT = TypeVar("FrameT", bytes, memoryview)

TRANSFER_CHANNEL = b"__transfer__"
CLIENT_CHANNEL = b"__client__"
RESULT_CHANNEL = b"__result__"
ADMIN_CHANNEL = b"__admin__"

#: bytes that are not changed any more
Frame = bytes | memoryview


class MessageLimits(Struct, frozen=True):
    """What is taken from a peer; anything above is refused before it is decoded."""

    #: of frame 1, in bytes
    max_message_bytes: int = 8 * 2**20
    max_attachments: int = 0
    #: of all attachments together, in bytes
    max_attachment_bytes: int = 0


class _Addressed(Struct):
    request_id: str


class MessageCodec(Generic[In, Out]):
    """Encodes `Out` and decodes `In`, a tagged union of Structs, on one channel.

    Unknown fields are ignored, unknown tags refused.
    """

    def __init__(self, channel: bytes, decoder: msgspec.msgpack.Decoder[In], limits: MessageLimits) -> None:
        self._channel = channel
        self._limits = limits
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = decoder
        self._addressed = msgspec.msgpack.Decoder(_Addressed)

    def encode(self, message: Out, attachments: Sequence[Frame] = ()) -> list[Frame]:
        """Return the frames of `message`."""
        return [self._channel, self._encoder.encode(message), *attachments]

    def decode(self, frames: Sequence[FrameT]) -> tuple[In, tuple[FrameT, ...]]:
        """Return the message and its attachments. Raises `MalformedMessage`."""
        self._check(frames)
        try:
            message = self._decoder.decode(frames[1])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedMessage(str(error)) from error
        except RecursionError as error:
            raise MalformedMessage("nested too deeply") from error
        return message, tuple(frames[2:])

    def request_id_of(self, frames: Sequence[bytes]) -> str | None:
        """Return the request id in frames that `decode` refused, if it can be read, to address the answer."""
        try:
            self._check(frames)
            return self._addressed.decode(frames[1]).request_id[:64]
        except (MalformedMessage, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _check(self, frames: Sequence[Frame]) -> None:
        limits = self._limits
        if len(frames) < 2:
            raise MalformedMessage(f"{len(frames)} frames; there must be a channel and a message")
        if frames[0] != self._channel:
            raise MalformedMessage(f"the channel is {bytes(frames[0][:32])!r}, not {self._channel!r}")
        if len(frames[1]) > limits.max_message_bytes:
            raise MalformedMessage(f"{len(frames[1])} bytes; at most {limits.max_message_bytes} are taken")
        if len(frames) == 2:
            return
        if len(frames) - 2 > limits.max_attachments:
            raise MalformedMessage(f"{len(frames) - 2} attachments; at most {limits.max_attachments} are taken")
        attached = sum(map(len, frames[2:]))
        if attached > limits.max_attachment_bytes:
            raise MalformedMessage(f"{attached} attached bytes; at most {limits.max_attachment_bytes} are taken")
