"""How much processor time a cluster takes that has nothing to do."""

import asyncio
from time import monotonic

import msgspec

from triptych.broker.shell.settings import BrokerSettings
from triptych.ops.config import ClusterSettings
from triptych.ops.launcher.cluster import local_cluster
from triptych.schemas.roles import Role
from triptych.services.settings import ServiceSettings

from .processes import cpu_s

SETTLE_S = 3.0
MEASURE_S = 10.0


async def idle_cpu() -> dict[str, float]:
    """Return the share of a core that each process of an idle 1:1:1 cluster takes, with every default."""
    services = [
        msgspec.convert({"role": role, "instance_id": f"{role}-0"}, ServiceSettings)
        for role in (Role.ENCODER, Role.DENOISER, Role.DECODER)
    ]
    broker = BrokerSettings("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    async with local_cluster(ClusterSettings(broker, tuple(services)), _ignore) as cluster:
        await asyncio.sleep(SETTLE_S)
        pids, begun = cluster.pids(), monotonic()
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        await asyncio.sleep(MEASURE_S)
        seconds = monotonic() - begun
        return {name: (cpu_s(pid) - before[name]) / seconds for name, pid in pids.items()}


def _ignore(_name: str, _line: str) -> None:
    """Let the processes talk."""
