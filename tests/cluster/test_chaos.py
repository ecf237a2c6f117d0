"""Services of every role are killed and stopped at random under load; nothing is lost and nothing is left over."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from msgspec import structs

from triptych.broker.machine.settings import DispatchSettings
from triptych.client import Client, Result
from triptych.ops.config import ClusterSettings, reachable
from triptych.ops.launcher.argv import broker_argv, service_argv
from triptych.ops.launcher.child import Child
from triptych.schemas.sampling import SamplingParams
from triptych.services.settings import ServiceSettings

from .kit import BROKER, settings, twin
from .status import quiet_status

#: one that hangs for longer than its lease is lost, and its work made elsewhere
DISPATCH = DispatchSettings(heartbeat_s=0.25, lease_s=1.0, max_attempts=20, back_off_s=0.1, longest_back_off_s=0.5)
#: two of each role
SHAPE = settings(2, 2, 2)
STRIKES = 12
CLIENTS = 6


class Keeper:
    """Starts a service again whenever it ends, as systemd would."""

    def __init__(self, service: ServiceSettings, tasks: asyncio.TaskGroup, lines: list[str]) -> None:
        self._service = service
        self._tasks = tasks
        self._lines = lines
        self.child: Child | None = None
        self._ended = False

    async def keep(self) -> None:
        """Run the service until `stop`."""
        while not self._ended:
            self.child = await Child.start(
                self._service.instance_id, service_argv(self._service), self._say, self._tasks
            )
            await self.child.wait_died()

    def _say(self, name: str, line: str) -> None:
        self._lines.append(f"{name}: {line}")

    async def stop(self) -> None:
        """Stop the service for good."""
        self._ended = True
        if self.child is not None:
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGCONT)
            await self.child.stop(10.0)


async def strike(keepers: list[Keeper], random: Random) -> None:
    """Kill a service, or stop it for long enough to lose its lease and let it go on. It may have ended by itself."""
    child = random.choice(keepers).child
    if child is None:
        return
    with suppress(ProcessLookupError):
        if random.random() < 0.5:
            os.kill(child.pid, signal.SIGKILL)
        else:
            os.kill(child.pid, signal.SIGSTOP)
            await asyncio.sleep(random.choice((0.3, 2.0)))  # the time that it hangs is what is tried here
            os.kill(child.pid, signal.SIGCONT)


@asynccontextmanager
async def kept_cluster(lines: list[str]) -> AsyncGenerator[tuple[str, str, list[Keeper]]]:
    """Run a broker and services that are started again; give the clients' and the admin's endpoint."""
    async with asyncio.TaskGroup() as tasks:
        argv = broker_argv(structs.replace(BROKER, dispatch=DISPATCH))
        broker = await Child.start("broker", argv, lambda _, line: lines.append(f"broker: {line}"), tasks)
        ready = await broker.wait_ready()
        services = ClusterSettings(BROKER, SHAPE.services).services
        keepers = [
            Keeper(structs.replace(one, broker=reachable(ready.service_endpoint)), tasks, lines) for one in services
        ]
        keeping = [tasks.create_task(keeper.keep()) for keeper in keepers]
        try:
            yield ready.client_endpoint, ready.admin_endpoint, keepers
        finally:
            for keeper in keepers:
                await keeper.stop()
            await asyncio.gather(*keeping)
            await broker.stop(5.0)


@pytest.mark.timeout(300)
async def test_nothing_is_lost_while_services_are_killed_and_hang() -> None:
    """Every request is drawn, and equals its twin; in the end each instance has all its leases and slots."""
    random, lines = Random(4), list[str]()
    async with kept_cluster(lines) as (endpoint, admin_endpoint, keepers), Client(endpoint) as client:
        before = await quiet_status(admin_endpoint, len(keepers))
        over = asyncio.Event()

        async def draw_on(first_seed: int) -> int:
            drawn = 0
            while not over.is_set():
                params = SamplingParams("a fox", seed=first_seed + drawn, num_inference_steps=10)
                result = await client.generate(**structs.asdict(params), timeout_s=120.0)
                assert isinstance(result, Result)
                assert tuple(image.data for image in result.images) == twin(params)
                drawn += 1
            return drawn

        async with asyncio.TaskGroup() as tasks:
            drawing = [tasks.create_task(draw_on(1000 * number)) for number in range(CLIENTS)]
            for _ in range(STRIKES):
                await strike(keepers, random)
                await asyncio.sleep(random.uniform(0.2, 1.0))  # the pace of the strikes
            over.set()
        assert all(task.result() > 0 for task in drawing)
        assert await quiet_status(admin_endpoint, len(keepers)) == before
    assert not [line for line in lines if "met a bug" in line or "invalid_transition" in line], "\n".join(lines)
