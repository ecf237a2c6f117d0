"""A ZeroMQ socket in the running loop.

ZeroMQ's descriptor is edge-triggered: it becomes readable when something changes, and any call on the socket uses that
up, a send too. So it is never relied on alone. Whoever waits looks at the socket before, and again after each send.

What is sent and received goes past `zmq.asyncio`, which makes a future for each message, and past the convenience of
`zmq.Socket`, which costs several times what ZeroMQ does.
"""

import asyncio
from collections.abc import Sequence

import zmq

from .codec import Frame

#: smaller frames are copied, which is cheaper than keeping their memory until they are sent; pyzmq's own default
COPY_BELOW_BYTES = 65_536

# plain numbers: pyzmq's enumerations take longer to combine than ZeroMQ to send
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class LoopSocket:
    """Wraps a plain socket, which nobody else may use then. It waits for what comes, and never for what goes."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._plain = super(zmq.Socket, socket)
        self._descriptor = socket.FD
        #: the loop that watches the descriptor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        #: somebody will look at the socket in this turn of the loop
        self._will_look = False

    async def wait_readable(self) -> None:
        """Return when there is something to receive, at once where there is something already. One waits at a time."""
        loop = self._loop or self._watch()
        if self._waiter is not None:
            raise RuntimeError("somebody waits for this socket already")
        waiter = self._waiter = loop.create_future()
        try:
            self._look()
            await waiter
        finally:
            self._waiter = None

    def receive_nowait(self) -> list[bytes] | None:
        """Return the frames of the next message, or None where none is there."""
        frames = self.receive_frames_nowait()
        return None if frames is None else [frame.bytes for frame in frames]

    def receive_frames_nowait(self) -> "list[zmq.Frame] | None":
        """Do what `receive_nowait` does, but leave the bytes where they came."""
        receive = self._plain.recv
        try:
            frames = [receive(_NOBLOCK, copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(receive(_NOBLOCK, copy=False))
        return frames

    def send_nowait(self, frames: Sequence[Frame]) -> None:
        """Hand a message to ZeroMQ now, all of it or nothing. Raises `zmq.ZMQError`, `zmq.Again` for a full queue.

        Large frames are sent from where they lie.
        """
        send, last = self._plain.send, len(frames) - 1
        for place, frame in enumerate(frames):
            send(frame, _NOBLOCK if place == last else _NOBLOCK_MORE, copy=len(frame) < COPY_BELOW_BYTES)
        if self._waiter is not None and self._loop is not None and not self._will_look:
            self._will_look = True
            self._loop.call_soon(self._look)

    def close(self, linger_ms: int) -> None:
        """Close the socket; what is queued may still go out for so long. Whoever waits is cancelled."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        if self._waiter is not None:
            self._waiter.cancel()
        self._socket.close(linger_ms)

    def _watch(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._look)
        return self._loop

    def _look(self) -> None:
        """Use the descriptor's notice up, and wake whoever waits if there is something to receive."""
        self._will_look = False
        if self._socket.closed:
            return
        events = self._plain.get(_EVENTS)
        waiter = self._waiter
        if waiter is not None and not waiter.done() and int(events) & _POLLIN:
            waiter.set_result(None)
