"""What comes in on the sockets: decoded and fed to the machine, or dropped with a word to whoever sent it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ...schemas.client import ClientMsg, ClientReplyMsg, ErrorMsg
from ...schemas.errors import MalformedMessage, PeerUnreachable
from ...schemas.transfer import BrokerMsg, ServiceMsg, TransferErrorMsg
from ...transport.link.codec import Out
from ...transport.link.router import Envelope, RouterLink
from ..machine.events import ClientSpoke, ServiceSpoke
from .driver import Driver
from .reports import log, printable, report_malformed


async def take_services(link: RouterLink[ServiceMsg, BrokerMsg], driver: Driver) -> None:
    """Feed what services send, until cancelled."""
    while True:
        for envelope in await link.receive():
            with _contained(envelope.peer):
                _take_service(link, driver, envelope)
        await asyncio.sleep(0)  # a batch a turn: the other socket and the timer get theirs


async def take_clients(link: RouterLink[ClientMsg, ClientReplyMsg], driver: Driver) -> None:
    """Feed what clients send, until cancelled."""
    while True:
        for envelope in await link.receive():
            with _contained(envelope.peer):
                _take_client(link, driver, envelope)
        await asyncio.sleep(0)


@contextmanager
def _contained(peer: bytes) -> Generator[None]:
    """Let a bug cost the message that met it, and not the broker."""
    try:
        yield
    except Exception:  # noqa: BLE001  (the outermost loop: logged with its traceback)
        log.exception("message met a bug", peer=printable(peer))


def _take_service(link: RouterLink[ServiceMsg, BrokerMsg], driver: Driver, envelope: Envelope) -> None:
    try:
        message, attachments = link.codec.decode(envelope.frames)
    except MalformedMessage as error:
        _drop(link, envelope.peer, error, TransferErrorMsg(error.info()))
    else:
        driver.feed(ServiceSpoke(envelope.peer, message, attachments))


def _take_client(link: RouterLink[ClientMsg, ClientReplyMsg], driver: Driver, envelope: Envelope) -> None:
    try:
        message, _ = link.codec.decode(envelope.frames)
    except MalformedMessage as error:
        request_id = link.codec.request_id_of(envelope.frames)
        _drop(link, envelope.peer, error, ErrorMsg(error.info(), request_id))
    else:
        driver.feed(ClientSpoke(envelope.peer, message))


def _drop(link: RouterLink[Any, Out], peer: bytes, error: MalformedMessage, answer: Out) -> None:
    report_malformed(peer, error.reason)
    try:
        link.send_nowait(peer, answer)
    except PeerUnreachable as unreachable:
        report_malformed(peer, unreachable.reason)
