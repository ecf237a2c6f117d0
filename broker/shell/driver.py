"""The lines around the machine: feed it events, carry out its commands, wake it when time matters."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...schemas.client import ClientMsg, ClientReplyMsg
from ...schemas.errors import PeerUnreachable
from ...schemas.transfer import BrokerMsg, ServiceMsg
from ...transport.link.router import RouterLink
from ..machine.commands import (
    Command,
    PassPiece,
    ReportIgnored,
    ReportInstance,
    ReportTransition,
    TellClient,
    TellService,
)
from ..machine.events import ClientVanished, Event, ServiceVanished, TimePassed
from ..machine.server import DiffusionServer
from .reports import report_ignored, report_instance, report_transition

#: a timer that fires later than this was held up, and with it the messages that may have been in time, in seconds
LATE_S = 0.05
#: for those messages to be taken in, in seconds
GRACE_S = 0.25


class Driver:
    """Runs one `DiffusionServer` in the running loop, whose clock is its time."""

    def __init__(
        self,
        server: DiffusionServer,
        services: RouterLink[ServiceMsg, BrokerMsg],
        clients: RouterLink[ClientMsg, ClientReplyMsg],
    ) -> None:
        self._server = server
        self._services = services
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: what the timer is set for
        self._deadline: float | None = None
        #: the timer was late; it fires once more, whatever happens until then
        self._in_grace = False
        self._events: deque[Event] = deque()
        #: pieces of results, sent one a turn of the loop
        self._pieces: deque[PassPiece] = deque()
        self._execute: dict[type[Command], Callable[[Any], None]] = {
            TellService: self._tell_service,
            TellClient: self._tell_client,
            PassPiece: self._queue_piece,
            ReportTransition: report_transition,
            ReportInstance: report_instance,
            ReportIgnored: report_ignored,
        }

    def feed(self, event: Event) -> None:
        """Let the machine handle `event`, and all that carrying out its commands brings about."""
        self._events.append(event)
        while self._events:
            for command in self._server.handle(self._events.popleft(), self._loop.time()):
                self._execute[type(command)](command)
        self._arm_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell_service(self, command: TellService) -> None:
        try:
            self._services.send_nowait(command.peer, command.msg)
        except PeerUnreachable as error:
            self._events.append(ServiceVanished(command.peer, error.reason))

    def _tell_client(self, command: TellClient) -> None:
        try:
            self._clients.send_nowait(command.peer, command.msg, command.attachments)
        except PeerUnreachable as error:
            self._events.append(ClientVanished(command.peer, error.reason))

    def _queue_piece(self, command: PassPiece) -> None:
        self._pieces.append(command)
        if len(self._pieces) == 1:
            self._loop.call_soon(self._pass_piece)

    def _pass_piece(self) -> None:
        """Pass one piece on; whatever else is ready in the loop has its turn before the next one."""
        piece = self._pieces.popleft()
        with suppress(PeerUnreachable):
            self._clients.send_nowait(piece.peer, piece.msg, piece.attachments)
        if self._pieces:
            self._loop.call_soon(self._pass_piece)

    def _arm_timer(self) -> None:
        if self._in_grace:
            return
        deadline = self._server.next_deadline()
        if self._timer is not None:
            if deadline == self._deadline:
                return
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._alarm)

    def _alarm(self) -> None:
        """Tell the machine the time, but where the loop was held up let it first hear what was said meanwhile."""
        if self._timer is not None and self._loop.time() - self._timer.when() > LATE_S:
            self._in_grace = True
            self._timer = self._loop.call_later(GRACE_S, self._tell_time)
        else:
            self._tell_time()

    def _tell_time(self) -> None:
        self._timer = None
        self._in_grace = False
        self.feed(TimePassed())
