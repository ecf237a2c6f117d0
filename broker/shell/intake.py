"""What comes in on the sockets: decoded and fed to the machine, or dropped with a word to whoever sent it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ...schemas.client import ClientMsg, ClientReplyMsg, ErrorMsg
from ...schemas.errors import MalformedMessage, PeerUnreachable
from ...schemas.transfer import BrokerMsg, ServiceMsg, TransferErrorMsg
from ...transport.link.codec import Out
from ...transport.link.router import Envelope, RouterLink
from ..machine.events import ClientSpoke, Event, ServiceSpoke
from .driver import Driver
from .reports import report_bug, report_malformed


async def take_services(link: RouterLink[ServiceMsg, BrokerMsg], driver: Driver) -> None:
    """Feed what services send, until cancelled."""
    while True:
        driver.feed(*heard(await link.receive(), partial(_from_service, link, driver)))
        await asyncio.sleep(0)  # a batch a turn: the other socket and the timer get theirs


async def take_clients(link: RouterLink[ClientMsg, ClientReplyMsg], driver: Driver) -> None:
    """Feed what clients send, until cancelled."""
    while True:
        driver.feed(*heard(await link.receive(), partial(_from_client, link, driver)))
        await asyncio.sleep(0)


def heard(envelopes: Sequence[Envelope], decode: Callable[[Envelope], Event | None]) -> Iterator[Event]:
    """Return what was said, without what was no message. A bug costs the message that met it, and not the broker."""
    for envelope in envelopes:
        try:
            event = decode(envelope)
        except Exception as error:  # noqa: BLE001  (the outermost loop: logged with its traceback)
            report_bug(envelope, error)
        else:
            if event is not None:
                yield event


def _from_service(link: RouterLink[ServiceMsg, BrokerMsg], driver: Driver, envelope: Envelope) -> ServiceSpoke | None:
    try:
        message, attachments = link.codec.decode(envelope.frames)
    except MalformedMessage as error:
        _drop(link, driver, envelope.peer, error, TransferErrorMsg(error.info()))
        return None
    driver.counts.received += 1
    return ServiceSpoke(envelope.peer, message, attachments)


def _from_client(link: RouterLink[ClientMsg, ClientReplyMsg], driver: Driver, envelope: Envelope) -> ClientSpoke | None:
    try:
        message, _ = link.codec.decode(envelope.frames)
    except MalformedMessage as error:
        request_id = link.codec.request_id_of(envelope.frames)
        _drop(link, driver, envelope.peer, error, ErrorMsg(error.info(), request_id))
        return None
    driver.counts.received += 1
    return ClientSpoke(envelope.peer, message)


def _drop(link: RouterLink[Any, Out], driver: Driver, peer: bytes, error: MalformedMessage, answer: Out) -> None:
    driver.counts.malformed += 1
    report_malformed(peer, error.reason)
    try:
        link.send_nowait(peer, answer)
    except PeerUnreachable as unreachable:
        report_malformed(peer, unreachable.reason)
