"""The client against a broker played by the test, and a real data link."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from msgspec.structs import replace

from tests.client.scripted import LIMITS, ScriptedBroker, scripted_broker
from tests.results.kit import LARGE, SMALL, open_holder, relay, say_ready, ticket_for
from triptych.client import Client, Fetching, Finished, Result
from triptych.client.assembly import Assembly
from triptych.client.fetch import FetchSettings, Pace, _pull, is_local
from triptych.schemas.client import RelayedChunkMsg, RelayEndMsg, RelayFailedMsg, RelayFetchMsg, SubmitMsg
from triptych.schemas.errors import MalformedMessage, Overloaded, PayloadTooLarge, RequestCancelled, ResultGone
from triptych.schemas.transfer import Piece, ResultTicket
from triptych.transport.link.codec import Frame

QUICK = FetchSettings(
    direct=Pace(256 * 2**10, 4, first_s=0.2, next_s=0.2), relayed=Pace(256 * 2**10, 2, first_s=5.0, next_s=5.0)
)
#: LARGE, a piece at a time
PIECES = len(LARGE) // (256 * 2**10)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a scripted broker on a free loopback port."""
    async with scripted_broker() as running:
        running.limits = LIMITS
        yield running


@asynccontextmanager
async def asking(broker: ScriptedBroker, max_result_bytes: int = 2**28) -> AsyncIterator[asyncio.Task[Result]]:
    """Let a client ask for a picture."""
    async with Client(broker.endpoint, fetch_settings=QUICK, max_result_bytes=max_result_bytes) as client:
        yield asyncio.create_task(client.generate("a fox", request_id="r1"))


def data_of(result: Result) -> list[bytes]:
    return [image.data for image in result.images]


async def test_a_large_result_looks_like_a_small_one(broker: ScriptedBroker) -> None:
    """Every medium is there, in order; the service is told that it was fetched, and the broker never asked."""
    async with open_holder() as holder, asking(broker) as asked:
        submit = await broker.take(SubmitMsg)
        say_ready(broker, submit, await ticket_for(holder, LARGE, b"", SMALL))
        assert data_of(await asked) == [LARGE, b"", SMALL]
        await holder.wait_empty()
        assert broker._taken.empty()


async def test_what_has_come_is_told(broker: ScriptedBroker) -> None:
    """Each piece is an event of the stream, before the last one."""
    async with (
        open_holder() as holder,
        Client(broker.endpoint, fetch_settings=QUICK) as client,
        asyncio.TaskGroup() as tasks,
        aclosing(client.stream("a fox", request_id="r1")) as events,
    ):
        tasks.create_task(_answer(broker, await ticket_for(holder, LARGE)))
        told = [event async for event in events]
    assert isinstance(told.pop(), Finished)
    assert told == [Fetching("r1", (index + 1) * 256 * 2**10, len(LARGE)) for index in range(PIECES)]


async def _answer(broker: ScriptedBroker, ticket: ResultTicket) -> None:
    say_ready(broker, await broker.take(SubmitMsg), ticket)


async def test_a_host_that_is_not_reached_is_fetched_from_through_the_broker(broker: ScriptedBroker) -> None:
    """Nobody answers at the endpoint: the same bytes come in pieces of the broker's, and later ones do so at once."""
    async with open_holder() as holder, Client(broker.endpoint, fetch_settings=QUICK) as client:
        async with open_holder() as gone:
            nowhere = gone.endpoint
        for name in ("r1", "r2"):
            asked = asyncio.create_task(client.generate("a fox", request_id=name))
            ticket = replace(await ticket_for(holder, LARGE, request_id=name), endpoint=nowhere)
            say_ready(broker, await broker.take(SubmitMsg), ticket)
            await relay(broker, holder, PIECES)
            assert data_of(await asked) == [LARGE]
            holder.end((await broker.take(RelayEndMsg)).claim)
        assert len(holder.outbox) == 0


async def test_a_stranger_at_that_address_has_not_the_last_word(broker: ScriptedBroker) -> None:
    """Another service answers there and knows nothing: the broker finds the right one."""
    async with open_holder() as holder, open_holder() as stranger, asking(broker) as asked:
        ticket = replace(await ticket_for(holder, LARGE), endpoint=stranger.endpoint)
        say_ready(broker, await broker.take(SubmitMsg), ticket)
        await relay(broker, holder, PIECES)
        assert data_of(await asked) == [LARGE]


@pytest.mark.parametrize(
    "endpoint", ["", "nonsense", "tcp://256.0.0.1:1", "tcp://127.0.0.1:99999", "ipc:///etc/passwd"]
)
async def test_an_endpoint_that_is_none_is_not_tried(broker: ScriptedBroker, endpoint: str) -> None:
    """The broker relays."""
    async with open_holder() as holder, asking(broker) as asked:
        say_ready(broker, await broker.take(SubmitMsg), replace(await ticket_for(holder, LARGE), endpoint=endpoint))
        await relay(broker, holder, PIECES)
        assert data_of(await asked) == [LARGE]


async def test_a_service_that_dies_meanwhile_takes_the_result_along(broker: ScriptedBroker) -> None:
    """What has come is no result; the broker knows that its service is lost, and so does the caller."""
    async with (
        Client(broker.endpoint, fetch_settings=QUICK) as client,
        open_holder() as holder,
        asyncio.TaskGroup() as tasks,
        aclosing(client.stream("a fox", request_id="r1")) as events,
    ):
        tasks.create_task(_answer(broker, await ticket_for(holder, *[LARGE] * 4)))
        assert isinstance(await anext(events), Fetching)
        holder.outbox.drop("r1")
        asked = await broker.take(RelayFetchMsg)
        error = ResultGone("r1", "decoder-0 is lost")
        broker.say(RelayFailedMsg("r1", asked.piece, error.info()))
        with pytest.raises(ResultGone, match="decoder-0 is lost"):
            [event async for event in events]


