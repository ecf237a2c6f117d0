"""The load of `bench.broker`: null services and clients on real connections, all in one thread of this process."""

import gc
import select
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Self

from msgspec import Struct

from triptych.schemas.roles import Role

from .control_scripts import ROLES, Script, Shape, peer_id
from .processes import cpu_s
from .zmtp_peer import ZmtpPeer

HEARTBEAT_S = 1.0
#: nothing has come for so long: something is stuck, in seconds
PATIENCE_S = 10.0


class Round(Struct, frozen=True):
    """What was measured while so many requests were in flight."""

    #: seconds from SUBMIT to RESULT, of those that ended while it was measured
    latencies: list[float]
    #: seconds measured
    lasted_s: float
    #: processor time of the measured process meanwhile
    cpu_s: float

    @property
    def rate(self) -> float:
        """Return requests per second."""
        return len(self.latencies) / self.lasted_s

    @property
    def cpu_ms(self) -> float:
        """Return milliseconds of processor time per request."""
        return self.cpu_s / len(self.latencies) * 1e3


class PeerLoop:
    """Serves the connections of all loads, so that those that are not measured send their heartbeats too."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        #: what sends a heartbeat, the one that is due first, and when that is
        self._beats = deque[Callable[[], None]]()
        self._beat_at = perf_counter()

    def watch(self, peer: ZmtpPeer, handle: Callable[[], None]) -> None:
        """Call `handle` whenever something has come."""
        self._handlers[peer.fileno()] = handle
        self._epoll.register(peer.fileno(), select.EPOLLIN)

    def beat(self, send: Callable[[], None]) -> None:
        """Call `send` once in `HEARTBEAT_S`; all such calls are spread evenly."""
        self._beats.append(send)

    def forget(self, peer: ZmtpPeer, send: Callable[[], None] | None) -> None:
        """Watch `peer` no more, and do not call `send` any more."""
        del self._handlers[peer.fileno()]
        self._epoll.unregister(peer.fileno())
        if send is not None:
            self._beats.remove(send)

    def turn(self, at_most_s: float) -> None:
        """Handle what is there, or wait for something."""
        handlers = self._handlers
        for descriptor, _ in self._epoll.poll(min(at_most_s, self._send_due())):
            handlers[descriptor]()

    def turn_until(self, end: float) -> None:
        """Handle whatever comes until then."""
        while (left := end - perf_counter()) > 0:
            self.turn(left)

    def _send_due(self) -> float:
        """Send the heartbeats that are due, and return when the next one is, in seconds from now."""
        now = perf_counter()
        if not self._beats:
            self._beat_at = now
            return PATIENCE_S
        while self._beat_at <= now:
            self._beats[0]()
            self._beats.rotate(-1)
            self._beat_at += HEARTBEAT_S / len(self._beats)
        return self._beat_at - now


class Load:
    """Services and clients of one server, which is the process `pid`."""

    def __init__(self, loop: PeerLoop, script: Script, shape: Shape, services: str, clients: str, pid: int) -> None:
        self._loop = loop
        self._script = script
        self._pid = pid
        #: how each peer sends heartbeats, if it does
        self._peers: dict[ZmtpPeer, Callable[[], None] | None] = {}
        #: services that were given work
        self.worked: set[ZmtpPeer] = set()
        for role, count in zip(ROLES, shape.services, strict=True):
            for index in range(count):
                self._serve(ZmtpPeer(services, peer_id(role, index)), role, index)
        self._clients = [self._ask(ZmtpPeer(clients, peer_id(None, index)), index) for index in range(shape.clients)]
        #: number of each request that is under way: when it was submitted
        self._submitted: dict[int, float] = {}
        self._latencies: list[float] = []
        self._next_number = 0
        #: requests that are kept in flight
        self._wanted = 0
        #: when a request ended last, or the first of these was submitted
        self._heard_at = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer, beat in self._peers.items():
            self._loop.forget(peer, beat)
            peer.close()

    def run(self, in_flight: int, lasting_s: float, warm_up_s: float) -> Round:
        """Keep `in_flight` requests under way for so long, and return what was measured.

        It is measured after the warm-up, when the requests that were there first have ended as well: they came at once.
        """
        with _no_collections():
            self._latencies = []
            self._fill(in_flight)
            self._loop.turn_until(perf_counter() + warm_up_s)
            while len(self._latencies) < in_flight:
                self._turn()
            self._latencies = []
            begun, cpu = perf_counter(), cpu_s(self._pid)
            self._loop.turn_until(begun + lasting_s)
            measured = Round(list(self._latencies), perf_counter() - begun, cpu_s(self._pid) - cpu)
            self._drain()  # outside of what is measured
        return measured

    def one(self) -> None:
        """Let one request pass."""
        self._fill(1)
        self._drain()

    def _serve(self, peer: ZmtpPeer, role: Role, index: int) -> None:
        self._greet(peer, role, index)
        answer, receive, send = self._script.answer, peer.receive, peer.send

        def handle() -> None:
            answers = b"".join([answer(role, frames) for frames in receive()])
            if answers:
                self.worked.add(peer)
                send(answers)

        heartbeat = self._script.heartbeat()
        beat = partial(send, heartbeat) if heartbeat else None
        if beat is not None:
            self._loop.beat(beat)
        self._loop.watch(peer, handle)
        self._peers[peer] = beat

    def _ask(self, peer: ZmtpPeer, index: int) -> ZmtpPeer:
        self._greet(peer, None, index)
        ended = self._script.ended

        def handle() -> None:
            over = [number for frames in peer.receive() if (number := ended(frames)) is not None]
            if over:
                self._note(over)
                self._submit(peer, index, min(len(over), self._wanted - len(self._submitted)))

        self._loop.watch(peer, handle)
        self._peers[peer] = None
        return peer

    def _greet(self, peer: ZmtpPeer, role: Role | None, index: int) -> None:
        peer.send(self._script.greet(role, index))
        while not (answers := peer.receive()):
            pass
        for frames in answers:  # a broker that refuses it says so here
            _ = self._script.ended(frames) if role is None else self._script.answer(role, frames)

    def _note(self, over: Sequence[int]) -> None:
        self._heard_at = now = perf_counter()
        self._latencies += [now - self._submitted.pop(number) for number in over]

    def _submit(self, peer: ZmtpPeer, index: int, count: int) -> None:
        if count <= 0:
            return
        first, now = self._next_number, perf_counter()
        self._next_number += count
        numbers = range(first, first + count)
        self._submitted.update(dict.fromkeys(numbers, now))
        peer.send(b"".join([self._script.submit(number, index) for number in numbers]))

    def _fill(self, in_flight: int) -> None:
        """Submit until so many are in flight, in pieces, so that no queue overflows."""
        self._wanted, self._heard_at = in_flight, perf_counter()
        while (missing := in_flight - len(self._submitted)) > 0:
            for index, peer in enumerate(self._clients[:missing]):
                self._submit(peer, index, max(1, min(16, missing // len(self._clients))))
            self._loop.turn(0.0)

    def _drain(self) -> None:
        self._wanted = 0
        while self._submitted:
            self._turn()

    def _turn(self) -> None:
        self._loop.turn(PATIENCE_S)
        if perf_counter() - self._heard_at > PATIENCE_S:
            raise TimeoutError(f"{len(self._submitted)} requests do not end")


@contextmanager
def _no_collections() -> Generator[None]:
    """Keep this process's own garbage collector out of the measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
