"""A broker and its services on this host."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from msgspec import structs

from ...schemas.errors import ProcessDied
from ...schemas.roles import Role
from ...services.settings import ServiceSettings
from ...transport.tensors.shared_memory import sweep_dead_segments
from ..config import ClusterSettings, reachable
from .argv import broker_argv, service_argv
from .child import Child, Sink
from .ready import ReadyLine

#: for a broker to stop, and for a service beyond its own drain time, in seconds
GRACE_S = 5.0


class LocalCluster:
    """The processes of a cluster. Made by `local_cluster`."""

    def __init__(self, settings: ClusterSettings, sink: Sink, tasks: asyncio.TaskGroup, *, colours: bool) -> None:
        self.endpoints = ReadyLine()
        self._settings = settings
        self._sink = sink
        self._tasks = tasks
        self._colours = colours
        self._broker: Child | None = None
        self._services: list[tuple[ServiceSettings, Child]] = []
        self._deaths: asyncio.Queue[ProcessDied] = asyncio.Queue()
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the broker, then the services side by side. Raises `ProcessDied` where one does not come up."""
        self._broker = await self._start("broker", broker_argv(self._settings.broker))
        self.endpoints = await self._broker.wait_ready()
        service_endpoint = reachable(self.endpoints.service_endpoint)
        for settings in self._settings.services:
            own = structs.replace(settings, broker=service_endpoint)
            child = await self._start(settings.instance_id, service_argv(own))
            self._services.append((own, child))
        async with asyncio.TaskGroup() as waits:
            broker_death = waits.create_task(_raise_death(self._broker))
            readies = [waits.create_task(child.wait_ready()) for _, child in self._services]
            if readies:
                await asyncio.wait(readies)
            broker_death.cancel()
        self._watches = [self._tasks.create_task(self._watch(child)) for child in self._children()]

    def pids(self) -> dict[str, int]:
        """Return the process id of each process by its name."""
        return {child.name: child.pid for child in self._children()}

    async def wait_death(self) -> ProcessDied:
        """Wait until a process ends by itself."""
        return await self._deaths.get()

    async def stop(self, *, drain: bool) -> None:
        """Stop the services, then the broker. Cancelled, kill them all instead, and still wait for their end.

        To `drain`, the roles stop one after another, so that what runs still finds the next role.
        """
        for watch in self._watches:
            watch.cancel()
        try:
            for roles in [{role} for role in Role] if drain else [set(Role)]:
                async with asyncio.TaskGroup() as stops:
                    for settings, child in self._services:
                        if settings.role in roles:
                            stops.create_task(child.stop(settings.drain_s + GRACE_S))
            if self._broker is not None:
                await self._broker.stop(GRACE_S)
        except asyncio.CancelledError:
            for child in self._children():
                child.kill()
            for child in self._children():
                await child.wait_died()
            raise
        finally:
            sweep_dead_segments()

    def _children(self) -> list[Child]:
        services = [child for _, child in self._services]
        return services if self._broker is None else [self._broker, *services]

    async def _start(self, name: str, argv: list[str]) -> Child:
        self._sink(name, "starts")
        argv = [*argv, "--log-format=console"]
        return await Child.start(name, argv, self._sink, self._tasks, colours=self._colours)

    async def _watch(self, child: Child) -> None:
        self._deaths.put_nowait(await child.wait_died())


async def _raise_death(child: Child) -> None:
    raise await child.wait_died()


@asynccontextmanager
async def local_cluster(
    settings: ClusterSettings, sink: Sink, *, colours: bool = False, drain: bool = False
) -> AsyncGenerator[LocalCluster, None]:
    """Run the cluster for as long as the context lasts; `sink` gets each line with the name of who said it.

    With `drain`, what runs in the end may finish.
    """
    async with asyncio.TaskGroup() as tasks:
        cluster = LocalCluster(settings, sink, tasks, colours=colours)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.stop(drain=drain)
