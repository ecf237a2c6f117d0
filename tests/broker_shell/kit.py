"""A broker in the test's own loop, and real links to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from triptych.broker.machine.settings import DispatchSettings
from triptych.broker.shell.app import BrokerEndpoints, run_broker
from triptych.broker.shell.settings import BrokerSettings
from triptych.schemas.admin import AdminMsg, AdminReplyMsg
from triptych.schemas.client import ClientMsg, ClientReplyMsg
from triptych.schemas.identifiers import routing_id
from triptych.schemas.memory import PoolAddress
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    BrokerMsg,
    ServiceMsg,
    TransferRegisterAckMsg,
    TransferRegisterMsg,
)
from triptych.transport.link.channels import client_to_broker, operator_to_broker, service_to_broker
from triptych.transport.link.dealer import DealerLink

Client = DealerLink[ClientReplyMsg, ClientMsg]
Service = DealerLink[BrokerMsg, ServiceMsg]
Operator = DealerLink[AdminReplyMsg, AdminMsg]

#: on free ports, without an admin endpoint
PRIVATE = BrokerSettings(
    service_endpoint="tcp://127.0.0.1:0",
    client_endpoint="tcp://127.0.0.1:0",
    admin_endpoint="",
    dispatch=DispatchSettings(take_up_s=0.0),
)
POOL = PoolAddress("host", "segment", 2**20)
MAX_FRAME = 2**20


class RunningBroker:
    """Where a broker listens, and links to it."""

    def __init__(self, endpoints: BrokerEndpoints, stack: AsyncExitStack) -> None:
        self.endpoints = endpoints
        self._stack = stack

    async def client(self, identity: bytes = b"client-1") -> Client:
        link = DealerLink(client_to_broker(2**20), self.endpoints.clients, identity, MAX_FRAME)
        return await self._stack.enter_async_context(aclosing(link))

    async def operator(self, identity: bytes = b"operator-1") -> Operator:
        link = DealerLink(operator_to_broker(), self.endpoints.admin, identity, MAX_FRAME)
        return await self._stack.enter_async_context(aclosing(link))

    async def encoder(self, name: str = "encoder-0") -> Service:
        """Return a registered encoder."""
        link = DealerLink(service_to_broker(), self.endpoints.services, routing_id(name, 1), MAX_FRAME)
        service = await self._stack.enter_async_context(aclosing(link))
        service.send_nowait(TransferRegisterMsg(PROTOCOL_VERSION, "0", name, 1, Role.ENCODER, 1, POOL))
        answer, _ = await service.receive()
        assert isinstance(answer, TransferRegisterAckMsg)
        return service


@asynccontextmanager
async def running_broker(settings: BrokerSettings) -> AsyncIterator[RunningBroker]:
    """Run a broker for as long as the context lasts."""
    stop = asyncio.Event()
    ready: asyncio.Future[BrokerEndpoints] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_broker(settings, stop, ready.set_result))
        async with AsyncExitStack() as stack:
            yield RunningBroker(await ready, stack)
        stop.set()
