"""Child processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from triptych.ops.config import cluster_settings
from triptych.ops.launcher.child import Child
from triptych.ops.launcher.cluster import local_cluster
from triptych.ops.launcher.ready import ReadyLine
from triptych.schemas.errors import ProcessDied
from triptych.schemas.roles import Role

PREAMBLE = """
import os, signal, sys, time
from triptych.ops.launcher.parent import end_with_parent
from triptych.ops.launcher.ready import ReadyLine, report_ready
end_with_parent()
"""
PRIVATE = {"service_endpoint": "tcp://127.0.0.1:0", "client_endpoint": "tcp://127.0.0.1:0"}

Start = Callable[[str], Awaitable[Child]]


class Lines:
    """What processes said."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []
        self._waits: list[tuple[str, asyncio.Event]] = []

    def take(self, name: str, line: str) -> None:
        self.all.append((name, line))
        for text, event in self._waits:
            if text in line:
                event.set()

    async def wait_for(self, text: str) -> None:
        event = asyncio.Event()
        self._waits.append((text, event))
        if any(text in line for _, line in self.all):
            return
        await event.wait()


@pytest.fixture
def lines() -> Lines:
    """Return what the test's processes say."""
    return Lines()


@pytest.fixture
async def start(lines: Lines) -> AsyncIterator[Start]:
    """Return what starts a child that runs the given code; it is gone after the test."""
    children: list[Child] = []
    async with asyncio.TaskGroup() as tasks:

        async def start_child(code: str) -> Child:
            argv = [sys.executable, "-c", PREAMBLE + code]
            children.append(await Child.start("child", argv, lines.take, tasks))
            return children[-1]

        yield start_child
        for child in children:
            child.kill()
            await child.wait_died()


async def test_a_child_says_that_it_serves(start: Start) -> None:
    """What it tells arrives whole, and a second word is none."""
    child = await start("report_ready(ReadyLine('a', 'b')); report_ready(ReadyLine()); signal.pause()")
    assert await child.wait_ready() == ReadyLine("a", "b")


async def test_a_child_that_ends_before_it_serves_is_said_with_its_last_words(start: Start, lines: Lines) -> None:
    """Nobody waits for it in vain."""
    child = await start("print('error: no weights', file=sys.stderr); sys.exit(3)")
    with pytest.raises(ProcessDied, match="child ended with status 3; the last it said: no weights"):
        await child.wait_ready()
    assert lines.all == [("child", "error: no weights")]


async def test_a_killed_child_is_said_with_the_signal(start: Start) -> None:
    """The out-of-memory killer sends SIGKILL."""
    child = await start("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ProcessDied, match="child was killed by SIGKILL; the last it said: nothing"):
        await child.wait_ready()


async def test_stop_lets_a_child_finish(start: Start, lines: Lines) -> None:
    """SIGTERM first, and its last words are heard."""
    child = await start(
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)));"
        "report_ready(ReadyLine()); signal.pause()"
    )
    await child.wait_ready()
    await child.stop(grace_s=60)
    assert lines.all == [("child", "bye")]


async def test_stop_kills_a_child_that_does_not_listen(start: Start, lines: Lines) -> None:
    """After its grace time, with a word."""
    child = await start(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); report_ready(ReadyLine());\nwhile True: signal.pause()"
    )
    await child.wait_ready()
    await child.stop(grace_s=0.1)
    assert lines.all == [("child", "did not stop within 0.1 s; killed")]
    assert (await child.wait_died()).status == -signal.SIGKILL


async def test_stopping_a_dead_child_is_nothing(start: Start) -> None:
    """It may die at any time."""
    child = await start("")
    await child.wait_died()
    await child.stop(grace_s=60)


async def test_a_child_ends_with_its_launcher(start: Start, lines: Lines) -> None:
    """However the launcher ends: here by SIGKILL, the middle of three processes."""
    inner = PREAMBLE + "print('inner', os.getpid(), flush=True); signal.pause()"
    child = await start(
        "import subprocess; os.environ['TRIPTYCH_PARENT_PID'] = str(os.getpid());"
        f"subprocess.Popen([sys.executable, '-c', {inner!r}]); report_ready(ReadyLine()); signal.pause()"
    )
    await lines.wait_for("inner")
    pid = int(lines.all[-1][1].split()[1])
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(child.pid, signal.SIGKILL)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, gone.set)
        await gone.wait()
        asyncio.get_running_loop().remove_reader(descriptor)
    finally:
        os.close(descriptor)


async def test_a_line_that_never_ends_stops_nothing(start: Start, lines: Lines) -> None:
    """It is dropped, and the next is heard."""
    await start("print('x' * 3_000_000); print('after', flush=True); signal.pause()")
    await lines.wait_for("after")


NO_SERVICES = dict.fromkeys(Role, 0)


async def test_a_cluster_starts_and_leaves_no_process(lines: Lines) -> None:
    """A broker alone, on ports of its own choice."""
    async with local_cluster(cluster_settings({}, NO_SERVICES, PRIVATE), lines.take) as cluster:
        assert cluster.endpoints.client_endpoint.startswith("tcp://127.0.0.1:")
        assert not cluster.endpoints.client_endpoint.endswith(":0")
        pids = [child.pid for child in cluster._children()]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_service_that_cannot_start_ends_the_cluster_with_its_reason(lines: Lines) -> None:
    """And the broker with it."""
    document = {"decoder": {"device": "abacus"}}
    counts = {Role.ENCODER: 0, Role.DENOISER: 0, Role.DECODER: 1}
    why = "decoder-0 ended with status 2; the last it said: device is 'abacus'"
    with pytest.RaisesGroup(pytest.RaisesExc(ProcessDied, match=why), flatten_subgroups=True):
        async with local_cluster(cluster_settings(document, counts, PRIVATE), lines.take):
            pass


async def test_a_broker_that_dies_is_told(lines: Lines) -> None:
    """While the cluster runs."""
    async with local_cluster(cluster_settings({}, NO_SERVICES, PRIVATE), lines.take) as cluster:
        with suppress(ProcessLookupError):
            os.kill(cluster._children()[0].pid, signal.SIGKILL)
        assert (await cluster.wait_death()).name == "broker"


async def test_a_cancelled_cluster_stops_too(lines: Lines) -> None:
    """Ctrl-C at any moment: here right after the first process was started."""
    running = asyncio.create_task(_run_for_ever(lines))
    await lines.wait_for("starts")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def _run_for_ever(lines: Lines) -> None:
    async with local_cluster(cluster_settings({}, NO_SERVICES, PRIVATE), lines.take):
        await asyncio.get_running_loop().create_future()
