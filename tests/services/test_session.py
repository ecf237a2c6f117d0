"""A service and its broker: a real ROUTER that says what the test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import pytest
import torch

from tests.services.pipelines import Gate, by_prompt, counting
from triptych.schemas.errors import MalformedMessage, VersionMismatch
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.transfer import (
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
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
    TransferWorkMsg,
    routing_id,
)
from triptych.services.compute import ComputeThread
from triptych.services.job import Parts
from triptych.services.results.data_link import ResultServer
from triptych.services.session import Forgotten, run_session
from triptych.transport.link.channels import broker_to_services
from triptych.transport.link.router import RouterLink
from triptych.transport.tensors.manager import DiffusionTransferManager

Said = TypeVar("Said", bound=ServiceMsg)
PEER = routing_id("encoder-0", 7)
ACK = TransferRegisterAckMsg(1, heartbeat_s=0.01, lease_s=1.0)
POOL_BYTES = 2**20


class Scene:
    """One session against a broker played by the test."""

    def __init__(self, link: RouterLink[ServiceMsg, BrokerMsg], parts: Parts, gate: Gate) -> None:
        self.link = link
        self.parts = parts
        self.gate = gate
        self.stop = asyncio.Event()
        self.registered = asyncio.Event()

    def start(self, drain_s: float = 10.0) -> asyncio.Task[Forgotten | None]:
        registration = TransferRegisterMsg(1, "0", "encoder-0", 7, Role.ENCODER, 2, self.parts.transfers.address)
        return asyncio.create_task(
            run_session(self.link.endpoint, registration, self.parts, self.stop, drain_s, self.registered.set)
        )

    def tell(self, message: BrokerMsg) -> None:
        self.link.send_nowait(PEER, message)

    async def hear(self, kind: type[Said]) -> Said:
        """Wait for the next `kind`, passing over all else."""
        while True:
            for envelope in await self.link.receive():
                message, _ = self.link.codec.decode(envelope.frames)
                if isinstance(message, kind):
                    return message

    async def dismiss(self) -> None:
        """Stop the service, which has nothing to do."""
        self.stop.set()
        await self.hear(TransferDrainMsg)
        self.tell(TransferDrainedMsg())

    async def register(self) -> None:
        await self.hear(TransferRegisterMsg)
        self.tell(ACK)
        await self.registered.wait()


@asynccontextmanager
async def open_scene(results: ResultServer | None = None) -> AsyncIterator[Scene]:
    gate = Gate()
    compute = ComputeThread(by_prompt({"gate": gate, "count": counting}), threads=1)
    transfers = DiffusionTransferManager.open(instance_id="encoder-0", incarnation=7, pool_bytes=POOL_BYTES)
    parts = Parts(Role.ENCODER, "encoder-0", torch.device("cpu"), transfers, compute, results)
    try:
        async with aclosing(RouterLink(broker_to_services(2**20), "tcp://127.0.0.1:0", 2**20)) as link:
            yield Scene(link, parts, gate)
        assert transfers.statistics().pool.memory.free == POOL_BYTES
    finally:
        gate.open.set()
        compute.close()
        await transfers.aclose()


async def test_it_registers_until_it_is_acknowledged_then_sends_heartbeats() -> None:
    """REGISTER is repeated; after the ACK heartbeats come at the pace it asks for."""
    async with open_scene() as scene:
        session = scene.start()
        assert await scene.hear(TransferRegisterMsg) == await scene.hear(TransferRegisterMsg)
        scene.tell(ACK)
        await scene.hear(TransferHeartbeatMsg)
        await scene.hear(TransferHeartbeatMsg)
        assert scene.registered.is_set()
        await scene.dismiss()
        assert await session is None


async def test_heartbeats_go_on_while_it_computes() -> None:
    """A stage of any length does not hold them up."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.tell(TransferWorkMsg("r1", 1, SamplingParams("gate", num_inference_steps=1)))
        await scene.hear(TransferStartedMsg)
        for _ in range(5):
            await scene.hear(TransferHeartbeatMsg)
        scene.gate.open.set()
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferReleaseMsg("r1", 1))
        await scene.dismiss()
        assert await session is None


