"""What a service does before it takes work."""

import asyncio
import os
from contextlib import aclosing, closing

import pytest
import torch

from tests.services.kit import one_model
from tests.services.pipelines import counting
from triptych.schemas.errors import ConfigError, RegistrationRefused
from triptych.schemas.memory import EngineName
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingLimits, SamplingParams
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferRegisterRefusedMsg,
)
from triptych.services.app import run_service, set_slots_aside
from triptych.services.compute import ComputeThread
from triptych.services.models import models_of
from triptych.services.pipelines.interface import Pipeline, StageSpec, Steps
from triptych.services.pipelines.registry import load_pipeline
from triptych.services.pipelines.stage import StageOutput
from triptych.services.settings import EngineChoice, ServiceSettings
from triptych.services.warm_up import WarmUp, warm_up
from triptych.transport.link.channels import broker_to_services
from triptych.transport.link.network import network_id
from triptych.transport.link.router import RouterLink
from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.manifests import plan

CPU = torch.device("cpu")
REFERENCE = load_pipeline("reference")


def settings(role: Role, **fields: object) -> ServiceSettings:
    name = f"{role}-test-{os.getpid()}"
    return ServiceSettings(**{"role": role, "instance_id": name, "engine": EngineChoice.SHM, **fields})


async def test_the_examples_are_like_what_is_really_sent() -> None:
    """Each stage's example lies in a slot exactly as the output of the stage before it, for any parameters."""
    params = SamplingParams("a fox", num_inference_steps=1, width=96, height=32, num_images=3)
    output = StageOutput({})
    for spec in REFERENCE.stages:
        example = spec.example(params)
        assert plan(example.tensors) == plan(output.tensors), spec.name
        with closing(ComputeThread(one_model(spec.load(CPU)), 1)) as compute:
            computed = await compute.run("model", params, output, lambda: None, lambda _: None)
        output = computed.output


async def test_a_warm_up_shows_how_large_payloads_are() -> None:
    """What one role's warm-up gives is what the next one's takes."""
    shown = []
    for role in Role:
        pipelines = {"reference": REFERENCE}
        with closing(ComputeThread(models_of(pipelines, role, CPU, in_memory=1), 1)) as compute:
            shown.append(await warm_up(pipelines, role, CPU, compute))
    encoder, denoiser, decoder = shown
    assert encoder.input_bytes == 0
    assert (denoiser.input_bytes, decoder.input_bytes) == (encoder.output_bytes, denoiser.output_bytes)
    assert min(denoiser.input_bytes, decoder.input_bytes, decoder.output_bytes) > 0


async def test_the_example_goes_to_the_device() -> None:
    """Lists, gaps and scalars of an example reach the first stage as they are."""
    seen: list[StageOutput] = []
    example = StageOutput({"x": torch.zeros(3), "list": [None, torch.ones(2)]}, {"scale": 2.0})

    def stage(_params: SamplingParams, inputs: StageOutput) -> Steps:
        seen.append(inputs)
        yield 1
        return inputs

    spec = StageSpec("s", Role.DENOISER, lambda _: stage, lambda _: example)
    with closing(ComputeThread(one_model(stage), 1)) as compute:
        shown = await warm_up({"model": Pipeline("p", SamplingLimits(), (spec,))}, Role.DENOISER, CPU, compute)
    assert (shown.input_bytes, shown.output_bytes) == (1024, 1024)
    assert (seen[0].scalar_fields, [type(value) for value in seen[0].tensors.values()]) == (
        {"scale": 2.0},
        [torch.Tensor, list],
    )


@pytest.mark.parametrize(("floor", "typical", "size"), [(0, 5000, 8192), (20_000, 5000, 32_768), (0, 0, 4096)])
async def test_receive_slots_are_as_large_as_a_typical_input(floor: int, typical: int, size: int) -> None:
    """`receive_slot_bytes` is the least they have; an encoder has none."""
    transfers = DiffusionTransferManager.open(
        instance_id=f"slots-{os.getpid()}", incarnation=1, pool_bytes=2**20, engine="shm"
    )
    async with aclosing(transfers):
        slots = set_slots_aside(settings(Role.DENOISER, receive_slot_bytes=floor), transfers, WarmUp(typical, 0, 0.0))
        assert [slot.size for slot in slots] == [size] * 4
        assert set_slots_aside(settings(Role.ENCODER), transfers, WarmUp(typical, 0, 0.0)) == ()