async def test_a_data_link_that_falls_silent_is_left_for_the_broker(broker: ScriptedBroker) -> None:
    """Pieces that have come are kept; the others come through the broker."""
    async with open_holder() as holder, asking(broker) as asked:
        ticket = await ticket_for(holder, *[LARGE] * 4)
        read, served = holder.outbox.read, 0

        def read_some(*args: object) -> Frame:
            nonlocal served
            served += 1
            if served == PIECES:
                holder._take = lambda _envelope: None  # type: ignore[method-assign]
            return read(*args)  # type: ignore[arg-type]

        holder.outbox.read = read_some  # type: ignore[method-assign]
        say_ready(broker, await broker.take(SubmitMsg), ticket)
        await relay(broker, holder, 3 * PIECES)
        assert data_of(await asked) == [LARGE] * 4


async def test_a_refused_piece_is_asked_for_again(broker: ScriptedBroker) -> None:
    """A broker with too much to relay says when."""
    async with open_holder() as holder, asking(broker) as asked:
        say_ready(broker, await broker.take(SubmitMsg), replace(await ticket_for(holder, LARGE), endpoint=""))
        refused = await broker.take(RelayFetchMsg)
        broker.say(RelayFailedMsg("r1", refused.piece, Overloaded(4096, 0.01).info()))
        await relay(broker, holder, PIECES)
        assert data_of(await asked) == [LARGE]


async def test_a_cancelled_fetch_tells_the_service(broker: ScriptedBroker) -> None:
    """By name or by leaving; either way it need not keep the result."""
    async with Client(broker.endpoint, fetch_settings=QUICK) as client, open_holder() as holder:
        for name in ("cancelled", "left"):
            ticket = replace(await ticket_for(holder, LARGE, request_id=name), endpoint="")
            asked = asyncio.create_task(client.generate("a fox", request_id=name))
            say_ready(broker, await broker.take(SubmitMsg), ticket)
            await broker.take(RelayFetchMsg)
            await broker.take(RelayFetchMsg)
            if name == "cancelled":
                client.cancel(name)
                with pytest.raises(RequestCancelled):
                    await asked
            else:
                asked.cancel()
            assert (await broker.take(RelayEndMsg)).claim.token == ticket.token


async def test_closing_the_client_ends_its_fetches(broker: ScriptedBroker) -> None:
    """Whoever waits is told."""
    async with open_holder() as holder:
        async with asking(broker) as asked:
            say_ready(broker, await broker.take(SubmitMsg), replace(await ticket_for(holder, LARGE), endpoint=""))
            await broker.take(RelayFetchMsg)
        with pytest.raises(RequestCancelled):
            await asked


async def test_a_result_that_is_too_large_for_the_client_is_not_fetched(broker: ScriptedBroker) -> None:
    """The error names its setting, and the service need not keep the result."""
    async with open_holder() as holder, asking(broker, max_result_bytes=2**20) as asked:
        say_ready(broker, await broker.take(SubmitMsg), await ticket_for(holder, LARGE))
        with pytest.raises(PayloadTooLarge, match="raise max_result_bytes"):
            await asked
        holder.end((await broker.take(RelayEndMsg)).claim)
        assert len(holder.outbox) == 0


async def test_a_result_with_another_checksum_is_refused(broker: ScriptedBroker) -> None:
    """No wrong byte is taken for a picture."""
    async with open_holder() as holder, asking(broker) as asked:
        ticket = replace(await ticket_for(holder, LARGE), checksums=(zlib.crc32(LARGE) ^ 1,))
        say_ready(broker, await broker.take(SubmitMsg), ticket)
        with pytest.raises(MalformedMessage, match="checksum"):
            await asked


@pytest.mark.parametrize("attachments", [(), (b"x",), (b"x" * 256 * 2**10,) * 2])
async def test_a_piece_that_is_none_ends_the_fetch(broker: ScriptedBroker, attachments: tuple[bytes, ...]) -> None:
    """The broker passed on what it must not."""
    async with open_holder() as holder, asking(broker) as asked:
        say_ready(broker, await broker.take(SubmitMsg), replace(await ticket_for(holder, LARGE), endpoint=""))
        fetch = await broker.take(RelayFetchMsg)
        broker.say(RelayedChunkMsg("r1", fetch.piece), attachments)
        with pytest.raises(MalformedMessage):
            await asked


class SlowWay:
    """A way that answers one piece at a time, and counts those under way."""

    def __init__(self) -> None:
        self.asked: list[Piece] = []
        self.most = 0

    def ask(self, piece: Piece) -> None:
        self.asked.append(piece)
        self.most = max(self.most, len(self.asked))

    async def receive(self) -> tuple[Piece, Frame]:
        piece = self.asked.pop(0)
        return piece, LARGE[piece.offset : piece.offset + piece.length]


async def test_only_so_many_pieces_are_under_way() -> None:
    """Another one is asked for with each that comes."""
    way = SlowWay()
    ticket = ResultTicket("decoder-0", "", b"t" * 16, (len(LARGE),), (zlib.crc32(LARGE),))
    assembly = Assembly(ticket)
    await _pull(assembly, way, Pace(1000, 5, 1.0, 1.0), lambda _come, _size: None)
    assert (way.most, assembly.media()) == (5, (LARGE,))


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.8.8.8:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://LOCALHOST:1", True),
        ("ipc:///run/broker", True),
        ("tcp://10.0.0.1:1", False),
        ("tcp://broker.example:1", False),
    ],
)
def test_loopback_addresses_are_known(endpoint: str, local: object) -> None:
    """One of another host is not this one's."""
    assert is_local(endpoint) is local
