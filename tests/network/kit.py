"""Two hosts in miniature: network namespaces joined by one cable, and processes in either."""

import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from triptych.ops.launcher.child import Child, Sink

#: of the benchmarking range, which no real network uses
NETWORK = "198.18.77."
#: for a process to stop, in seconds
GRACE_S = 15.0


def why_not() -> str | None:
    """Return why this machine cannot have namespaces, or None where it can."""
    if shutil.which("ip") is None:
        return "needs ip, of iproute2"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    name = f"triptych-probe-{os.getpid()}"
    if _ip("netns", "add", name).returncode:
        return "this machine allows no network namespaces"
    _ip("netns", "del", name)
    return None


class Host(NamedTuple):
    """A namespace with the one address it has on the cable, beside its own loopback."""

    name: str
    cable: str
    address: str

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` on this host."""
        return ["ip", "netns", "exec", self.name, *argv]


@contextmanager
def two_hosts() -> Generator[tuple[Host, Host], None, None]:
    """Make two hosts joined by a cable; take them away afterwards, whatever happened."""
    hosts = tuple(
        Host(f"triptych-{side}-{os.getpid()}", f"tt-{side}", f"{NETWORK}{number}")
        for number, side in enumerate("ab", start=1)
    )
    try:
        for host in hosts:
            _must("netns", "add", host.name)
        ends = [("name", host.cable, "netns", host.name) for host in hosts]
        _must("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for host in hosts:
            _must("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.cable)
            for device in ("lo", host.cable):
                _must("-n", host.name, "link", "set", device, "up")
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            if Path("/run/netns", host.name).exists():
                _must("netns", "del", host.name)


@asynccontextmanager
async def processes(sink: Sink) -> AsyncGenerator["Processes"]:
    """Give what starts processes on hosts; all are gone when the context ends, the last first."""
    made = Processes(sink)
    try:
        yield made
    finally:
        await made.stop()


class Processes:
    """Processes with what they said."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._children: list[Child] = []

    async def start(self, name: str, argv: Sequence[str], host: Host, tasks) -> Child:
        """Start a process and return it; it may not be ready yet."""
        child = await Child.start(name, host.inside(argv), self._sink, tasks)
        self._children.append(child)
        return child

    async def stop(self) -> None:
        """End all of them."""
        while self._children:
            await self._children.pop().stop(GRACE_S)


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], check=False, capture_output=True, text=True)


def _must(*words: str) -> None:
    done = _ip(*words)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
