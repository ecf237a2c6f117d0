"""One connection to the broker, and what goes over it."""

import asyncio
import logging
import secrets
from importlib.metadata import version

from ..schemas.client import (
    ClientMsg,
    ClientReplyMsg,
    ErrorMsg,
    HelloMsg,
    PongMsg,
    RelayedChunkMsg,
    RelayFailedMsg,
    ResultMsg,
    WelcomeMsg,
)
from ..schemas.errors import (
    BrokerUnreachable,
    InvalidRequest,
    MalformedMessage,
    RequestCancelled,
    TriptychError,
    VersionMismatch,
    error_from,
)
from ..schemas.transfer import PROTOCOL_VERSION
from ..transport.link.channels import MAX_ATTACHMENTS, client_to_broker
from ..transport.link.dealer import DealerLink
from .deliveries import Deliveries
from .events import event_from
from .fetch import Fetcher, FetchSettings
from .inbox import Inbox
from .keepalive import KeepAlive, Pings
from .options import Submission
from .requests import Requests

#: between two HELLOs while no WELCOME comes, in seconds
HELLO_INTERVAL_S = 1.0
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
        self._link = DealerLink(client_to_broker(MAX_ATTACHMENTS * frame_bytes), endpoint, identity, frame_bytes)
        self._keep_alive = KeepAlive(ping_interval_s)
        self._welcomes: set[asyncio.Future[WelcomeMsg]] = set()
        self._requests = Requests(self._send, Pings())
        fetcher = Fetcher(endpoint, self._send, max_result_bytes, fetch_settings)
        self._deliveries = Deliveries(fetcher, max_result_bytes)
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

    def submit(self, submission: Submission) -> Inbox:
        """Send the request, and return the inbox of what becomes of it. Raises `InvalidRequest` for an id in use."""
        request_id = submission.submit.request_id
        if request_id in self._requests or request_id in self._deliveries:
            raise InvalidRequest("request_id", request_id, "one that is not in flight")
        inbox = self._requests.submit(submission)
        self._busy.set()
        return inbox

    def cancel(self, request_id: str) -> None:
        """End the request; its inbox gets the answer. Where it is done, stop fetching its result."""
        self._deliveries.cancel(request_id)
        self._requests.cancel(request_id)

    def leave(self, inbox: Inbox) -> None:
        """Forget the request, since nobody reads its inbox any more; where it is not over, the broker is told."""
        self._deliveries.leave(inbox)
        self._requests.leave(inbox)

    async def aclose(self) -> None:
        """Cancel what is in flight, and close the link."""
        self._requests.fail_all(RequestCancelled("client"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._deliveries.aclose(), *self._tasks, return_exceptions=True)
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
                self._requests.take_pong(message)
            case ErrorMsg():
                self._take_error(message.request_id, error_from(message.error))
            case ResultMsg():
                inbox = self._requests.settle(message.request_id)
                if inbox is not None:
                    self._deliveries.start(message, attachments, inbox)
            case RelayedChunkMsg() | RelayFailedMsg():
                self._deliveries.take(message, attachments)
            case _:
                self._requests.put(event_from(message))

    def _answer_hello(self, answer: WelcomeMsg | TriptychError) -> bool:
        waiting = [welcome for welcome in self._welcomes if not welcome.done()]
        for welcome in waiting:
            if isinstance(answer, TriptychError):
                welcome.set_exception(answer)
            else:
                welcome.set_result(answer)
        return bool(waiting)

    def _take_error(self, request_id: str | None, error: TriptychError) -> None:
        if request_id is not None:
            self._requests.refuse(request_id, error)
        elif not self._answer_hello(error):
            _log.warning("the broker at %s refused a message: %s", self._endpoint, error)

    async def _watch(self) -> None:
        while True:
            await self._busy.wait()
            self._keep_alive.heard()
            while self._requests.unfinished and self._busy.is_set():
                await asyncio.sleep(self._keep_alive.interval_s)
                self._ping()
            self._busy.clear()

    def _ping(self) -> None:
        if not self._requests.unfinished:
            return
        if self._keep_alive.lost():
            self._requests.fail_all(BrokerUnreachable(self._endpoint, self._keep_alive.silence_s))
            self._busy.clear()  # until the next request: those that were left are not worth asking a silent broker
        else:
            self._requests.ping()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Tell whoever waits when a task fails, which it never should, rather than let them wait for ever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("the client's own task failed", exc_info=error)
        failure = TriptychError(f"the client failed: {error!r}")
        self._answer_hello(failure)
        self._requests.fail_all(failure)
