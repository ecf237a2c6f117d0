"""One connection to the broker, and the requests in flight on it."""

import asyncio
import logging
import secrets
from contextlib import suppress
from importlib.metadata import version
from itertools import islice

from ..schemas.client import (
    CancelMsg,
    ClientMsg,
    ClientReplyMsg,
    ErrorMsg,
    HelloMsg,
    PingMsg,
    PongMsg,
    RelayedChunkMsg,
    RelayFailedMsg,
    ResultMsg,
    SubmitMsg,
    WelcomeMsg,
)
from ..schemas.errors import (
    BrokerUnreachable,
    MalformedMessage,
    PayloadTooLarge,
    PeerUnreachable,
    RequestCancelled,
    RequestLost,
    TriptychError,
    VersionMismatch,
    error_from,
)
from ..schemas.sampling import SamplingParams
from ..schemas.transfer import PROTOCOL_VERSION, ResultTicket
from ..transport.link.channels import MAX_ATTACHMENTS, client_to_broker
from ..transport.link.dealer import DealerLink
from .events import Fetching, Finished, event_from
from .fetch import Fetcher, FetchSettings
from .inbox import Inbox
from .keepalive import KeepAlive
from .result import result_from

#: between two HELLOs while no WELCOME comes, in seconds
HELLO_INTERVAL_S = 1.0
#: request ids that one PING can name
MAX_PING_IDS = 4096
#: room for every message that is no result, and for results that a broker passes on unless it is told to take larger
#: ones: what is larger than this and `max_result_bytes` closes the link, what is between the two is refused by name
MIN_FRAME_BYTES = 16 * 2**20

_log = logging.getLogger("triptych.client")


