"""The broker's end of a link."""

import asyncio
from collections.abc import Sequence
from typing import Generic

import zmq
from msgspec import Struct

from ...schemas.errors import ConfigError, PeerUnreachable
from .codec import Frame, In, MessageCodec, Out
from .loop_socket import LoopSocket
from .sockets import HIGH_WATER_MARK, LINGER_MS, bind, configure

#: messages taken off the socket for one wake-up of the loop
MAX_BATCH = 64


class Envelope(Struct, frozen=True):
    """Frames as they came from `peer`, not yet decoded."""

    peer: bytes
    frames: Sequence[bytes]


class RouterLink(Generic[In, Out]):
    """A ROUTER that many peers connect to, each known by its routing id.

    A peer that connects under the routing id of another takes it over, which is how it comes back after a network
    failure. Sending never waits; at most `max_queued` messages wait for one peer.
    """

    def __init__(
        self, codec: MessageCodec[In, Out], endpoint: str, max_frame_bytes: int, max_queued: int = HIGH_WATER_MARK
    ) -> None:
        self.codec = codec
        self._context = zmq.Context()
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        configure(socket, max_frame_bytes, max_queued)
        try:
            self.endpoint = bind(socket, endpoint)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._socket = LoopSocket(socket)

    async def receive(self) -> list[Envelope]:
        """Wait for a message, then return it with those that are there already, at most `MAX_BATCH`."""
        envelopes: list[Envelope] = []
        while not envelopes:
            await self._socket.wait_readable()
            while len(envelopes) < MAX_BATCH and (frames := self._socket.receive_nowait()) is not None:
                envelopes.append(Envelope(frames[0], frames[1:]))
        return envelopes

    def send_nowait(self, peer: bytes, message: Out, attachments: Sequence[Frame] = ()) -> None:
        """Queue `message` for `peer`. Raises `PeerUnreachable` where it is gone, or so slow that its queue is full.

        Large attachments are not copied: their memory stays in use until they are sent.
        """
        frames = [peer, *self.codec.encode(message, attachments)]
        try:
            self._socket.send_nowait(frames)
        except zmq.Again as error:
            raise PeerUnreachable("it reads too slowly: its queue is full") from error
        except zmq.ZMQError as error:
            raise PeerUnreachable(str(error.strerror)) from error

    async def aclose(self) -> None:
        """Close the socket; what is queued may still go out for `LINGER_MS`."""
        self._socket.close(LINGER_MS)
        await asyncio.to_thread(self._context.term)
