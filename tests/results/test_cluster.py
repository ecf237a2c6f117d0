"""Large results through real processes."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from bench.pipelines import LARGE_PROMPT, VIDEO_BYTES
from tests.cluster.kit import Run, gather_all, running, settings, twin
from triptych.client import Client, Fetching, Finished, Result
from triptych.client.fetch import FetchSettings, Pace
from triptych.ops.config import ClusterSettings
from triptych.schemas.errors import ResultGone
from triptych.schemas.sampling import SamplingParams

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
#: as if no service could be reached
BROKER_ALONE = FetchSettings(direct=Pace(2**20, 1, first_s=0.0, next_s=0.0))
#: asks for so little at a time that a video takes seconds, and gives a silent service up soon
IMPATIENT = FetchSettings(direct=Pace(2**12, 1, first_s=1.0, next_s=0.5))


def every_result_is_large() -> ClusterSettings:
    shape = settings(1, 1, 1)
    return structs.replace(shape, services=tuple(structs.replace(one, inline_result_bytes=0) for one in shape.services))


@asynccontextmanager
async def videos(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Run]:
    """Run a cluster whose results are as large as a decoded video."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shape = settings(1, 1, 1)
    services = tuple(structs.replace(one, pipeline="bench.pipelines:RAW_VIDEO") for one in shape.services)
    async with running(structs.replace(shape, services=services)) as run:
        yield run


async def test_results_fetched_from_the_service_equal_their_twins() -> None:
    """Many at once over the data link, each picture to the last bit."""
    requests = [SamplingParams("a fox", seed=seed, num_inference_steps=2, num_images=2) for seed in range(8)]
    async with running(every_result_is_large()) as run:
        for params, result in zip(requests, await gather_all(run, requests), strict=True):
            assert isinstance(result, Result), result
            assert tuple(image.data for image in result.images) == twin(params)


async def test_results_fetched_through_the_broker_equal_their_twins() -> None:
    """A client that reaches nobody but the broker gets the same."""
    requests = [SamplingParams("a fox", seed=seed, num_inference_steps=2, num_images=2) for seed in range(8)]
    async with running(every_result_is_large()) as run:
        async with Client(run.client.endpoint, fetch_settings=BROKER_ALONE) as client:
            results = await gather_all(Run(run.cluster, client, run.lines), requests)
        for params, result in zip(requests, results, strict=True):
            assert isinstance(result, Result), result
            assert tuple(image.data for image in result.images) == twin(params)


async def test_a_video_through_the_broker_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is relayed, small results come in between."""
    async with videos(monkeypatch) as run, Client(run.client.endpoint, fetch_settings=BROKER_ALONE) as client:
        async with aclosing(client.stream(LARGE_PROMPT)) as events:
            async for event in events:
                if isinstance(event, Fetching):
                    break
            small = asyncio.create_task(run.client.generate("small"))
            last = [event async for event in events]
        assert isinstance(last[-1], Finished)
        assert len(last[-1].result.images[0].data) == VIDEO_BYTES
        assert len((await small).images[0].data) < VIDEO_BYTES


async def test_a_service_that_dies_takes_its_results_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL while its result is fetched: the caller learns that it is gone, and with whom."""
    async with videos(monkeypatch) as run, Client(run.client.endpoint, fetch_settings=IMPATIENT) as client:
        async with aclosing(client.stream(LARGE_PROMPT)) as events:
            async for event in events:
                if isinstance(event, Fetching):
                    break
            os.kill(run.cluster.pids()["decoder-0"], signal.SIGKILL)
            with pytest.raises(ResultGone, match="decoder-0"):
                [event async for event in events]
        assert (await run.cluster.wait_death()).name == "decoder-0"


async def test_a_service_told_to_stop_waits_until_its_results_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM while its result is fetched: all of it arrives, and then the service ends."""
    async with videos(monkeypatch) as run:
        async with aclosing(run.client.stream(LARGE_PROMPT)) as events:
            async for event in events:
                if isinstance(event, Fetching):
                    break
            os.kill(run.cluster.pids()["decoder-0"], signal.SIGTERM)
            last = [event async for event in events][-1]
        assert isinstance(last, Finished)
        assert len(last.result.images[0].data) == VIDEO_BYTES
        death = await run.cluster.wait_death()
        assert (death.name, death.status) == ("decoder-0", 0)
    assert not [line for line in run.lines if "unfinished" in line]
