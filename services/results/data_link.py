"""Where clients fetch large results: a ROUTER of the service's own that serves pieces of what the outbox keeps."""

import asyncio
import secrets
import socket
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

import structlog
from msgspec import Struct

from ...schemas.errors import ConfigError, MalformedMessage, PeerUnreachable, ResultGone, TriptychError
from ...schemas.fetch import ChunkMsg, FetchEndMsg, FetchFailedMsg, FetchMsg, HolderMsg, ReaderMsg
from ...schemas.transfer import Claim, Piece, ResultTicket
from ...transport.link.channels import MAX_READER_MESSAGE_BYTES, holder_to_readers
from ...transport.link.codec import Frame
from ...transport.link.router import Envelope, RouterLink
from ..threads import collect_in_thread
from .outbox import Outbox, OutboxLimits

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")

#: pieces that wait for one reader; a reader that asks for more ahead is cut off
MAX_QUEUED_PIECES = 32
#: a frame above this closes the connection; one between a message's limit and this is answered with an error
MAX_FRAME_BYTES = 16 * MAX_READER_MESSAGE_BYTES
#: characters of a routing id that are logged
LONGEST_PEER = 32


class ResultSettings(Struct, frozen=True):
    """See the settings of the same names in `ServiceSettings`."""

    inline_result_bytes: int
    outbox_bytes: int
    result_ttl_s: float


class ResultServer:
    """Keeps what is too large for one message, and hands it out, piece by piece, to the one reader with its ticket."""

    def __init__(self, link: RouterLink[ReaderMsg, HolderMsg], instance_id: str, settings: ResultSettings) -> None:
        self._link = link
        self._instance_id = instance_id
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.outbox = Outbox(OutboxLimits(settings.outbox_bytes, settings.result_ttl_s))
        self._timer: asyncio.TimerHandle | None = None

    @property
    def endpoint(self) -> str:
        """Where readers connect."""
        return self._link.endpoint

    async def offer(self, request_id: str, files: tuple[Frame, ...]) -> ResultTicket | None:
        """Keep `files` and return the ticket for them, or None where they are small enough for one message.

        Waits for room while readers are at work. Raises `PayloadTooLarge` where there can never be any.
        """
        size = sum(map(len, files))
        if size <= self._settings.inline_result_bytes:
            return None
        checksums = tuple(await collect_in_thread(map(zlib.crc32, files)))
        await self._wait_room(size)
        token = secrets.token_bytes(32)
        self.outbox.put(request_id, token, files, self._loop.time())
        self._arm_timer()
        return ResultTicket(self._instance_id, self.endpoint, token, tuple(map(len, files)), checksums)

    def withdraw(self, request_id: str, ticket: ResultTicket) -> None:
        """Drop the result that `ticket` is for; one that another attempt has put in its place stays."""
        self.outbox.withdraw(request_id, ticket.token)

    def read(self, claim: Claim, piece: Piece) -> Frame:
        """Return a piece. Raises `ResultGone`, or `MalformedMessage` where the result has no such piece."""
        return self.outbox.read(claim, piece, self._loop.time())

    def end(self, claim: Claim) -> None:
        """Drop what `claim` is for; a claim to nothing is passed over."""
        try:
            self.outbox.end(claim)
        except ResultGone as error:
            log.debug("end ignored", request_id=claim.request_id, reason=error.reason)

    async def wait_empty(self) -> None:
        """Wait until all is fetched, dropped or aged out."""
        while self.outbox:
            await self.outbox.wait_changed()

    async def run(self) -> None:
        """Serve readers, until cancelled."""
        while True:
            for envelope in await self._link.receive():
                self._take(envelope)
            await asyncio.sleep(0)  # a batch a turn: heartbeats get theirs

    async def _wait_room(self, size: int) -> None:
        while not self.outbox.make_room(size, self._loop.time()):
            again_at = self.outbox.room_at(self._loop.time())
            try:
                async with asyncio.timeout_at(again_at):
                    await self.outbox.wait_changed()
            except TimeoutError:
                continue

    def _take(self, envelope: Envelope) -> None:
        try:
            message, _ = self._link.codec.decode(envelope.frames)
        except MalformedMessage as error:
            log.warning("message dropped", peer=envelope.peer.hex()[:LONGEST_PEER], reason=error.reason)
            self._say(envelope.peer, FetchFailedMsg(error.info()))
            return
        match message:
            case FetchMsg():
                self._serve(envelope.peer, message)
            case FetchEndMsg():
                self.end(message.claim)

    def _serve(self, peer: bytes, message: FetchMsg) -> None:
        request_id = message.claim.request_id
        try:
            data = self.read(message.claim, message.piece)
        except TriptychError as error:
            log.warning("fetch refused", peer=peer.hex()[:LONGEST_PEER], request_id=request_id, reason=str(error))
            self._say(peer, FetchFailedMsg(error.info(), request_id))
        else:
            self._say(peer, ChunkMsg(request_id, message.piece), (data,))

    def _say(self, peer: bytes, message: HolderMsg, attachments: tuple[Frame, ...] = ()) -> None:
        try:
            self._link.send_nowait(peer, message, attachments)
        except PeerUnreachable as error:
            log.warning("answer lost", peer=peer.hex()[:LONGEST_PEER], reason=error.reason)

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.outbox.next_deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        for request_id in self.outbox.expire(self._loop.time()):
            log.warning("result aged out", request_id=request_id, ttl_s=self._settings.result_ttl_s)
        self._arm_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()


@asynccontextmanager
async def open_results(
    instance_id: str, broker: str, data_host: str, data_port: int, settings: ResultSettings
) -> AsyncGenerator[ResultServer]:
    """Listen for readers, and serve them until the end. Raises `ConfigError` where `data_host` cannot be bound."""
    endpoint = f"tcp://{data_host or address_towards(broker)}:{data_port}"
    try:
        link = RouterLink(holder_to_readers(), endpoint, MAX_FRAME_BYTES, MAX_QUEUED_PIECES)
    except ConfigError as error:
        raise ConfigError("data_host", endpoint, error.allowed) from error
    try:
        async with aclosing(link), asyncio.TaskGroup() as tasks:
            server = ResultServer(link, instance_id, settings)
            serving = tasks.create_task(server.run())
            try:
                yield server
            finally:
                serving.cancel()
                server.close()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None  # what ended the service is raised as it is


def address_towards(broker: str) -> str:
    """Return this host's address on the way to the broker, where its clients can be expected to reach it, too."""
    scheme, _, address = broker.partition("://")
    host, _, port = address.rpartition(":")
    if scheme == "tcp":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, int(port)))  # sends nothing
            except OSError as error:
                log.warning("no way to the broker known yet", broker=broker, reason=str(error))
            else:
                return str(probe.getsockname()[0])
    return "127.0.0.1"
