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
    TellOperator,
    TellService,
)
from ..machine.events import ClientVanished, Event, ServiceVanished, TimePassed
from ..machine.server import DiffusionServer
from .counts import Counts
from .reports import report_bug, report_ignored, report_instance, transition_reporter

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
        #: messages so far
        self.counts = Counts()
        self._server = server
        self._services = services
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: the timer was late; it fires once more, whatever happens until then
        self._in_grace = False
        self._events: deque[Event] = deque()
        #: pieces of results, sent one a turn of the loop
        self._pieces: deque[PassPiece] = deque()
        self._execute: dict[type[Command], Callable[[Any], None]] = {
            TellService: self._tell_service,
            TellClient: self._tell_client,
            PassPiece: self._queue_piece,
            ReportTransition: transition_reporter(),
            ReportInstance: report_instance,
            ReportIgnored: self._report_ignored,
        }

    def on_answer(self, tell_operator: Callable[[TellOperator], None]) -> None:
        """Let `tell_operator` take answers to operators."""
        self._execute[TellOperator] = tell_operator

    def feed(self, *events: Event) -> None:
        """Let the machine handle `events`, and all that carrying out its commands brings about.

        First it decides about all of them, then everything is sent: ZeroMQ's thread is woken once and not for each.
        """
        self._events.extend(events)
        while self._events:
            self._carry_out(self._decide())
        self._arm_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _decide(self) -> list[Command]:
        """Return what is to be done about all events so far. A bug costs the event that met it, and not the broker."""
        now, commands = self._loop.time(), list[Command]()
        while self._events:
            event = self._events.popleft()
            try:
                commands += self._server.handle(event, now)
            except Exception as error:  # noqa: BLE001  (whatever it is: logged with its traceback)
                report_bug(event, error)
        return commands

    def _carry_out(self, commands: list[Command]) -> None:
        """Do it all, services first: they have something to do, clients something to see. Bugs cost one command."""
        for_clients = [command for command in commands if type(command) is TellClient]
        others = [command for command in commands if type(command) is not TellClient]
        for command in others + for_clients:
            try:
                self._execute[type(command)](command)
            except Exception as error:  # noqa: BLE001  (as above)
                report_bug(command, error)

    def _tell_service(self, command: TellService) -> None:
        try:
            self._services.send_nowait(command.peer, command.msg)
        except PeerUnreachable as error:
            self.counts.undeliverable += 1
            self._events.append(ServiceVanished(command.peer, error.reason))

    def _tell_client(self, command: TellClient) -> None:
        try:
            self._clients.send_nowait(command.peer, command.msg, command.attachments)
        except PeerUnreachable as error:
            self.counts.undeliverable += 1
            self._events.append(ClientVanished(command.peer, error.reason))

    def _report_ignored(self, command: ReportIgnored) -> None:
        self.counts.ignored += 1
        report_ignored(command)

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
        """Set the timer, unless it fires in time anyway: too early, it finds nothing to do and is set again."""
        deadline = self._server.next_deadline()
        if self._in_grace or deadline is None:
            return
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
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
