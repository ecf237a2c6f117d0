"""An operator's link to a broker."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from ..broker.shell.admin_endpoint import AUTO, admin_folder, running_brokers
from ..schemas.admin import (
    AdminCancelMsg,
    AdminDoneMsg,
    AdminDrainMsg,
    AdminErrorMsg,
    AdminInstanceMsg,
    AdminInstanceReplyMsg,
    AdminMsg,
    AdminReplyMsg,
    AdminResumeMsg,
    AdminStatusMsg,
    AdminStatusReplyMsg,
    AdminStoryMsg,
    AdminStoryReplyMsg,
)
from ..schemas.errors import BrokerUnreachable, ConfigError, MalformedMessage, error_from
from ..schemas.status import InstanceStatus
from ..transport.link.channels import MAX_ADMIN_REPLY_BYTES, operator_to_broker
from ..transport.link.dealer import DealerLink
from ..transport.link.ipc import listens, socket_path

Reply = TypeVar("Reply", bound=AdminReplyMsg)

#: the option that names the endpoint
FLAG = "--endpoint"
#: for the broker to answer; it does so at once unless it is not there, or overloaded
ANSWER_S = 5.0


class AdminLink:
    """Asks one question at a time, and raises the error where that is the answer. Made by `admin_link`."""

    def __init__(self, link: DealerLink[AdminReplyMsg, AdminMsg], endpoint: str) -> None:
        self._link = link
        self._endpoint = endpoint

    async def status(self) -> AdminStatusReplyMsg:
        """Return all there is to see."""
        return await self._ask(AdminStatusMsg(), AdminStatusReplyMsg)

    async def instance(self, instance_id: str) -> InstanceStatus:
        """Return how one instance is."""
        return (await self._ask(AdminInstanceMsg(instance_id), AdminInstanceReplyMsg)).instance

    async def story(self, request_id: str) -> AdminStoryReplyMsg:
        """Return what happened to a request."""
        return await self._ask(AdminStoryMsg(request_id), AdminStoryReplyMsg)

    async def order(self, msg: AdminDrainMsg | AdminResumeMsg | AdminCancelMsg) -> str:
        """Have something done, and return what was done."""
        return (await self._ask(msg, AdminDoneMsg)).what

    async def _ask(self, msg: AdminMsg, kind: type[Reply]) -> Reply:
        self._link.send_nowait(msg)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer, _ = await self._link.receive()
        except TimeoutError:
            raise BrokerUnreachable(self._endpoint, ANSWER_S) from None
        if isinstance(answer, AdminErrorMsg):
            raise error_from(answer.error)
        if not isinstance(answer, kind):
            raise MalformedMessage(f"{type(answer).__name__} in answer to {type(msg).__name__}")
        return answer


@asynccontextmanager
async def admin_link(endpoint: str) -> AsyncGenerator[AdminLink]:
    """Connect to the broker at `endpoint`; "auto" is the one that this user runs here.

    Raises `BrokerUnreachable` where it can be told at once that there is none, and `ConfigError` where it could be
    one of several, or another user's.
    """
    found = find_broker(endpoint)
    identity = f"operator-{secrets.token_hex(8)}".encode()
    try:
        link = DealerLink(operator_to_broker(), found, identity, MAX_ADMIN_REPLY_BYTES)
    except ConfigError as error:
        raise ConfigError(FLAG, endpoint, error.allowed) from error
    async with aclosing(link):
        yield AdminLink(link, found)


def find_broker(endpoint: str) -> str:
    """Return where to connect."""
    if endpoint == AUTO:
        return _only_one(running_brokers())
    path = socket_path(endpoint)
    if path is not None:
        try:
            alive = listens(path)
        except OSError as error:
            allowed = f"that of a broker of your own ({error.strerror or error})"
            raise ConfigError(FLAG, endpoint, allowed) from error
        if not alive:
            raise BrokerUnreachable(endpoint, 0.0)
    return endpoint


def _only_one(running: list[str]) -> str:
    if not running:
        raise BrokerUnreachable(f"ipc://{admin_folder()}/…", 0.0)
    if len(running) > 1:
        raise ConfigError(FLAG, AUTO, f"one of those that run here: {', '.join(running)}")
    return running[0]
