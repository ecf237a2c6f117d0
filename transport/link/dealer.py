"""The service's or client's end of a link."""

import asyncio
from collections.abc import Sequence
from typing import Generic

import zmq

from ...schemas.errors import ConfigError, PeerUnreachable
from .codec import Frame, In, MessageCodec, Out
from .loop_socket import LoopSocket
from .sockets import LINGER_MS, configure, connect


class DealerLink(Generic[In, Out]):
    """A DEALER connected to one broker under the routing id `identity`. It reconnects by itself."""

    def __init__(self, codec: MessageCodec[In, Out], endpoint: str, identity: bytes, max_frame_bytes: int) -> None:
        self.codec = codec
        self._context = zmq.Context()
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity)
        configure(socket, max_frame_bytes)
        try:
            connect(socket, endpoint)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._socket = LoopSocket(socket)

    async def receive(self) -> tuple[In, tuple[bytes, ...]]:
        """Wait for a message; return it and its attachments. After `MalformedMessage` the next can be received."""
        while (frames := self._socket.receive_nowait()) is None:
            await self._socket.wait_readable()
        return self.codec.decode(frames)

    async def receive_views(self) -> tuple[In, tuple[memoryview, ...]]:
        """Do what `receive` does, but leave attachments where they came: for many large ones in a row."""
        while (frames := self._socket.receive_frames_nowait()) is None:
            await self._socket.wait_readable()
        return self.codec.decode([frame.buffer for frame in frames])

    def send_nowait(self, message: Out, attachments: Sequence[Frame] = ()) -> None:
        """Queue `message` for the broker, connected or not. Raises `PeerUnreachable` where the queue is full."""
        try:
            self._socket.send_nowait(self.codec.encode(message, attachments))
        except zmq.ZMQError as error:
            raise PeerUnreachable(str(error.strerror)) from error

    async def aclose(self, linger_ms: int = LINGER_MS) -> None:
        """Close the socket; what is queued may still go out for `linger_ms`."""
        self._socket.close(linger_ms)
        await asyncio.to_thread(self._context.term)
