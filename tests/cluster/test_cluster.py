"""A prompt goes in, a picture comes out, through real processes."""

import asyncio
import os
import random
import signal
from contextlib import aclosing
from importlib.util import find_spec

import pytest
from msgspec import structs

from tests.cluster.kit import BROKER, gather_all, running, settings, twin
from triptych.client import Queued, Result, StageFinished, StageStarted, StepDone
from triptych.client.events import Event, Finished
from triptych.ops.launcher.argv import broker_argv
from triptych.ops.launcher.child import Child
from triptych.schemas.errors import (
    DeadlineUnreachable,
    InvalidRequest,
    RequestCancelled,
    RequestFailed,
    RequestTimedOut,
)
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.timing import TransferTiming
from triptych.services.settings import EngineChoice
from triptych.transport.tensors.shared_memory import sweep_dead_segments

pytestmark = pytest.mark.cluster

PROMPTS = ["a fox on a blue background", "a small red star", "🦊", "ثعلب على خلفية زرقاء", "qwrtzp \x00 狐狸"]


async def test_fifty_requests_at_once_equal_their_monolithic_twins() -> None:
    """Mixed prompts, steps, seeds, guidance, sizes and image counts over 2:2:2, each picture to the last bit."""
    dice = random.Random(20261201)
    requests = [
        SamplingParams(
            dice.choice(PROMPTS),
            negative_prompt=dice.choice(["", "red"]),
            seed=dice.choice([dice.getrandbits(64), 2**64 - 1]),
            num_inference_steps=dice.randint(1, 6),
            guidance_scale=dice.choice([0.0, 1.0, 4.0]),
            width=dice.choice([64, 64, 96]),
            num_images=dice.randint(1, 3),
        )
        for _ in range(50)
    ]
    async with running(settings(2, 2, 2)) as run:
        results = await gather_all(run, requests)
    for params, result in zip(requests, results, strict=True):
        assert isinstance(result, Result), result
        assert tuple(image.data for image in result.images) == twin(params), params
    used = {stage.instance_id for result in results if isinstance(result, Result) for stage in result.stages}
    assert used == {f"{role}-{index}" for role in Role for index in range(2)}
    assert sweep_dead_segments() == ()


async def test_on_one_host_nothing_moves() -> None:
    """Both hops are read in place, one pair after the other, and the picture is the twin's."""
    params = SamplingParams("a fox", num_inference_steps=2)
    async with running(settings(1, 1, 1)) as run:
        result = await run.draw(params)
    assert tuple(image.data for image in result.images) == twin(params)
    assert result.transfers == (
        TransferTiming("encoder-0", "denoiser-0", 0, 0.0, in_place=True),
        TransferTiming("denoiser-0", "decoder-0", 0, 0.0, in_place=True),
    )


@pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")
async def test_nixl_can_be_had_on_one_host() -> None:
    """Forced, it moves both payloads of every request, and each picture still equals its twin."""
    requests = [SamplingParams("a fox", seed=seed, num_inference_steps=2, num_images=2) for seed in range(8)]
    async with running(settings(1, 2, 1, engine="nixl")) as run:
        results = await gather_all(run, requests)
    for params, result in zip(requests, results, strict=True):
        assert isinstance(result, Result), result
        assert tuple(image.data for image in result.images) == twin(params)
        assert [(each.nbytes > 0, each.in_place) for each in result.transfers] == [(True, False)] * 2


@pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")
async def test_services_that_no_engine_joins_say_so() -> None:
    """The request fails at once with both engines and the setting."""
    shape = settings(1, 1, 1, engine="nixl")
    encoder = structs.replace(shape.services[0], engine=EngineChoice.SHM)
    async with running(structs.replace(shape, services=(encoder, *shape.services[1:]))) as run:
        with pytest.raises(RequestFailed, match=r"encoder-0 has shm .*denoiser-0 has nixl .*set `engine`"):
            await run.draw(SamplingParams("a fox", num_inference_steps=2))


async def test_a_request_is_told_from_beginning_to_end() -> None:
    """The stream has each event once and in order; limits, errors and cancellation come from the same broker."""
    async with running(settings(1, 1, 1)) as run:
        with pytest.raises(RequestTimedOut, match="DENOISING_RUNNING"):
            await run.client.generate("a fox", num_inference_steps=1000, timeout_s=0.5)
        stream = run.client.stream("a fox", seed=7, num_inference_steps=3)
        async with aclosing(stream) as events:
            told = [event async for event in events]
        assert [brief(event) for event in told] == [
            "queued 0",
            *("encoder starts", "encoder 1/1", "encoder ends"),
            *("denoiser starts", "denoiser 1/3", "denoiser 2/3", "denoiser 3/3", "denoiser ends"),
            *("decoder starts", "decoder 1/1", "decoder ends"),
            "finished",
        ]
        with pytest.raises(InvalidRequest, match="width is 65"):
            await run.client.generate("a fox", width=65)
        with pytest.raises(DeadlineUnreachable, match="cannot be done within"):
            await run.client.generate("a fox", num_inference_steps=1000, timeout_s=0.05)
        cancelled = asyncio.create_task(run.client.generate("a fox", request_id="r1", num_inference_steps=1000))
        survivor = asyncio.create_task(run.draw(SamplingParams("a fox", num_inference_steps=2)))
        await asyncio.sleep(0)
        run.client.cancel("r1")
        with pytest.raises(RequestCancelled):
            await cancelled
        assert tuple(image.data for image in (await survivor).images) == twin(
            SamplingParams("a fox", num_inference_steps=2)
        )


