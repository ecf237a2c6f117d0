"""ROUTER and DEALER over real sockets."""

import asyncio
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import pytest
import zmq

from triptych.schemas.client import CancelMsg, ClientMsg, ClientReplyMsg, PingMsg, PongMsg
from triptych.schemas.errors import ConfigError, MalformedMessage, PeerUnreachable
from triptych.transport.link.channels import broker_to_clients, client_to_broker
from triptych.transport.link.dealer import DealerLink
from triptych.transport.link.loop_socket import COPY_BELOW_BYTES
from triptych.transport.link.router import MAX_BATCH, RouterLink

Router = RouterLink[ClientMsg, ClientReplyMsg]
Dealer = DealerLink[ClientReplyMsg, ClientMsg]
MAX_FRAME = 2**20


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    """Return a ROUTER on a free loopback port."""
    async with aclosing(RouterLink(broker_to_clients(), "tcp://127.0.0.1:0", MAX_FRAME)) as link:
        yield link


def dealer_to(router: Router, identity: bytes = b"client-1") -> Dealer:
    """Return a DEALER connected to `router`."""
    return DealerLink(client_to_broker(2**20), router.endpoint, identity, MAX_FRAME)


@contextmanager
def raw_dealer(router: Router) -> Iterator[zmq.Socket[bytes]]:
    """Return a bare socket connected to `router`, to send what no codec would."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(router.endpoint)
        yield socket


async def test_messages_go_both_ways(router: Router) -> None:
    """A DEALER is known to the ROUTER by its identity and gets its answers."""
    async with aclosing(dealer_to(router)) as dealer:
        dealer.send_nowait(PingMsg(("r1",)))
        (envelope,) = await router.receive()
        assert (envelope.peer, router.codec.decode(envelope.frames)) == (b"client-1", (PingMsg(("r1",)), ()))
        router.send_nowait(envelope.peer, PongMsg(("r1",)), (b"bytes",))
        assert await dealer.receive() == (PongMsg(("r1",)), (b"bytes",))


async def test_what_waits_is_received_in_batches_in_order(router: Router) -> None:
    """No wake-up is lost: a thousand messages all come, in order, at most `MAX_BATCH` at once."""
    async with aclosing(dealer_to(router)) as dealer:
        for number in range(1000):
            dealer.send_nowait(CancelMsg(str(number)))
        received: list[str] = []
        while len(received) < 1000:
            batch = await router.receive()
            assert len(batch) <= MAX_BATCH
            for envelope in batch:
                message, _ = router.codec.decode(envelope.frames)
                assert isinstance(message, CancelMsg)
                received.append(message.request_id)
        assert received == [str(number) for number in range(1000)]


async def test_a_message_to_nobody_is_refused(router: Router) -> None:
    """Nothing is dropped in silence."""
    with pytest.raises(PeerUnreachable, match="Host unreachable"):
        router.send_nowait(b"nobody", PongMsg())


async def test_a_peer_that_does_not_read_is_unreachable_in_the_end(router: Router) -> None:
    """Sending never waits; when a peer's queue is full the sender learns it."""
    async with aclosing(dealer_to(router)) as dealer:
        dealer.send_nowait(PingMsg())
        (envelope,) = await router.receive()
        payload = (b"x" * 2**10,)

        def send_for_ever() -> None:
            while True:
                router.send_nowait(envelope.peer, PongMsg(), payload)

        with pytest.raises(PeerUnreachable, match="its queue is full"):
            send_for_ever()


async def test_a_peer_that_comes_back_takes_its_place(router: Router) -> None:
    """A connection under the routing id of one that has gone gets the messages."""
    async with aclosing(dealer_to(router)) as first:
        first.send_nowait(PingMsg())
        await router.receive()
    async with aclosing(dealer_to(router)) as second:
        second.send_nowait(PingMsg())
        await router.receive()
        router.send_nowait(b"client-1", PongMsg(("for-the-second",)))
        assert await second.receive() == (PongMsg(("for-the-second",)), ())


async def test_messages_sent_before_the_router_listens_arrive() -> None:
    """Both ends may start in any order."""
    async with aclosing(RouterLink(broker_to_clients(), "tcp://127.0.0.1:0", MAX_FRAME)) as gone:
        endpoint = gone.endpoint
    async with aclosing(DealerLink(client_to_broker(0), endpoint, b"early", MAX_FRAME)) as dealer:
        dealer.send_nowait(PingMsg())
        async with aclosing(RouterLink(broker_to_clients(), endpoint, MAX_FRAME)) as router:
            (envelope,) = await router.receive()
            assert envelope.peer == b"early"


