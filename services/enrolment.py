"""Whether the broker knows an incarnation, and what it is told until it does."""

import asyncio
from contextlib import suppress

import structlog

from ..schemas.transfer import TransferRegisterAckMsg, TransferRegisterMsg
from .outgoing import Outgoing

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")

#: between two attempts to register, in seconds
REGISTER_AGAIN_S = 0.5


class Enrolment:
    """The registration of one incarnation: the first one, and one for each time that the broker restarted."""

    def __init__(self, registration: TransferRegisterMsg, outgoing: Outgoing) -> None:
        #: as it was said last; said again word for word, since what came after it waits behind it
        self.registration = registration
        #: what the broker asks for; None until it acknowledged the first registration
        self.terms: TransferRegisterAckMsg | None = None
        self._outgoing = outgoing
        self._loop = asyncio.get_running_loop()
        self._said_at = 0.0
        self._once = asyncio.Event()

    async def wait_first(self) -> TransferRegisterAckMsg:
        """Register until that is acknowledged."""
        self._say()
        await self._wait_acknowledged(REGISTER_AGAIN_S)
        if self.terms is None:
            log.info("waiting for the broker", instance_id=self.registration.instance_id)
        while self.terms is None:
            self._say()
            await self._wait_acknowledged(REGISTER_AGAIN_S)
        return self.terms

    def acknowledged(self, terms: TransferRegisterAckMsg) -> None:
        """Say all that waited; an acknowledgement of what was said twice is no harm."""
        self.terms = terms
        self._once.set()
        if not self._outgoing.registered:
            log.info("registered", instance_id=self.registration.instance_id)
            self._outgoing.acknowledged()

    def begin(self, registration: TransferRegisterMsg) -> None:
        """Register with a broker that restarted."""
        log.info("the broker has restarted", jobs=len(registration.jobs), outputs=len(registration.outputs))
        self.registration = registration
        self._say()

    def remind(self) -> None:
        """Say the registration again to a broker that still does not know it: it restarted once more, perhaps.

        It answers every message of a stranger, so it is not said each time.
        """
        if self._loop.time() - self._said_at >= REGISTER_AGAIN_S:
            self._say()

    def _say(self) -> None:
        self._said_at = self._loop.time()
        self._outgoing.register(self.registration)

    async def _wait_acknowledged(self, limit_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._once.wait()
