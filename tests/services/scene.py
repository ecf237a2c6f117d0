"""A whole session against a broker that the test plays, over a real ROUTER."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import torch

from tests.services.kit import one_model
from tests.services.pipelines import Gate, by_prompt, counting, failing, picture
from triptych.schemas.identifiers import routing_id
from triptych.schemas.memory import Slot
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    BrokerMsg,
    ServiceMsg,
    TransferDrainedMsg,
    TransferDrainMsg,
    TransferHeartbeatMsg,
    TransferLeaveMsg,
    TransferProgressMsg,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
)
from triptych.services.compute import ComputeThread
from triptych.services.incarnations import Forgotten
from triptych.services.job import Parts
from triptych.services.results.data_link import ResultServer
from triptych.services.session import run_session
from triptych.transport.link.channels import broker_to_services
from triptych.transport.link.router import RouterLink
from triptych.transport.tensors.manager import DiffusionTransferManager

Said = TypeVar("Said", bound=ServiceMsg)
PEER = routing_id("service-0", 7)
POOL_BYTES = 2**20
#: heartbeats come often; a broker that the test plays need not answer them
ACK = TransferRegisterAckMsg(PROTOCOL_VERSION, heartbeat_s=0.01, lease_s=60.0)


class Scene:
    """One session against a broker played by the test."""

    def __init__(
        self, link: RouterLink[ServiceMsg, BrokerMsg], parts: Parts, gate: Gate, slots: tuple[Slot, ...]
    ) -> None:
        self.link = link
        self.parts = parts
        self.gate = gate
        self.slots = slots
        self.stop = asyncio.Event()
        self.registered = asyncio.Event()
        #: attachments of the last message heard
        self.attachments: tuple[bytes, ...] = ()
        self._heard: list[tuple[ServiceMsg, tuple[bytes, ...]]] = []

    def start(self, drain_s: float = 10.0) -> asyncio.Task[Forgotten | None]:
        address = self.parts.transfers.address
        registration = TransferRegisterMsg(
            PROTOCOL_VERSION, "0", "service-0", 7, self.parts.role, 2, address, self.slots
        )
        return asyncio.create_task(
            run_session(self.link.endpoint, registration, self.parts, self.stop, drain_s, self.registered.set)
        )

    def tell(self, message: BrokerMsg) -> None:
        self.link.send_nowait(PEER, message)

    async def hear(self, kind: type[Said]) -> Said:
        """Wait for the next `kind`, passing over all else."""
        while True:
            message = await self._next()
            if isinstance(message, kind):
                return message

    async def hear_next(self) -> ServiceMsg:
        """Wait for the next message, passing over heartbeats and progress."""
        while True:
            message = await self._next()
            if not isinstance(message, TransferHeartbeatMsg | TransferProgressMsg):
                return message

    async def _next(self) -> ServiceMsg:
        while not self._heard:
            for envelope in await self.link.receive():
                message, attachments = self.link.codec.decode(envelope.frames)
                self._heard.append((message, tuple(map(bytes, attachments))))
        message, self.attachments = self._heard.pop(0)
        return message

    async def register(self, terms: TransferRegisterAckMsg = ACK) -> None:
        await self.hear(TransferRegisterMsg)
        self.tell(terms)
        await self.registered.wait()

    async def restart(self) -> TransferRegisterMsg:
        """Be a broker that has restarted: return what the service registers with. It is not acknowledged yet."""
        self.tell(TransferRegisterAgainMsg())
        return await self.hear(TransferRegisterMsg)

    async def quiet(self) -> list[ServiceMsg]:
        """Return all that is said, but heartbeats, until a whole heartbeat has gone by without any of it."""
        said: list[ServiceMsg] = []
        while True:
            quiet = True
            for _ in range(2):
                while not isinstance(message := await self._next(), TransferHeartbeatMsg):
                    said.append(message)
                    quiet = False
            if quiet:
                return said

    async def leave(self, session: asyncio.Task[Forgotten | None]) -> None:
        """Have the service stop, as a broker that needs nothing of it."""
        self.stop.set()
        await self.hear(TransferDrainMsg)
        self.tell(TransferDrainedMsg())
        assert (await self.hear(TransferLeaveMsg)).reason == "drained"
        assert await session is None


@asynccontextmanager
async def open_scene(
    role: Role = Role.ENCODER, results: ResultServer | None = None, receive_slots: int = 0
) -> AsyncIterator[Scene]:
    """Open a scene, and check that its session leaves nothing in the pool but its receive slots."""
    gate = Gate()
    stage = by_prompt({"gate": gate, "count": counting, "fail": failing, "picture": picture})
    compute = ComputeThread(one_model(stage), threads=1)
    name = f"service-{os.getpid()}"  # segments are named after it, and other runs may be under way
    transfers = DiffusionTransferManager.open(instance_id=name, incarnation=7, pool_bytes=POOL_BYTES)
    parts = Parts(role, "service-0", torch.device("cpu"), transfers, compute, results)
    slots = transfers.register_prealloc_as_receive(receive_slots, 4096)
    try:
        async with aclosing(RouterLink(broker_to_services(2**20), "tcp://127.0.0.1:0", 2**20)) as link:
            yield Scene(link, parts, gate, slots)
        assert transfers.statistics().pool.memory.free == POOL_BYTES - 4096 * receive_slots
    finally:
        gate.open.set()
        compute.close()
        await transfers.aclose()
