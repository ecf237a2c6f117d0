"""The requests of one session: asked for, asked for again where the broker lost them or had no room, and ended."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from ..schemas.client import CancelMsg, ClientMsg, PongMsg
from ..schemas.errors import (
    InvalidRequest,
    Overloaded,
    PeerUnreachable,
    RequestCancelled,
    RequestLost,
    TenantLimit,
    TriptychError,
)
from .events import Event, Finished
from .inbox import Inbox
from .keepalive import Pings
from .options import Submission

#: so often a request that the broker does not know is submitted again; then it is lost. One that takes the broker down
#: with it must stop some time
MAX_RECOVERIES = 3
#: before a request that found no room is submitted again, at least, in seconds
MIN_WAIT_S = 0.05
#: those that found no room come back within so much of their wait after it, not all at once
JITTER = 0.25


class _Live:
    """A request that somebody waits for, and that has not ended."""

    def __init__(self, submission: Submission, now: float) -> None:
        submit = submission.submit
        self.submit = submit
        self.wait_for_room = submission.wait_for_room
        self.inbox = Inbox(submit.request_id, submit.params.seed)
        #: by the loop's clock; None: its caller set none, and the broker's default begins again with each submission
        self.deadline = None if submit.timeout_s is None else now + submit.timeout_s
        #: how often it was submitted again because the broker did not know it
        self.recoveries = 0
        #: PINGs before it was last submitted: what answers them does not count
        self.pings_before = 0
        #: `cancel` was called; the broker has not answered
        self.cancelled = False
        #: it is not at the broker, which had no room, and is submitted again when this rings
        self.timer: asyncio.TimerHandle | None = None


class Requests:
    """Those between SUBMIT and their end. `send` queues a message for the broker or raises `PeerUnreachable`."""

    def __init__(self, send: Callable[[ClientMsg], None], pings: Pings) -> None:
        self._send = send
        self._pings = pings
        self._live: dict[str, _Live] = {}
        #: cancelled, with nobody waiting, and their end not told yet; and the PINGs before they were last submitted
        self._unsettled: dict[str, int] = {}

    def __contains__(self, request_id: str) -> bool:
        """Return whether the request is not over as far as the broker told, waited for or not."""
        return request_id in self._live or request_id in self._unsettled

    @property
    def unfinished(self) -> bool:
        """Whether anything is still to be heard of any request."""
        return bool(self._live or self._unsettled)

    def submit(self, submission: Submission) -> Inbox:
        """Send the request, and return the inbox of what becomes of it."""
        live = _Live(submission, _now())
        self._submit(live, live.submit.timeout_s)
        self._live[live.submit.request_id] = live
        return live.inbox

    def cancel(self, request_id: str) -> None:
        """Ask the broker to end the request, again with each PING until it answers. Another's, or none, is left be."""
        live = self._live.get(request_id)
        if live is None:
            return
        if live.timer is not None:
            self.end(request_id, RequestCancelled("client"))
            return
        live.cancelled = True
        self._say_cancel(request_id)

    def leave(self, inbox: Inbox) -> None:
        """Forget the request, since nobody reads its inbox any more; where it is at the broker, that is told."""
        live = self._live.get(inbox.request_id)
        if live is not None and live.inbox is inbox:  # another may have the id of one that ended
            del self._live[inbox.request_id]
            self._abandon(live)

    def put(self, event: Event) -> None:
        """Pass on what happened to a request."""
        live = self._live.get(event.request_id)
        if live is not None:
            live.inbox.put(event)

    def settle(self, request_id: str) -> Inbox | None:
        """Note that the broker told the request's end, and return the inbox for it, if somebody waits."""
        self._unsettled.pop(request_id, None)
        live = self._live.pop(request_id, None)
        if live is None:
            return None
        if live.timer is not None:
            live.timer.cancel()
        return live.inbox

    def end(self, request_id: str, end: Finished | TriptychError) -> None:
        """Give the request its end."""
        inbox = self.settle(request_id)
        if inbox is not None:
            inbox.put(end)

    def refuse(self, request_id: str, error: TriptychError) -> None:
        """Take the broker's error: the request's end, unless it waits for room."""
        live = self._live.get(request_id)
        if live is not None:
            full = isinstance(error, Overloaded | TenantLimit)
            # of a request that was submitted again, the broker knows that it ended, and not how
            over = bool(live.recoveries) and isinstance(error, InvalidRequest) and error.field == "request_id"
            if live.cancelled and (full or over):
                error = RequestCancelled("client")
            elif over:
                error = RequestLost(request_id)
            elif full and self._wait_for_room(live, error):
                return
        self.end(request_id, error)

    def take_pong(self, pong: PongMsg) -> None:
        """Submit again what the broker does not know any more."""
        number = self._pings.number_of(pong)
        for request_id in pong.unknown:
            live = self._live.get(request_id)
            if live is not None and live.timer is None and live.pings_before < number:
                self._recover(live)
            elif self._unsettled.get(request_id, number) < number:
                del self._unsettled[request_id]

    def ping(self) -> None:
        """Ask the broker which of the requests it knows, and tell it again which of them to end."""
        at_broker = {name: live for name, live in self._live.items() if live.timer is None}
        for name in (*(name for name, live in at_broker.items() if live.cancelled), *self._unsettled):
            self._say_cancel(name)
        for ping in self._pings.make((*at_broker, *self._unsettled)):
            with suppress(PeerUnreachable):
                self._send(ping)

    def fail_all(self, error: TriptychError) -> None:
        """Give all the same end, and let the broker know that nobody waits."""
        ended, self._live = self._live, {}
        for live in ended.values():
            self._abandon(live)
            live.inbox.put(error)

    def _submit(self, live: _Live, timeout_s: float | None) -> None:
        live.pings_before = self._pings.count
        self._send(replace(live.submit, timeout_s=timeout_s))

    def _submit_again(self, live: _Live) -> None:
        live.timer = None
        left_s = None if live.deadline is None else max(live.deadline - _now(), 1e-3)
        with suppress(PeerUnreachable):  # the next PONG tells that it is not there
            self._submit(live, left_s)

    def _recover(self, live: _Live) -> None:
        request_id = live.submit.request_id
        if live.cancelled:
            self.end(request_id, RequestCancelled("client"))
        elif live.recoveries == MAX_RECOVERIES or (live.deadline is not None and live.deadline <= _now()):
            self.end(request_id, RequestLost(request_id))
        else:
            live.recoveries += 1
            self._submit_again(live)

    def _wait_for_room(self, live: _Live, error: Overloaded | TenantLimit) -> bool:
        """Submit the request again after a while, and return True, if it may wait for so long."""
        wait_s = max(error.retry_after_s, MIN_WAIT_S) * random.uniform(1.0, 1.0 + JITTER)  # noqa: S311  (no secret)
        if not live.wait_for_room or (live.deadline is not None and live.deadline <= _now() + wait_s):
            return False
        live.timer = asyncio.get_running_loop().call_later(wait_s, self._submit_again, live)
        return True

    def _abandon(self, live: _Live) -> None:
        """Spare the broker work that nobody waits for; where it cannot be told, its own timeout ends the request."""
        if live.timer is not None:
            live.timer.cancel()
            return
        self._unsettled[live.submit.request_id] = live.pings_before
        self._say_cancel(live.submit.request_id)

    def _say_cancel(self, request_id: str) -> None:
        with suppress(PeerUnreachable):
            self._send(CancelMsg(request_id))


def _now() -> float:
    return asyncio.get_running_loop().time()