def brief(event: Event) -> str:
    """Say an event in a word or two."""
    match event:
        case Queued():
            return f"queued {event.position}"
        case StageStarted():
            return f"{event.role} starts"
        case StepDone():
            return f"{event.role} {event.step}/{event.steps}"
        case StageFinished():
            return f"{event.timing.role} ends"
        case Finished():
            return "finished"


async def test_the_death_of_a_denoiser_costs_no_request() -> None:
    """SIGKILL under load: the other one draws what it held, and every picture equals its twin."""
    requests = [SamplingParams("a fox", seed=seed, num_inference_steps=30) for seed in range(12)]
    async with running(settings(1, 2, 1)) as run:
        drawing = asyncio.create_task(gather_all(run, requests))
        async with aclosing(run.client.stream("a cat", num_inference_steps=30)) as events:
            async for event in events:
                if isinstance(event, StageStarted) and event.role is Role.DENOISER:
                    break
        os.kill(run.cluster.pids()["denoiser-0"], signal.SIGKILL)
        for params, outcome in zip(requests, await drawing, strict=True):
            assert isinstance(outcome, Result), outcome
            assert tuple(image.data for image in outcome.images) == twin(params)


async def test_a_service_told_to_stop_finishes_its_work_first() -> None:
    """SIGTERM to one of two denoisers under load: every request is drawn."""
    requests = [SamplingParams("a fox", seed=seed, num_inference_steps=30) for seed in range(8)]
    async with running(settings(1, 2, 1)) as run:
        drawing = asyncio.create_task(gather_all(run, requests))
        async with aclosing(run.client.stream("a cat", num_inference_steps=30)) as events:
            async for event in events:
                if isinstance(event, StageStarted) and event.role is Role.DENOISER:
                    break
        os.kill(run.cluster.pids()["denoiser-1"], signal.SIGTERM)
        assert all(isinstance(outcome, Result) for outcome in await drawing)
        assert (await run.cluster.wait_death()).name == "denoiser-1"


async def test_a_pool_too_small_for_all_at_once_only_makes_them_wait() -> None:
    """Outputs wait for room, slots are allocated one by one, and every picture still equals its twin."""
    requests = [SamplingParams("a fox", seed=seed, num_inference_steps=2) for seed in range(12)]
    async with running(settings(1, 1, 1, pool_bytes=128 * 2**10, receive_slots=0)) as run:
        results = await gather_all(run, requests)
    for params, result in zip(requests, results, strict=True):
        assert isinstance(result, Result), result
        assert tuple(image.data for image in result.images) == twin(params)


async def test_services_find_a_broker_that_comes_back() -> None:
    """SIGKILL for the broker, a new one on the same ports: what runs goes on, what waited is submitted again."""
    long, short = SamplingParams("a fox", num_inference_steps=300), SamplingParams("a fox", num_inference_steps=2)
    async with running(settings(1, 1, 1)) as run, asyncio.TaskGroup() as tasks:
        endpoints = run.cluster.endpoints
        async with aclosing(run.client.stream(**structs.asdict(long))) as events:
            async for event in events:
                if isinstance(event, StageStarted) and event.role is Role.DENOISER:
                    break
            waiting = asyncio.create_task(gather_all(run, [short] * 6))
            os.kill(run.cluster.pids()["broker"], signal.SIGKILL)
            assert (await run.cluster.wait_death()).name == "broker"
            again = structs.replace(
                BROKER, service_endpoint=endpoints.service_endpoint, client_endpoint=endpoints.client_endpoint
            )
            argv = broker_argv(again)
            broker = await Child.start("broker", argv, lambda *line: run.lines.append(": ".join(line)), tasks)
            await broker.wait_ready()
            rest = [event async for event in events]
        assert not [event for event in rest if isinstance(event, StageStarted) and event.role is not Role.DECODER]
        assert isinstance(rest[-1], Finished)
        assert tuple(image.data for image in rest[-1].result.images) == twin(long)
        for outcome in await waiting:
            assert isinstance(outcome, Result), outcome
            assert tuple(image.data for image in outcome.images) == twin(short)
        await broker.stop(5.0)
