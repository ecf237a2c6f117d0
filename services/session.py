"""One incarnation of a service at the broker: registered, in touch, at work, until it ends."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import structlog
from msgspec import Struct

from ..schemas.errors import MalformedMessage, PeerUnreachable, TriptychError, error_from
from ..schemas.transfer import (
    BrokerMsg,
    ServiceMsg,
    TransferDrainedMsg,
    TransferDrainMsg,
    TransferErrorMsg,
    TransferHeartbeatMsg,
    TransferLeaveMsg,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferRegisterRefusedMsg,
    routing_id,
)
from ..transport.link.channels import service_to_broker
from ..transport.link.codec import Frame
from ..transport.link.dealer import DealerLink
from .job import Parts
from .worker import Worker

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")

#: between two attempts to register, in seconds
REGISTER_AGAIN_S = 0.5
#: an answer of the broker has no attachments and no frame above this
MAX_FRAME_BYTES = 16 * 2**20


class Forgotten(Struct, frozen=True):
    """The broker does not know this incarnation any more; the next one must be above `exceed`."""

    exceed: int = 0


async def run_session(
    broker: str,
    registration: TransferRegisterMsg,
    parts: Parts,
    stop: asyncio.Event,
    drain_s: float,
    registered: Callable[[], None],
) -> Forgotten | None:
    """Register and serve until `stop` is set (then drain for at most `drain_s`) or the broker forgets this incarnation.

    Returns None where it was stopped. Nothing of the incarnation runs or holds memory afterwards. Raises what the
    broker refused the registration with.
    """
    identity = routing_id(registration.instance_id, registration.incarnation)
    async with aclosing(DealerLink(service_to_broker(), broker, identity, MAX_FRAME_BYTES)) as link:
        session = Session(link, registration, parts, registered)
        return await session.run(stop, drain_s)


class Session:
    """The state of `run_session`."""

    def __init__(
        self,
        link: DealerLink[BrokerMsg, ServiceMsg],
        registration: TransferRegisterMsg,
        parts: Parts,
        registered: Callable[[], None],
    ) -> None:
        self._link = link
        self._registration = registration
        self._parts = parts
        self._on_registered = registered
        self._ack: asyncio.Future[TransferRegisterAckMsg] = asyncio.get_running_loop().create_future()
        #: fails with what the registration was refused with
        self._forgotten: asyncio.Future[Forgotten] = asyncio.get_running_loop().create_future()
        #: the broker has nothing more for this incarnation, and needs nothing of it
        self._dismissed = asyncio.Event()

    async def run(self, stop: asyncio.Event, drain_s: float) -> Forgotten | None:
        """See `run_session`."""
        async with asyncio.TaskGroup() as tasks:
            worker = Worker(self._parts, self._send, tasks)
            background = [tasks.create_task(self._receive(worker)), tasks.create_task(self._keep_in_touch())]
            await self._wait_over(stop)
            if not self._forgotten.done() and self._ack.done():
                await self._drain(worker, drain_s)
            for task in background:
                task.cancel()
            await worker.aclose()
        return self._forgotten.result() if self._forgotten.done() else None

    async def _wait_over(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(stop.wait())
            await asyncio.wait((stopped, self._forgotten), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()

    async def _drain(self, worker: Worker, drain_s: float) -> None:
        self._send(TransferDrainMsg())
        try:
            async with asyncio.timeout(drain_s), asyncio.TaskGroup() as tasks:
                drained = tasks.create_task(self._wait_drained(worker))
                await asyncio.wait((drained, self._forgotten), return_when=asyncio.FIRST_COMPLETED)
                drained.cancel()
            self._send(TransferLeaveMsg("drained"))
        except TimeoutError:
            log.warning("work left unfinished, or a result not fetched", drain_s=drain_s)
            self._send(TransferLeaveMsg(f"stopped with work unfinished after {drain_s:g} s"))

    async def _wait_drained(self, worker: Worker) -> None:
        """Wait until the broker says so, who knows what is on its way here; then for what it knows nothing of."""
        await self._dismissed.wait()
        await worker.wait_idle()
        if self._parts.results is not None:
            await self._parts.results.wait_empty()

    async def _receive(self, worker: Worker) -> None:
        while True:
            try:
                message, _ = await self._link.receive()
            except MalformedMessage as error:
                log.warning("message dropped", peer="broker", reason=error.reason)
                continue
            self._take(message, worker)

    def _take(self, message: BrokerMsg, worker: Worker) -> None:
        match message:
            case TransferRegisterAckMsg():
                self._acknowledged(message)
            case TransferRegisterRefusedMsg():
                self._forget(error_from(message.error))
            case TransferRegisterAgainMsg():
                self._forget(Forgotten(message.exceed))
            case TransferDrainedMsg():
                self._dismissed.set()
            case TransferErrorMsg() if not self._ack.done():
                self._forget(error_from(message.error))  # nothing but REGISTER has been said
            case TransferErrorMsg():
                log.error("the broker dropped a message", reason=message.error.message)
            case _:
                worker.take(message)

    def _acknowledged(self, message: TransferRegisterAckMsg) -> None:
        if not self._ack.done():
            log.info("registered", instance_id=self._registration.instance_id)
            self._ack.set_result(message)
            self._on_registered()

    async def _keep_in_touch(self) -> None:
        """Register until that is acknowledged, then send heartbeats at the pace the broker asks for."""
        self._send(self._registration)
        await asyncio.wait((self._ack,), timeout=REGISTER_AGAIN_S)
        if not self._ack.done():
            log.info("waiting for the broker", instance_id=self._registration.instance_id)
        while not self._ack.done():
            self._send(self._registration)
            await asyncio.wait((self._ack,), timeout=REGISTER_AGAIN_S)
        pace = self._ack.result().heartbeat_s
        while True:
            self._send(TransferHeartbeatMsg())
            await asyncio.sleep(pace)

    def _send(self, message: ServiceMsg, attachments: tuple[Frame, ...] = ()) -> None:
        try:
            self._link.send_nowait(message, attachments)
        except PeerUnreachable as error:
            log.warning("message lost", msg_type=type(message).__name__, reason=error.reason)
            self._forget(Forgotten())

    def _forget(self, why: Forgotten | TriptychError) -> None:
        if self._forgotten.done():
            return
        if isinstance(why, Forgotten):
            self._forgotten.set_result(why)
        else:
            self._forgotten.set_exception(why)
