"""A service's data link over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from structlog.testing import capture_logs

from tests.results.kit import LARGE, SMALL, RawReader, claim_of, open_holder, ticket_for
from triptych.schemas.errors import ConfigError, PayloadTooLarge
from triptych.schemas.fetch import ChunkMsg, FetchEndMsg, FetchFailedMsg, FetchMsg
from triptych.schemas.transfer import Piece
from triptych.services.results.data_link import MAX_QUEUED_PIECES, ResultServer, address_towards
from triptych.services.results.outbox import IN_USE_S

PIECE = Piece(0, 256, 1000)


@pytest.fixture
async def holder() -> AsyncIterator[ResultServer]:
    """Return a holder that serves."""
    async with open_holder() as serving:
        yield serving


@pytest.fixture
async def reader(holder: ResultServer) -> AsyncIterator[RawReader]:
    """Return a bare socket connected to it."""
    async with aclosing(RawReader(holder.endpoint)) as connected:
        yield connected


async def test_a_small_result_needs_no_ticket(holder: ResultServer) -> None:
    """It goes with DONE, and nothing is kept."""
    assert await holder.offer("r1", (SMALL, SMALL)) is None
    assert len(holder.outbox) == 0


async def test_the_limit_is_of_all_media_together(holder: ResultServer) -> None:
    """Many small ones are a large result."""
    assert await holder.offer("r1", (b"x" * 512, b"x" * 512)) is None
    assert (await ticket_for(holder, b"x" * 512, b"x" * 513)).sizes == (512, 513)


async def test_a_piece_is_served(holder: ResultServer, reader: RawReader) -> None:
    """CHUNK names the piece and carries its bytes."""
    ticket = await ticket_for(holder, LARGE)
    await reader.say(FetchMsg(claim_of(ticket), PIECE))
    assert await reader.hear() == (ChunkMsg("r1", PIECE), (LARGE[256:1256],))


async def test_a_ticket_is_good_for_one_reader(holder: ResultServer, reader: RawReader) -> None:
    """Whoever shows it after the first is refused, and so is the first after the end."""
    ticket = await ticket_for(holder, LARGE)
    await reader.say(FetchMsg(claim_of(ticket), PIECE))
    await reader.hear()
    await reader.say(FetchMsg(claim_of(ticket, reader=b"x" * 16), PIECE))
    refused, _ = await reader.hear()
    assert isinstance(refused, FetchFailedMsg)
    assert (refused.request_id, refused.error.code) == ("r1", "result_gone")
    await reader.say(FetchEndMsg(claim_of(ticket)))
    await holder.wait_empty()
    await reader.say(FetchMsg(claim_of(ticket), PIECE))
    assert isinstance((await reader.hear())[0], FetchFailedMsg)


@pytest.mark.parametrize(
    "frames",
    [
        [b"nonsense"],
        [b"__client__", b"\x80"],
        [b"__result__", b"\xc1"],
        [b"__result__", b"\x91" * 1000],
        [b"__result__", b"\x80" * 5000],
        [b"__result__", b"\x81\xa8msg_type\xa5fetch"],
        [b"__result__", b"\x80", b"attached"],
    ],
    ids=["word", "other channel", "garbage", "nested", "oversized", "empty", "attachment"],
)
async def test_what_is_no_message_is_dropped_with_one_line_and_a_word(
    holder: ResultServer, reader: RawReader, frames: list[bytes]
) -> None:
    """Its sender is told and named, and the next message of anybody is served."""
    ticket = await ticket_for(holder, LARGE)
    with capture_logs() as lines:
        await reader.send(*frames)
        refused, _ = await reader.hear()
    assert isinstance(refused, FetchFailedMsg)
    assert (refused.request_id, refused.error.code) == (None, "malformed_message")
    assert [(line["event"], bool(line["peer"])) for line in lines] == [("message dropped", True)]
    await reader.say(FetchMsg(claim_of(ticket), PIECE))
    assert isinstance((await reader.hear())[0], ChunkMsg)


async def test_a_piece_beyond_the_end_is_refused(holder: ResultServer, reader: RawReader) -> None:
    """The reader is told, and nothing else comes."""
    ticket = await ticket_for(holder, LARGE)
    await reader.say(FetchMsg(claim_of(ticket), Piece(0, len(LARGE), 1)))
    refused, attachments = await reader.hear()
    assert isinstance(refused, FetchFailedMsg)
    assert (refused.error.code, attachments) == ("malformed_message", ())


async def test_a_reader_that_does_not_read_is_not_waited_for(holder: ResultServer, reader: RawReader) -> None:
    """So many pieces wait for it at most; others are served meanwhile."""
    ticket = await ticket_for(holder, LARGE)
    other = await ticket_for(holder, LARGE, request_id="r2")
    with capture_logs() as lines:
        async with aclosing(RawReader(holder.endpoint)) as greedy:
            await greedy.say(FetchMsg(claim_of(ticket), Piece(0, 0, len(LARGE))))
            await greedy.hear()
            for _ in range(3 * MAX_QUEUED_PIECES):
                await greedy.say(FetchMsg(claim_of(ticket), Piece(0, 0, 1)))
            await reader.say(FetchMsg(claim_of(other, "r2"), PIECE))
            assert (await reader.hear())[0] == ChunkMsg("r2", PIECE)
    assert {line["event"] for line in lines} <= {"answer lost"}


async def test_a_result_that_can_never_fit_is_refused() -> None:
    """The error names the setting, and nothing is kept."""
    async with open_holder(outbox=2**20) as holder:
        with pytest.raises(PayloadTooLarge, match="outbox_bytes"):
            await holder.offer("r1", (LARGE,))
        assert len(holder.outbox) == 0


async def test_a_new_result_waits_for_the_room_of_one_in_use() -> None:
    """Until that is fetched; a job that is cancelled waits no longer."""
    async with open_holder(outbox=3 * 2**20) as holder:
        first = await ticket_for(holder, LARGE)
        waiting = asyncio.create_task(ticket_for(holder, LARGE, request_id="r2"))
        aborted = asyncio.create_task(ticket_for(holder, LARGE, request_id="r3"))
        done, _ = await asyncio.wait([waiting, aborted], timeout=0.1)
        assert not done
        aborted.cancel()
        holder.end(claim_of(first))
        await waiting
        assert holder.outbox.held_bytes == len(LARGE)
    assert IN_USE_S > 0.1


async def test_a_result_ages_out_by_itself() -> None:
    """Nobody need ask for it."""
    async with open_holder(ttl_s=0.05) as holder:
        with capture_logs() as lines:
            await ticket_for(holder, LARGE)
            await holder.wait_empty()
        assert [line["event"] for line in lines] == ["result aged out"]


async def test_a_host_that_is_not_this_one_is_said() -> None:
    """The error names the setting and the value."""
    with pytest.raises(ConfigError, match=r"data_host is 'tcp://192\.0\.2\.1:0'"):
        async with open_holder(data_host="192.0.2.1"):
            pass


@pytest.mark.parametrize("broker", ["tcp://127.0.0.1:7700", "tcp://localhost:7700", "ipc:///run/broker"])
def test_by_default_it_listens_where_it_reaches_the_broker(broker: str) -> None:
    """On the broker's own host that is the loopback address."""
    assert address_towards(broker) == "127.0.0.1"


async def test_tokens_differ(holder: ResultServer) -> None:
    """They are long and random, for the same result, too."""
    tokens = {(await ticket_for(holder, LARGE)).token for _ in range(3)}
    assert {len(token) for token in tokens} == {32}
    assert len(tokens) == 3