async def test_garbage_spoils_only_itself(router: Router) -> None:
    """After a malformed message the next one is received."""
    async with aclosing(dealer_to(router)) as dealer:
        dealer.send_nowait(PingMsg())
        (envelope,) = await router.receive()
        with raw_dealer(router) as raw:
            raw.send_multipart([b"nonsense"])
            (garbage,) = await router.receive()
        with pytest.raises(MalformedMessage):
            router.codec.decode(garbage.frames)
        router.send_nowait(envelope.peer, PongMsg())
        assert await dealer.receive() == (PongMsg(), ())


async def test_an_oversized_frame_ends_its_own_connection_only(router: Router) -> None:
    """A frame above the limit never reaches the loop; others go on."""
    with raw_dealer(router) as raw:
        raw.send_multipart([b"__client__", b"x" * (MAX_FRAME + 1)])
        async with aclosing(dealer_to(router)) as dealer:
            dealer.send_nowait(PingMsg())
            (envelope,) = await router.receive()
            assert envelope.peer == b"client-1"


async def test_a_cancelled_receive_loses_nothing(router: Router) -> None:
    """The message that comes after a cancelled wait goes to the next wait."""
    waiting = asyncio.create_task(router.receive())
    async with aclosing(dealer_to(router)) as dealer:
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        dealer.send_nowait(PingMsg())
        (envelope,) = await router.receive()
        assert envelope.peer == b"client-1"


async def test_a_send_does_not_hide_what_came_meanwhile(router: Router) -> None:
    """ZeroMQ says once that something came, and a send uses that up; whoever waits is woken all the same."""
    async with aclosing(dealer_to(router)) as dealer:
        dealer.send_nowait(PingMsg())
        (envelope,) = await router.receive()
        for number in range(50):
            waiting = asyncio.create_task(router.receive())
            await asyncio.sleep(0)
            dealer.send_nowait(CancelMsg(str(number)))
            wait_noticed(router)
            for _ in range(3):
                router.send_nowait(envelope.peer, PongMsg())
            async with asyncio.timeout(10):
                (envelope,) = await waiting
            assert router.codec.decode(envelope.frames) == (CancelMsg(str(number)), ())


def wait_noticed(router: Router) -> None:
    """Hold the loop up until the router's descriptor says that something came."""
    assert select.select([router._socket._descriptor], [], [], 10.0)[0]


async def test_one_waits_at_a_time(router: Router) -> None:
    """A second one could take what woke the first."""
    waiting = asyncio.create_task(router.receive())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="somebody waits"):
        await router.receive()
    waiting.cancel()


async def test_closing_a_link_ends_whoever_waits() -> None:
    """Nobody waits for ever for a socket that is gone."""
    router = RouterLink(broker_to_clients(), "tcp://127.0.0.1:0", MAX_FRAME)
    waiting = asyncio.create_task(router.receive())
    await asyncio.sleep(0)
    await router.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_message_that_cannot_be_sent_leaves_nothing_behind(router: Router) -> None:
    """After one to nobody, with attachments, the next one arrives whole and alone."""
    async with aclosing(dealer_to(router)) as dealer:
        dealer.send_nowait(PingMsg())
        (envelope,) = await router.receive()
        with pytest.raises(PeerUnreachable):
            router.send_nowait(b"nobody", PongMsg(("lost",)), (b"one", b"two"))
        router.send_nowait(envelope.peer, PongMsg(("r1",)), (b"three",))
        assert await dealer.receive() == (PongMsg(("r1",)), (b"three",))


async def test_frames_above_and_below_the_copying_limit_arrive_alike(router: Router) -> None:
    """Small ones are copied, large ones sent from where they lie; a view counts by its bytes."""
    sizes = (0, 1, COPY_BELOW_BYTES - 1, COPY_BELOW_BYTES, 3 * COPY_BELOW_BYTES)
    attachments = tuple(bytes([size % 251]) * size for size in sizes)
    async with aclosing(dealer_to(router)) as dealer:
        dealer.send_nowait(PingMsg())
        (envelope,) = await router.receive()
        router.send_nowait(envelope.peer, PongMsg(), tuple(map(memoryview, attachments)))
        assert await dealer.receive() == (PongMsg(), attachments)


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://127.0.0.1:99999", "tcp://256.0.0.1:1"])
async def test_an_endpoint_that_is_none_is_said(endpoint: str) -> None:
    """The error names the value, for both ends."""
    with pytest.raises(ConfigError, match="endpoint is"):
        RouterLink(broker_to_clients(), endpoint, MAX_FRAME)


async def test_a_taken_port_is_said(router: Router) -> None:
    """Binding twice is an error a person can read."""
    with pytest.raises(ConfigError, match="Address already in use"):
        RouterLink(broker_to_clients(), router.endpoint, MAX_FRAME)