@pytest.mark.parametrize("typical", [2**18, 2**22], ids=["all of them", "one of them"])
async def test_receive_slots_that_do_not_fit_are_an_error_with_the_setting(typical: int) -> None:
    """It names the pool's size and what would do."""
    transfers = DiffusionTransferManager.open(
        instance_id=f"slots-{os.getpid()}", incarnation=1, pool_bytes=2**19, engine="shm"
    )
    async with aclosing(transfers):
        with pytest.raises(ConfigError, match=rf"pool_bytes is 524288.*4 receive slots of {typical} bytes"):
            set_slots_aside(settings(Role.DENOISER, pool_bytes=2**19), transfers, WarmUp(typical, 0, 0.0))


async def test_receive_slots_that_leave_no_room_for_output_are_an_error() -> None:
    """A denoiser that could never stage anything does not start; a decoder stages nothing."""
    transfers = DiffusionTransferManager.open(
        instance_id=f"slots-{os.getpid()}", incarnation=1, pool_bytes=2**14, engine="shm"
    )
    async with aclosing(transfers):
        with pytest.raises(ConfigError, match="4096 bytes of output, or fewer receive_slots"):
            set_slots_aside(settings(Role.DENOISER, pool_bytes=2**14), transfers, WarmUp(4096, 4096, 0.0))


class Broker:
    """A broker played by the test."""

    def __init__(self, link: RouterLink) -> None:
        self.link = link
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()

    async def registration(self) -> tuple[bytes, TransferRegisterMsg]:
        """Wait for a service to register as a peer that did not register before."""
        while True:
            for envelope in await self.link.receive():
                message, _ = self.link.codec.decode(envelope.frames)
                if isinstance(message, TransferRegisterMsg):
                    return envelope.peer, message

    def run(self, role: Role, **fields: object) -> "asyncio.Task[None]":
        known = settings(role, broker=self.link.endpoint, **fields)
        return asyncio.create_task(run_service(known, self.stop, self.ready.set))


def open_broker() -> RouterLink:
    return RouterLink(broker_to_services(2**20), "tcp://127.0.0.1:0", 2**20)


async def test_a_service_says_what_it_has() -> None:
    """Its registration has slots of the warmed-up size, its engines and its network; it is ready once acknowledged."""
    async with aclosing(open_broker()) as link:
        broker = Broker(link)
        service = broker.run(Role.DENOISER)
        peer, said = await broker.registration()
        assert not broker.ready.is_set()
        assert (said.network_id, said.pool.engines) == (network_id(), (EngineName.SHM,))
        assert (said.models, said.limits) == (("reference",), REFERENCE.limits)
        typical = plan(REFERENCE.stages[1].example(REFERENCE.warm_up).tensors).data_size
        assert [slot.size >= typical > slot.size // 2 for slot in said.receive_slots] == [True] * 4
        link.send_nowait(peer, TransferRegisterAckMsg(PROTOCOL_VERSION, 1.0, 5.0))
        await broker.ready.wait()
        broker.stop.set()
        await service


async def test_each_incarnation_has_a_pool_of_its_own() -> None:
    """Told that it is gone for good, it comes with another segment: nobody reads or writes what is used again."""
    async with aclosing(open_broker()) as link:
        broker = Broker(link)
        service = broker.run(Role.ENCODER)
        first_peer, first = await broker.registration()
        link.send_nowait(first_peer, TransferRegisterAgainMsg(exceed=first.incarnation))
        peer, said = first_peer, first
        while peer == first_peer:
            peer, said = await broker.registration()
        assert said.incarnation > first.incarnation
        assert said.pool.segment != first.pool.segment
        assert said.pool.segment.endswith(f"-{said.incarnation:x}")
        broker.stop.set()
        await service


@pytest.mark.parametrize("role", Role)
async def test_a_refused_registration_ends_the_service_with_the_reason(role: Role) -> None:
    """Whatever the role, what the broker said is raised as it is."""
    async with aclosing(open_broker()) as link:
        broker = Broker(link)
        service = broker.run(role)
        peer, _ = await broker.registration()
        link.send_nowait(peer, TransferRegisterRefusedMsg(RegistrationRefused("no").info()))
        with pytest.raises(RegistrationRefused, match="no"):
            await service


def test_a_first_stage_needs_no_example() -> None:
    """Its input is empty."""
    spec = StageSpec("count", Role.ENCODER, lambda _: counting)
    assert spec.example(SamplingParams("a fox")) == StageOutput({})
