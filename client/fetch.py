"""Large results: fetched from the service that keeps them, or, where it cannot be reached, through the broker."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Protocol

from msgspec import Struct

from ..schemas.client import ClientMsg, RelayedChunkMsg, RelayEndMsg, RelayFailedMsg, RelayFetchMsg
from ..schemas.errors import (
    ConfigError,
    MalformedMessage,
    Overloaded,
    PayloadTooLarge,
    PeerUnreachable,
    ResultGone,
    TriptychError,
    error_from,
)
from ..schemas.fetch import ChunkMsg, FetchEndMsg, FetchFailedMsg, FetchMsg, HolderMsg, ReaderMsg
from ..schemas.transfer import MAX_PIECE_BYTES, Claim, Piece, ResultTicket
from ..transport.link.channels import reader_to_holder
from ..transport.link.codec import Frame
from ..transport.link.dealer import DealerLink
from ..transport.link.sockets import LINGER_MS
from .assembly import Assembly

_log = logging.getLogger("triptych.client")


class Pace(Struct, frozen=True):
    """How one way of fetching is used."""

    #: of one piece
    piece_bytes: int
    #: pieces that are asked for and have not come
    credit: int
    #: for the first piece to come, in seconds
    first_s: float
    #: for each later one
    next_s: float


class FetchSettings(Struct, frozen=True):
    """How results are fetched."""

    direct: Pace = Pace(2**20, 4, first_s=1.0, next_s=5.0)
    #: the broker answers in any case; it has its own time limit for the service, and other clients to serve
    relayed: Pace = Pace(128 * 2**10, 2, first_s=60.0, next_s=60.0)
    #: results that one session fetches through the broker at a time
    relays: int = 2
    #: how long an endpoint that did not answer is not tried again, in seconds
    unreachable_s: float = 60.0


class Way(Protocol):
    """A way to a result."""

    def ask(self, piece: Piece) -> None:
        """Ask for a piece."""
        ...

    async def receive(self) -> tuple[Piece, Frame]:
        """Wait for a piece that was asked for. Raises `_Refused`, or the error that ends this way."""
        ...


class _Refused(Exception):
    """The piece is to be asked for again, after a while."""

    def __init__(self, piece: Piece, retry_after_s: float) -> None:
        self.piece = piece
        self.retry_after_s = retry_after_s
        super().__init__()


class Fetcher:
    """Fetches the results of one session. `send` queues a message for the broker."""

    def __init__(
        self, broker: str, send: Callable[[ClientMsg], None], max_result_bytes: int, settings: FetchSettings
    ) -> None:
        self._broker = broker
        self._send = send
        self._max_result_bytes = max_result_bytes
        self._settings = settings
        self._relays = asyncio.Semaphore(settings.relays)
        self._relayed: dict[str, _Relayed] = {}
        #: endpoints that did not answer, and until when they are not tried again
        self._unreachable: dict[str, float] = {}

    async def fetch(
        self, request_id: str, ticket: ResultTicket, on_progress: Callable[[int, int], None]
    ) -> tuple[bytes, ...]:
        """Return the media. `on_progress` is told how many bytes have come, of how many.

        Raises `ResultGone`, `PayloadTooLarge` or `MalformedMessage`. However it ends, the service need not keep them.
        """
        claim = Claim(request_id, ticket.token, secrets.token_bytes(16))
        assembly = Assembly(ticket)
        try:
            if assembly.size > self._max_result_bytes:
                raise PayloadTooLarge(assembly.size, self._max_result_bytes, "max_result_bytes")  # noqa: TRY301
            if self._may_reach(ticket.endpoint):
                await self._fetch_directly(claim, ticket, assembly, on_progress)
            if not assembly.complete:
                await self._fetch_relayed(claim, ticket, assembly, on_progress)
            return assembly.media()
        except BaseException:
            self._end(claim, ticket)
            raise

    def take(self, message: RelayedChunkMsg | RelayFailedMsg, attachments: tuple[bytes, ...]) -> None:
        """Take what the broker passes on."""
        way = self._relayed.get(message.request_id)
        if way is not None:
            way.put(message, attachments)

    async def _fetch_directly(
        self, claim: Claim, ticket: ResultTicket, assembly: Assembly, on_progress: Callable[[int, int], None]
    ) -> None:
        """Fetch from the service, as far as that goes. Its word is not final: another may listen at that address."""
        identity = f"reader/{secrets.token_hex(16)}".encode()
        try:
            link = DealerLink(reader_to_holder(), ticket.endpoint, identity, MAX_PIECE_BYTES)
        except ConfigError as error:
            _log.warning("no data link to %s: %s", ticket.endpoint, error)
            return
        linger_ms = 0
        try:
            await _pull(assembly, _Direct(link, claim), self._settings.direct, on_progress)
            link.send_nowait(FetchEndMsg(claim))
            linger_ms = LINGER_MS
        except (TimeoutError, TriptychError) as error:
            assembly.rewind()
            _log.info("fetching %s through the broker, not from %s: %r", claim.request_id, ticket.endpoint, error)
            if isinstance(error, TimeoutError) and not assembly.written:
                again_at = asyncio.get_running_loop().time() + self._settings.unreachable_s
                self._unreachable[ticket.endpoint] = again_at
        finally:
            await link.aclose(linger_ms)

    async def _fetch_relayed(
        self, claim: Claim, ticket: ResultTicket, assembly: Assembly, on_progress: Callable[[int, int], None]
    ) -> None:
        async with self._relays:
            way = self._relayed[claim.request_id] = _Relayed(self._send, claim, ticket.holder)
            try:
                await _pull(assembly, way, self._settings.relayed, on_progress)
            except TimeoutError as error:
                raise ResultGone(claim.request_id, f"the broker at {self._broker} does not pass it on") from error
            finally:
                del self._relayed[claim.request_id]
        self._end(claim, ticket)

    def _end(self, claim: Claim, ticket: ResultTicket) -> None:
        with suppress(PeerUnreachable):
            self._send(RelayEndMsg(ticket.holder, claim))

    def _may_reach(self, endpoint: str) -> bool:
        """Say whether to try a service's endpoint. One that is loopback is this host's only if the broker's is, too."""
        if self._unreachable.get(endpoint, 0.0) > asyncio.get_running_loop().time():
            return False
        self._unreachable.pop(endpoint, None)
        return endpoint.startswith("tcp://") and (not is_local(endpoint) or is_local(self._broker))


