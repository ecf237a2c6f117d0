"""The admin channel: what operators say is fed to the machine, and its answers go back."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from ...schemas.admin import AdminErrorMsg, AdminMsg, AdminReplyMsg, AdminStatusReplyMsg
from ...schemas.errors import MalformedMessage, PeerUnreachable
from ...schemas.status import BrokerStatus
from ...transport.link.router import Envelope, RouterLink
from ..machine.commands import TellOperator
from ..machine.events import OperatorSpoke
from .driver import Driver
from .intake import heard
from .reports import report_malformed


class Operators:
    """Speaks with operators over `link`; `describe` says what the machine does not know of its process."""

    def __init__(self, link: RouterLink[AdminMsg, AdminReplyMsg], describe: Callable[[], BrokerStatus]) -> None:
        self._link = link
        self._describe = describe

    def tell(self, command: TellOperator) -> None:
        """Send an answer. An operator that has gone meanwhile is not missed."""
        answer = command.msg
        if isinstance(answer, AdminStatusReplyMsg):
            answer = replace(answer, broker=self._describe())
        with suppress(PeerUnreachable):
            self._link.send_nowait(command.peer, answer)

    async def take(self, driver: Driver) -> None:
        """Feed what operators say, until cancelled."""
        while True:
            driver.feed(*heard(await self._link.receive(), partial(self._from_operator, driver)))
            await asyncio.sleep(0)

    def _from_operator(self, driver: Driver, envelope: Envelope) -> OperatorSpoke | None:
        try:
            message, _ = self._link.codec.decode(envelope.frames)
        except MalformedMessage as error:
            driver.counts.malformed += 1
            report_malformed(envelope.peer, error.reason)
            self.tell(TellOperator(envelope.peer, AdminErrorMsg(error.info())))
            return None
        driver.counts.received += 1
        return OperatorSpoke(envelope.peer, message)
