"""A broker without its logic: what the sockets alone cost. Synchronous pyzmq, run by `bench.broker`.

It has the broker's two ROUTERs with the broker's options, and answers each message with as many messages of the same
sizes to the same kinds of peers as the broker does, taken from a recorded request. To whom they go is not decided here:
the first bytes of each message name the places of all that have to do with the request, and go on to everyone. Nothing
is decoded, encoded or remembered. Like the broker's links it takes what is there before it waits again.

It receives and sends as pyzmq is used everywhere, by `recv_multipart` and `send_multipart`; a lean one by the calls of
the broker's links, which cost less.
"""

import struct
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import zmq
from msgspec import Struct

from triptych.transport.link.loop_socket import LoopSocket
from triptych.transport.link.sockets import configure

#: kind of message; place of the client, the encoder, the denoiser, the decoder; number of the request
HEAD = struct.Struct("<HHHHHI")
MAX_FRAME_BYTES = 2**24
#: messages taken off one socket before the other has its turn
MAX_BATCH = 64


class Out(Struct, frozen=True, array_like=True):
    """One message that another brings about."""

    #: which place in HEAD says who gets it
    place: int
    kind: int
    #: bytes of its frame 1
    size: int
    #: it has the attachments of the message that brings it about
    attached: bool


class Plan(Struct, frozen=True):
    """What the forwarder is told beforehand, as a line of JSON."""

    #: routing ids, in the order of HEAD: clients, encoders, denoisers, decoders
    names: tuple[tuple[str, ...], ...]
    #: by the kind of the message that brings them about
    outs: dict[int, tuple[Out, ...]]
    lean: bool = False


class Bound(Struct, frozen=True):
    """Where a process that is measured listens, as a line of JSON."""

    service_endpoint: str
    client_endpoint: str


class End(Struct, frozen=True):
    """A ROUTER, and how it receives and sends. `receive` returns None or raises `zmq.Again` where nothing is there."""

    router: "zmq.Socket[bytes]"
    receive: Callable[[], list[bytes] | None]
    send: Callable[[list[bytes]], object]


def main() -> None:
    """Read a plan, say where it listens, and forward for ever."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    context = zmq.Context()
    services, clients = open_end(context, lean=plan.lean), open_end(context, lean=plan.lean)
    say(Bound(*(end.router.getsockopt_string(zmq.LAST_ENDPOINT) for end in (services, clients))))
    forward(plan, services, clients)


def say(bound: Bound) -> None:
    """Tell whoever started this process where it listens."""
    sys.stdout.buffer.write(msgspec.json.encode(bound) + b"\n")
    sys.stdout.flush()


def forward(plan: Plan, services: End, clients: End) -> None:
    """Answer whatever comes with what the plan says."""
    outs = {
        kind: [_prepared(out, plan, clients if out.place == 1 else services) for out in outs]
        for kind, outs in plan.outs.items()
    }
    ends = {end.router: end.receive for end in (services, clients)}
    poller = zmq.Poller()
    for router in ends:
        poller.register(router, zmq.POLLIN)
    while True:
        for readable, _ in poller.poll():
            receive = ends[readable]
            for _ in range(MAX_BATCH):
                try:
                    message = receive()
                except zmq.Again:
                    break
                if message is None:
                    break
                channel, body, attachments = message[1], message[2], message[3:]
                head = body[: HEAD.size]
                places: tuple[int, ...] = HEAD.unpack(head)
                for send, peers, place, tail, attached in outs[places[0]]:
                    frames = [peers[places[place]], channel, head + tail]
                    send(frames + attachments if attached else frames)


_Prepared = tuple[Callable[[list[bytes]], object], list[bytes], int, bytes, bool]


def _prepared(out: Out, plan: Plan, end: End) -> _Prepared:
    """Return all of a message but what is different each time."""
    peers = [name.encode() for name in plan.names[out.place - 1]]
    tail = bytes((out.kind,)).ljust(out.size - HEAD.size, b"\0")
    return end.send, peers, out.place, tail, out.attached


def open_end(context: "zmq.Context[zmq.Socket[bytes]]", *, lean: bool) -> End:
    """Listen on a free port."""
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    configure(router, MAX_FRAME_BYTES)
    router.bind("tcp://127.0.0.1:0")
    if lean:
        link = LoopSocket(router)
        return End(router, link.receive_nowait, link.send_nowait)
    return End(
        router, partial(router.recv_multipart, zmq.NOBLOCK), partial(router.send_multipart, flags=int(zmq.NOBLOCK))
    )


if __name__ == "__main__":
    main()
