"""Whole clusters of real processes, and what their pictures must equal."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache

import msgspec
import torch

from triptych.broker.machine.settings import DispatchSettings
from triptych.broker.shell.settings import BrokerSettings
from triptych.client import Client, Result
from triptych.ops.config import ClusterSettings
from triptych.ops.launcher.cluster import LocalCluster, local_cluster
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.services.media import encode_images
from triptych.services.pipelines.monolithic import MonolithicPipeline
from triptych.services.pipelines.registry import load_pipeline
from triptych.services.settings import ServiceSettings

BROKER = BrokerSettings(
    service_endpoint="tcp://127.0.0.1:0",
    client_endpoint="tcp://127.0.0.1:0",
    dispatch=DispatchSettings(heartbeat_s=0.25, lease_s=2.0),
)


def settings(encoders: int, denoisers: int, decoders: int, **options: float | str) -> ClusterSettings:
    """Return a cluster's settings; `options` are every service's."""
    counts = {Role.ENCODER: encoders, Role.DENOISER: denoisers, Role.DECODER: decoders}
    services = [
        msgspec.convert({"role": role, "instance_id": f"{role}-{index}", **options}, ServiceSettings)
        for role, count in counts.items()
        for index in range(count)
    ]
    return ClusterSettings(BROKER, tuple(services))


class Run:
    """A running cluster, a client of it, and all that its processes said."""

    def __init__(self, cluster: LocalCluster, client: Client, lines: list[str]) -> None:
        self.cluster = cluster
        self.client = client
        self.lines = lines

    async def draw(self, params: SamplingParams) -> Result:
        """Ask for `params`."""
        return await self.client.generate(**msgspec.structs.asdict(params))


@asynccontextmanager
async def running(shape: ClusterSettings) -> AsyncGenerator[Run]:
    """Run a cluster and a client; afterwards nobody may have printed a traceback."""
    lines: list[str] = []
    async with (
        local_cluster(shape, lambda name, line: lines.append(f"{name}: {line}")) as cluster,
        Client(cluster.endpoints.client_endpoint) as client,
    ):
        yield Run(cluster, client, lines)
    assert not [line for line in lines if "Traceback" in line], "\n".join(lines)


@cache
def _pipeline() -> MonolithicPipeline:
    torch.set_num_threads(1)
    return MonolithicPipeline(load_pipeline("reference"), torch.device("cpu"))


def twin(params: SamplingParams) -> tuple[bytes, ...]:
    """Return the picture files that the same pipeline gives in this one process."""
    images = _pipeline().generate(params).tensors["images"]
    assert isinstance(images, torch.Tensor)
    return encode_images(images, params.seed)[1]


async def gather_all(run: Run, requests: list[SamplingParams]) -> list[Result | BaseException]:
    """Ask for all of them at once and return what became of each."""
    return await asyncio.gather(*map(run.draw, requests), return_exceptions=True)
