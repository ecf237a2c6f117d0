"""Results that are done at the broker and on their way to the caller."""

import asyncio

from ..schemas.client import RelayedChunkMsg, RelayFailedMsg, ResultMsg
from ..schemas.errors import MalformedMessage, PayloadTooLarge, RequestCancelled, TriptychError
from ..schemas.transfer import ResultTicket
from .events import Fetching, Finished
from .fetch import Fetcher
from .inbox import Inbox
from .result import result_from


class Deliveries:
    """Puts each result into its inbox: small ones at once, large ones when they are fetched."""

    def __init__(self, fetcher: Fetcher, max_result_bytes: int) -> None:
        self._fetcher = fetcher
        self._max_result_bytes = max_result_bytes
        self._fetches: dict[str, tuple[Inbox, asyncio.Task[None]]] = {}

    def __contains__(self, request_id: str) -> bool:
        """Return whether the request's result is being fetched."""
        return request_id in self._fetches

    def start(self, message: ResultMsg, attachments: tuple[bytes, ...], inbox: Inbox) -> None:
        """Deliver what came with the message, or fetch what it has a ticket for."""
        if message.ticket is None:
            inbox.put(self._end_of(message, attachments, inbox.seed))
            return
        task = asyncio.create_task(self._fetch(message, message.ticket, inbox))
        self._fetches[message.request_id] = inbox, task
        task.add_done_callback(lambda _: self._fetched(inbox))

    def take(self, message: RelayedChunkMsg | RelayFailedMsg, attachments: tuple[bytes, ...]) -> None:
        """Take what the broker passes on."""
        self._fetcher.take(message, attachments)

    def cancel(self, request_id: str) -> None:
        """Stop fetching the result of the request, if it is being fetched."""
        if request_id in self._fetches:
            self._fetches[request_id][1].cancel()

    def leave(self, inbox: Inbox) -> None:
        """Stop fetching what goes into `inbox`, since nobody reads it any more."""
        reader, task = self._fetches.get(inbox.request_id, (None, None))
        if reader is inbox and task is not None:
            task.cancel()

    async def aclose(self) -> None:
        """Stop fetching."""
        tasks = [task for _, task in self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end_of(self, message: ResultMsg, attachments: tuple[bytes, ...], seed: int) -> Finished | TriptychError:
        size = sum(map(len, attachments))
        if size > self._max_result_bytes:
            return PayloadTooLarge(size, self._max_result_bytes, "max_result_bytes")
        try:
            return Finished(message.request_id, result_from(message, attachments, seed))
        except MalformedMessage as error:
            return error

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

    def _fetched(self, inbox: Inbox) -> None:
        del self._fetches[inbox.request_id]
        inbox.put(RequestCancelled("client"))  # if it was, maybe before it began; an end that came before counts