class _Direct:
    """Over the service's data link."""

    def __init__(self, link: DealerLink[HolderMsg, ReaderMsg], claim: Claim) -> None:
        self._link = link
        self._claim = claim

    def ask(self, piece: Piece) -> None:
        self._link.send_nowait(FetchMsg(self._claim, piece))

    async def receive(self) -> tuple[Piece, Frame]:
        message, attachments = await self._link.receive_views()
        match message:
            case FetchFailedMsg():
                raise error_from(message.error)
            case ChunkMsg():
                return message.piece, _only(attachments)


class _Relayed:
    """Through the broker."""

    def __init__(self, send: Callable[[ClientMsg], None], claim: Claim, holder: str) -> None:
        self._send = send
        self._claim = claim
        self._holder = holder
        self._arrived = asyncio.Queue[tuple[RelayedChunkMsg | RelayFailedMsg, tuple[bytes, ...]]]()

    def put(self, message: RelayedChunkMsg | RelayFailedMsg, attachments: tuple[bytes, ...]) -> None:
        self._arrived.put_nowait((message, attachments))

    def ask(self, piece: Piece) -> None:
        self._send(RelayFetchMsg(self._holder, self._claim, piece))

    async def receive(self) -> tuple[Piece, Frame]:
        message, attachments = await self._arrived.get()
        if isinstance(message, RelayedChunkMsg):
            return message.piece, _only(attachments)
        error = error_from(message.error)
        if isinstance(error, Overloaded):
            raise _Refused(message.piece, error.retry_after_s)
        raise error


async def _pull(assembly: Assembly, way: Way, pace: Pace, on_progress: Callable[[int, int], None]) -> None:
    """Fetch what is missing. Raises `TimeoutError` where nothing comes for too long."""
    patience_s = pace.first_s
    while not assembly.complete:
        while assembly.outstanding < pace.credit and (piece := assembly.next_piece(pace.piece_bytes)) is not None:
            way.ask(piece)
        try:
            async with asyncio.timeout(patience_s):
                piece, data = await way.receive()
        except _Refused as refused:
            assembly.refuse(refused.piece)
            await asyncio.sleep(refused.retry_after_s)
        else:
            assembly.take(piece, data)
            on_progress(assembly.written, assembly.size)
            patience_s = pace.next_s


def _only(attachments: Sequence[Frame]) -> Frame:
    if len(attachments) != 1:
        raise MalformedMessage(f"a piece comes as {len(attachments)} attachments")
    return attachments[0]


def is_local(endpoint: str) -> bool:
    """Say whether an endpoint is reached from its own host alone."""
    scheme, _, address = endpoint.partition("://")
    host = address.rpartition(":")[0].strip("[]").lower()
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return scheme == "ipc" or host == "localhost"
