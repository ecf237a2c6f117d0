"""One incarnation of a service at the broker: registered, in touch, at work, until it ends."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import structlog

from ..schemas.errors import MalformedMessage, PeerUnreachable, TriptychError, error_from
from ..schemas.identifiers import routing_id
from ..schemas.transfer import (
    BrokerMsg,
    ServiceMsg,
    TransferDrainedMsg,
    TransferErrorMsg,
    TransferLeaveMsg,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferRegisterRefusedMsg,
)
from ..transport.link.channels import service_to_broker
from ..transport.link.codec import Frame
from ..transport.link.dealer import DealerLink
from .departure import Departure
from .enrolment import Enrolment
from .holdings import registration_with, too_much
from .incarnations import Forgotten
from .job import Parts
from .outgoing import Outgoing
from .pulse import watch_loop
from .waiting import first_of, wait_done
from .worker import Worker

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")

#: an answer of the broker has no attachments and no frame above this
MAX_FRAME_BYTES = 16 * 2**20


async def run_session(
    broker: str,
    registration: TransferRegisterMsg,
    parts: Parts,
    stop: asyncio.Event,
    drain_s: float,
    registered: Callable[[], None],
) -> Forgotten | None:
    """Register and serve until `stop` is set (then drain for at most `drain_s`) or the broker forgets this incarnation.

    A broker that restarted is told what is held, and the session goes on. Returns None where it was stopped. Nothing of
    the incarnation runs or holds memory afterwards. Raises what the broker refused the registration with.
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
        self._parts = parts
        self._on_registered = registered
        self._outgoing = Outgoing(self._send)
        self._enrolment = Enrolment(registration, self._outgoing)
        self._departure = Departure()
        #: fails with what the registration was refused with
        self._forgotten: asyncio.Future[Forgotten] = asyncio.get_running_loop().create_future()

    async def run(self, stop: asyncio.Event, drain_s: float) -> Forgotten | None:
        """See `run_session`."""
        async with asyncio.TaskGroup() as tasks:
            worker = Worker(self._parts, self._outgoing.send, tasks, self._enrolment.registration.receive_slots)
            background = [tasks.create_task(self._receive(worker)), tasks.create_task(self._keep_in_touch(worker))]
            await first_of(stop.wait(), wait_done(self._forgotten))
            terms = self._enrolment.terms
            if terms is not None and not self._forgotten.done():
                await self._drain(worker, drain_s, terms.lease_s)
            for task in background:
                task.cancel()
            await worker.aclose()
        return self._forgotten.result() if self._forgotten.done() else None

    async def _drain(self, worker: Worker, drain_s: float, lease_s: float) -> None:
        self._departure.begin(self._outgoing.send)
        try:
            async with asyncio.timeout(drain_s):
                await first_of(
                    self._departure.wait_drained(self._parts.results),
                    self._departure.wait_alone(worker, self._parts.results, lease_s),
                    wait_done(self._forgotten),
                )
            self._outgoing.send_now(TransferLeaveMsg("drained"))
        except TimeoutError:
            log.warning("work left unfinished, or a result not fetched", drain_s=drain_s)
            self._outgoing.send_now(TransferLeaveMsg(f"stopped with work unfinished after {drain_s:g} s"))

    async def _receive(self, worker: Worker) -> None:
        while True:
            try:
                message, _ = await self._link.receive()
            except MalformedMessage as error:
                log.warning("message dropped", peer="broker", reason=error.reason)
                continue
            self._departure.heard()
            self._take(message, worker)
            await asyncio.sleep(0)  # a message a turn: heartbeats get theirs, however many come

    def _take(self, message: BrokerMsg, worker: Worker) -> None:
        match message:
            case TransferRegisterAckMsg():
                self._acknowledged(message)
            case TransferRegisterRefusedMsg():
                self._forget(error_from(message.error))
            case TransferRegisterAgainMsg(exceed=0):
                self._register_again(worker)
            case TransferRegisterAgainMsg():
                self._forget(Forgotten(message.exceed))
            case TransferDrainedMsg():
                self._departure.drained()
            case TransferErrorMsg():
                self._refused(message)
            case _:
                worker.take(message)

    def _acknowledged(self, message: TransferRegisterAckMsg) -> None:
        first = self._enrolment.terms is None
        self._enrolment.acknowledged(message)
        if first:
            self._on_registered()

    def _refused(self, message: TransferErrorMsg) -> None:
        """See what the broker could not read. Where it is a registration, saying it again is no help."""
        if self._enrolment.terms is None:
            self._forget(error_from(message.error))
            return
        log.error("the broker dropped a message", reason=message.error.message)
        if not self._outgoing.registered:
            self._forget(Forgotten())

    def _register_again(self, worker: Worker) -> None:
        """Tell a broker that restarted what is held; computing goes on. One that still does not know is told again."""
        if self._enrolment.terms is None:
            return  # it is being said until it is acknowledged
        if not self._outgoing.registered:
            self._enrolment.remind()
            return
        registration = registration_with(self._enrolment.registration, worker.take_stock())
        if too_much(registration):
            log.warning("more is held than a registration can say; all of it is dropped")
            self._forget(Forgotten())
            return
        self._enrolment.begin(registration)
        worker.say_again()
        self._departure.say_again(self._outgoing.send)

    async def _keep_in_touch(self, worker: Worker) -> None:
        """Register, then send heartbeats at the pace the broker asks for."""
        terms = await self._enrolment.wait_first()
        loop_lag_s = 0.0
        while True:
            self._outgoing.send_now(worker.load(loop_lag_s))
            terms = self._enrolment.terms or terms
            loop_lag_s = await watch_loop(terms.heartbeat_s)

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
