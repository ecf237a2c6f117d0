"""A service's outbox and data link, without the service; and a broker that relays by the test's word."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import zmq
import zmq.asyncio

from tests.client.scripted import STAGES, TRANSFERS, ScriptedBroker
from triptych.schemas.client import RelayedChunkMsg, RelayFailedMsg, RelayFetchMsg, ResultMsg, SubmitMsg
from triptych.schemas.errors import TriptychError
from triptych.schemas.fetch import ChunkMsg, FetchFailedMsg, HolderMsg, ReaderMsg
from triptych.schemas.transfer import Claim, MediaInfo, ResultTicket
from triptych.services.results.data_link import ResultServer, ResultSettings, open_results

SMALL, LARGE = b"a small picture", bytes(range(256)) * 2**13
READER = b"r" * 16


@asynccontextmanager
async def open_holder(
    inline: int = 1024, outbox: int = 16 * 2**20, ttl_s: float = 60.0, data_host: str = ""
) -> AsyncIterator[ResultServer]:
    """Return what a decoder has of it."""
    settings = ResultSettings(inline, outbox, ttl_s)
    async with open_results("decoder-0", "tcp://127.0.0.1:7700", data_host, 0, settings) as holder:
        yield holder


async def ticket_for(holder: ResultServer, *files: bytes, request_id: str = "r1") -> ResultTicket:
    """Return the ticket for `files`, which are large."""
    ticket = await holder.offer(request_id, files)
    assert ticket is not None
    return ticket


def claim_of(ticket: ResultTicket, request_id: str = "r1", reader: bytes = READER) -> Claim:
    return Claim(request_id, ticket.token, reader)


def say_ready(broker: ScriptedBroker, submit: SubmitMsg, ticket: ResultTicket) -> None:
    """Tell the client that its result waits."""
    media = tuple(MediaInfo("image/png", 64, 64, seed) for seed in range(len(ticket.sizes)))
    broker.say(ResultMsg(submit.request_id, media, STAGES, TRANSFERS, 1.5, ticket))


async def relay(broker: ScriptedBroker, holder: ResultServer, pieces: int) -> None:
    """Pass on so many pieces, as a broker does."""
    for _ in range(pieces):
        asked = await broker.take(RelayFetchMsg)
        request_id, piece = asked.claim.request_id, asked.piece
        try:
            data = bytes(holder.read(asked.claim, piece))
        except TriptychError as error:
            broker.say(RelayFailedMsg(request_id, piece, error.info()))
        else:
            broker.say(RelayedChunkMsg(request_id, piece), (data,))


class RawReader:
    """A bare socket on a data link."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)

    async def say(self, message: ReaderMsg) -> None:
        await self.send(b"__result__", msgspec.msgpack.encode(message))

    async def send(self, *frames: bytes) -> None:
        await self._socket.send_multipart(frames)

    async def hear(self) -> tuple[HolderMsg, tuple[bytes, ...]]:
        _, message, *attachments = await self._socket.recv_multipart()
        return msgspec.msgpack.decode(message, type=ChunkMsg | FetchFailedMsg), tuple(attachments)

    async def aclose(self) -> None:
        self._context.destroy(linger=0)