class Session:
    """A link with a task that reads it and a task that PINGs. Made and used inside one event loop."""

    def __init__(
        self, endpoint: str, max_result_bytes: int, ping_interval_s: float, fetch_settings: FetchSettings
    ) -> None:
        self._endpoint = endpoint
        identity = f"client/{secrets.token_hex(16)}".encode()
        frame_bytes = max(max_result_bytes, MIN_FRAME_BYTES)
        self._max_result_bytes = max_result_bytes
        self._link = DealerLink(client_to_broker(MAX_ATTACHMENTS * frame_bytes), endpoint, identity, frame_bytes)
        self._keep_alive = KeepAlive(ping_interval_s)
        self._welcomes: set[asyncio.Future[WelcomeMsg]] = set()
        self._inboxes: dict[str, Inbox] = {}
        self._fetcher = Fetcher(endpoint, self._send, max_result_bytes, fetch_settings)
        #: requests that are done, and whose results are on their way
        self._fetches: dict[str, asyncio.Task[None]] = {}
        #: requests that nobody waits for any more and whose end the broker has not told yet
        self._unsettled: set[str] = set()
        self._busy = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    async def hello(self, timeout_s: float) -> WelcomeMsg:
        """Introduce the client and wait for the broker's answer."""
        welcome: asyncio.Future[WelcomeMsg] = asyncio.get_running_loop().create_future()
        self._welcomes.add(welcome)
        try:
            async with asyncio.timeout(timeout_s):
                while not welcome.done():
                    self._send(HelloMsg(PROTOCOL_VERSION, version("triptych")))
                    await asyncio.wait([welcome], timeout=HELLO_INTERVAL_S)
        except TimeoutError as error:
            raise BrokerUnreachable(self._endpoint, timeout_s) from error
        finally:
            self._welcomes.discard(welcome)
        answer = welcome.result()
        if answer.protocol_version != PROTOCOL_VERSION:
            raise VersionMismatch(answer.protocol_version, PROTOCOL_VERSION)
        return answer

    def submit(self, request_id: str, params: SamplingParams, timeout_s: float | None) -> Inbox:
        """Send the request, and return the inbox of what becomes of it."""
        self._send(SubmitMsg(request_id, params, timeout_s))
        inbox = self._inboxes[request_id] = Inbox(request_id, params.seed)
        self._busy.set()
        return inbox

    def in_flight(self, request_id: str) -> bool:
        """Return whether the request is one of this session's and not over, waited for or not."""
        return request_id in self._inboxes or request_id in self._fetches or request_id in self._unsettled

    def cancel(self, request_id: str) -> None:
        """Ask the broker to end the request; its inbox gets the answer. Where it is done, stop fetching its result."""
        fetch = self._fetches.get(request_id)
        if fetch is None:
            self._send(CancelMsg(request_id))
        else:
            fetch.cancel()

    def leave(self, inbox: Inbox) -> None:
        """Forget the request, since nobody reads its inbox any more; where it is not over, the broker is told."""
        fetch = self._fetches.get(inbox.request_id)
        if fetch is not None:
            fetch.cancel()
        if self._inboxes.pop(inbox.request_id, None) is not None:
            self._cancel_unheard(inbox)

    async def aclose(self) -> None:
        """Cancel what is in flight, and close the link."""
        self._fail_all(RequestCancelled("client"))
        tasks = [*self._fetches.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.aclose()

    def _send(self, message: ClientMsg) -> None:
        self._link.send_nowait(message)

    async def _read(self) -> None:
        while True:
            try:
                message, attachments = await self._link.receive()
            except MalformedMessage as error:
                _log.warning("dropped what the broker at %s sent: %s", self._endpoint, error)
                continue
            self._keep_alive.heard()
            self._take(message, attachments)

    def _take(self, message: ClientReplyMsg, attachments: tuple[bytes, ...]) -> None:
        match message:
            case WelcomeMsg():
                self._answer_hello(message)
            case PongMsg():
                for request_id in message.unknown:
                    self._end(request_id, RequestLost(request_id))
            case ErrorMsg(request_id=None):
                self._take_unaddressed(error_from(message.error))
            case ErrorMsg(request_id=request_id):
                self._end(request_id, error_from(message.error))
            case ResultMsg():
                self._take_result(message, attachments)
            case RelayedChunkMsg() | RelayFailedMsg():
                self._fetcher.take(message, attachments)
            case _:
                inbox = self._inboxes.get(message.request_id)
                if inbox is not None:
                    inbox.put(event_from(message))

    def _answer_hello(self, answer: WelcomeMsg | TriptychError) -> bool:
        waiting = [welcome for welcome in self._welcomes if not welcome.done()]
        for welcome in waiting:
            if isinstance(answer, TriptychError):
                welcome.set_exception(answer)
            else:
                welcome.set_result(answer)
        return bool(waiting)

    def _take_unaddressed(self, error: TriptychError) -> None:
        if not self._answer_hello(error):
            _log.warning("the broker at %s refused a message: %s", self._endpoint, error)

    def _take_result(self, message: ResultMsg, attachments: tuple[bytes, ...]) -> None:
        self._unsettled.discard(message.request_id)
        inbox = self._inboxes.get(message.request_id)
        if inbox is None:
            return
        if message.ticket is not None:
            self._start_fetch(message, message.ticket, self._inboxes.pop(message.request_id))
            return
        size = sum(map(len, attachments))
        if size > self._max_result_bytes:
            self._end(message.request_id, PayloadTooLarge(size, self._max_result_bytes, "max_result_bytes"))
            return
        try:
            end = Finished(message.request_id, result_from(message, attachments, inbox.seed))
        except MalformedMessage as error:
            end = error
        self._end(message.request_id, end)

    def _start_fetch(self, message: ResultMsg, ticket: ResultTicket, inbox: Inbox) -> None:
        task = self._fetches[message.request_id] = asyncio.create_task(self._fetch(message, ticket, inbox))
        task.add_done_callback(lambda _: self._fetched(inbox))

    def _fetched(self, inbox: Inbox) -> None:
        del self._fetches[inbox.request_id]
        inbox.put(RequestCancelled("client"))  # if it was, maybe before it began; an end that came before counts

    async def _fetch(self, message: ResultMsg, ticket: ResultTicket, inbox: Inbox) -> None:
        """Fetch the result; the broker has nothing to do with the request any more."""
        name = message.request_id
        try:
            media = await self._fetcher.fetch(name, ticket, lambda come, size: inbox.put(Fetching(name, come, size)))
            inbox.put(Finished(name, result_from(message, media, inbox.seed)))
        except TriptychError as error:
            inbox.put(error)
        except Exception as error:  # noqa: BLE001  (whoever waits must hear of a bug)
            inbox.put(TriptychError(f"the result could not be fetched: {error!r}"))

    def _end(self, request_id: str | None, end: Finished | TriptychError) -> None:
        self._unsettled.discard(request_id or "")
        inbox = self._inboxes.pop(request_id or "", None)
        if inbox is not None:
            inbox.put(end)

    def _fail_all(self, error: TriptychError) -> None:
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            self._cancel_unheard(inbox)
            inbox.put(error)

    def _cancel_unheard(self, inbox: Inbox) -> None:
        """Spare the broker work that nobody waits for; where it cannot be told, its own timeout ends the request."""
        if not inbox.ended:
            self._unsettled.add(inbox.request_id)
            with suppress(PeerUnreachable):
                self._send(CancelMsg(inbox.request_id))

    async def _watch(self) -> None:
        while True:
            await self._busy.wait()
            self._keep_alive.heard()
            while self._inboxes:
                await asyncio.sleep(self._keep_alive.interval_s)
                self._ping()
            self._busy.clear()

    def _ping(self) -> None:
        if not self._inboxes:
            return
        if self._keep_alive.lost():
            self._fail_all(BrokerUnreachable(self._endpoint, self._keep_alive.silence_s))
            return
        request_ids = iter((*self._inboxes, *self._unsettled))
        while chunk := tuple(islice(request_ids, MAX_PING_IDS)):
            with suppress(PeerUnreachable):
                self._send(PingMsg(chunk))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Tell whoever waits when a task fails, which it never should, rather than let them wait for ever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("the client's own task failed", exc_info=error)
        failure = TriptychError(f"the client failed: {error!r}")
        self._answer_hello(failure)
        self._fail_all(failure)
