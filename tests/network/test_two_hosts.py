import asyncio

import msgspec
import pytest

from triptych.broker.machine.settings import DispatchSettings
from triptych.broker.shell.settings import BrokerSettings
from triptych.ops.launcher.argv import TRIPTYCH, broker_argv, service_argv
from triptych.schemas.errors import ProcessDied
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.services.settings import EngineChoice, ServiceSettings
from triptych.transport.tensors.engines.nixl_agent import nixl_installed

from ..cluster.kit import twin
from .kit import processes, two_hosts, why_not

REASON = why_not() or (None if nixl_installed() else "needs nixl")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

PARAMS = SamplingParams(prompt="a red circle", seed=11, num_inference_steps=4)


@pytest.fixture
def hosts(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")  # these hosts share a memory that real ones do not
    with two_hosts() as made:
        yield made


def broker_on(host):
    dispatch = DispatchSettings(heartbeat_s=0.25, lease_s=2.0)
    return BrokerSettings(f"tcp://{host.address}:7700", f"tcp://{host.address}:7701", dispatch=dispatch)


def service(role, broker, **options):
    options = {"role": role, "instance_id": f"{role}-0", "broker": broker.service_endpoint, **options}
    return msgspec.convert(options, ServiceSettings)


async def draw(host, broker, tmp_path):
    """Draw the picture from a client on that host, and return its file."""
    picture = tmp_path / "picture.png"
    words = ["generate", PARAMS.prompt, "-o", str(picture), "--broker", broker.client_endpoint]
    words += [f"--seed={PARAMS.seed}", f"--steps={PARAMS.num_inference_steps}", "--timeout=60"]
    client = await asyncio.create_subprocess_exec(*host.inside([*TRIPTYCH, *words]))
    assert await client.wait() == 0
    return picture.read_bytes()


async def test_picture_drawn_on_two_hosts_equals_its_twin(hosts, tmp_path):
    """Broker and encoder on one host, denoiser and decoder on the other: the picture is that of a single process."""
    one, other = hosts
    lines = []
    broker = broker_on(one)
    async with asyncio.TaskGroup() as tasks, processes(lambda name, line: lines.append(f"{name}: {line}")) as running:
        await (await running.start("broker", broker_argv(broker), one, tasks)).wait_ready()
        places = {Role.ENCODER: one, Role.DENOISER: other, Role.DECODER: other}
        services = [
            await running.start(role, service_argv(service(role, broker, engine=EngineChoice.NIXL)), host, tasks)
            for role, host in places.items()
        ]
        await asyncio.gather(*(child.wait_ready() for child in services))
        for host in (one, other):
            assert await draw(host, broker, tmp_path) == twin(PARAMS)[0]
    assert not [line for line in lines if "Traceback" in line], "\n".join(lines)


async def test_loopback_is_no_address_for_another_host(hosts):
    """A decoder that would have clients fetch from its own loopback is refused, with the reason, by a remote broker."""
    one, other = hosts
    lines = []
    broker = broker_on(one)
    async with asyncio.TaskGroup() as tasks, processes(lambda name, line: lines.append(f"{name}: {line}")) as running:
        await (await running.start("broker", broker_argv(broker), one, tasks)).wait_ready()
        wrong = service(Role.DECODER, broker, data_host="127.0.0.1")
        decoder = await running.start("decoder", service_argv(wrong), other, tasks)
        with pytest.raises(ProcessDied, match="is reached from its own host alone"):
            await decoder.wait_ready()