async def test_a_refusal_ends_it_with_the_reason() -> None:
    """What the broker refused the registration with is raised."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.hear(TransferRegisterMsg)
        scene.tell(TransferRegisterRefusedMsg(VersionMismatch(2, 1).info()))
        with pytest.raises(VersionMismatch, match="speaks protocol version 2, the peer version 1"):
            await session


async def test_a_registration_that_is_no_message_ends_it_with_the_reason() -> None:
    """Saying it again would not help."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.hear(TransferRegisterMsg)
        scene.tell(TransferErrorMsg(MalformedMessage("capacity is too large").info()))
        with pytest.raises(MalformedMessage, match="capacity is too large"):
            await session


async def test_a_broker_that_does_not_know_it_ends_the_incarnation() -> None:
    """REGISTER_AGAIN drops all work, running and staged, and asks for a new incarnation."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.tell(TransferWorkMsg("staged", 1, SamplingParams("count", seed=100)))
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferWorkMsg("running", 1, SamplingParams("gate", num_inference_steps=100)))
        await scene.hear(TransferStartedMsg)
        scene.tell(TransferRegisterAgainMsg(exceed=7))
        scene.gate.open.set()
        assert await session == Forgotten(exceed=7)


async def test_stopping_drains() -> None:
    """It says so, finishes what runs, keeps what is staged until it is released, and leaves."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.tell(TransferWorkMsg("r1", 1, SamplingParams("gate", num_inference_steps=1)))
        await scene.hear(TransferStartedMsg)
        scene.stop.set()
        await scene.hear(TransferDrainMsg)
        scene.gate.open.set()
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferReleaseMsg("r1", 1))
        scene.tell(TransferDrainedMsg())
        assert (await scene.hear(TransferLeaveMsg)).reason == "drained"
        assert await session is None


async def test_work_that_was_on_its_way_when_it_drained_is_done() -> None:
    """It does not leave because it has nothing to do: the broker knows what it has sent."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.stop.set()
        await scene.hear(TransferDrainMsg)
        scene.tell(TransferWorkMsg("r1", 1, SamplingParams("count")))
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferReleaseMsg("r1", 1))
        scene.tell(TransferDrainedMsg())
        assert (await scene.hear(TransferLeaveMsg)).reason == "drained"
        assert await session is None


async def test_draining_has_a_limit() -> None:
    """Work that is not over by then is dropped, and the broker told."""
    async with open_scene() as scene:
        session = scene.start(drain_s=0.01)
        await scene.register()
        scene.tell(TransferWorkMsg("r1", 1, SamplingParams("gate", num_inference_steps=100)))
        await scene.hear(TransferStartedMsg)
        scene.stop.set()
        assert "unfinished" in (await scene.hear(TransferLeaveMsg)).reason
        scene.gate.open.set()
        assert await session is None


async def test_stopping_before_the_broker_answers_ends_at_once() -> None:
    """There is nothing to drain, and nobody to tell."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.hear(TransferRegisterMsg)
        scene.stop.set()
        assert await session is None


@pytest.mark.parametrize("frames", [[b"nonsense"], [b"__transfer__", b"\xc1"], [b"__transfer__", b"\x91" * 10_000]])
async def test_garbage_from_the_broker_is_dropped(frames: list[bytes]) -> None:
    """The next message is taken."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        with pytest.raises(MalformedMessage):
            scene.link.codec.decode(frames)
        await scene.link._socket.send_multipart([PEER, *frames])
        scene.tell(TransferErrorMsg(MalformedMessage("1 frames").info()))
        scene.tell(TransferWorkMsg("r1", 1, SamplingParams("count")))
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferReleaseMsg("r1", 1))
        await scene.dismiss()
        assert await session is None
