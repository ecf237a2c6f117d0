"""One child process: its lines, its readiness, its end."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from ...schemas.errors import ProcessDied
from .parent import PARENT_PID
from .ready import READY_FD, ReadyLine, parse_ready

#: a longer line is dropped, in bytes
MAX_LINE_BYTES = 2**20
#: for a dead child's last lines to arrive, in seconds
LAST_LINES_S = 1.0

Sink = Callable[[str, str], None]


class Child:
    """A process in a group of its own, which the kernel ends with this one. Its lines go to a sink as they come."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ready: asyncio.StreamReader, sink: Sink) -> None:
        self.name = name
        self.stopping = False
        self._process = process
        self._ready = ready
        self._sink = sink
        self._last_line = ""
        self._pump: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, name: str, argv: Sequence[str], sink: Sink, tasks: asyncio.TaskGroup, *, colours: bool = False
    ) -> Self:
        """Start the process. The task that reads its lines belongs to `tasks`."""
        ready, write_end = await _open_pipe()
        environment = {**os.environ, READY_FD: str(write_end), PARENT_PID: str(os.getpid())}
        if colours:
            environment["FORCE_COLOR"] = "1"
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=MAX_LINE_BYTES,
                pass_fds=(write_end,),
                process_group=0,
                env=environment,
            )
        finally:
            os.close(write_end)
        child = cls(name, process, ready, sink)
        child._pump = tasks.create_task(child._pump_lines())
        return child

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def wait_ready(self) -> ReadyLine:
        """Wait until the process says that it serves. Raises `ProcessDied` where it ends before."""
        line = parse_ready(await self._ready.readline())
        return line if line is not None else await self._raise_died()

    async def wait_died(self) -> ProcessDied:
        """Wait for the end of the process, and return what can be said of it."""
        status = await self._process.wait()
        await self._wait_last_lines()
        return ProcessDied(self.name, status, self._last_line)

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and after `grace_s` seconds SIGKILL; return when the process is gone."""
        self.stopping = True
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self._sink(self.name, f"did not stop within {grace_s:g} s; killed")
            self.kill()
            await self._process.wait()
        await self._wait_last_lines()

    def kill(self) -> None:
        """Send SIGKILL to the process and all it started."""
        self.stopping = True
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _raise_died(self) -> ReadyLine:
        raise await self.wait_died()

    async def _wait_last_lines(self) -> None:
        if self._pump is not None:
            await asyncio.wait([self._pump], timeout=LAST_LINES_S)
            self._pump.cancel()

    async def _pump_lines(self) -> None:
        stream = self._process.stdout
        while stream is not None:
            try:
                line = await stream.readline()
            except ValueError:
                line = b"(a line too long to show)\n"
            if not line:
                return
            self._last_line = line.decode(errors="replace").rstrip()
            self._sink(self.name, self._last_line)


async def _open_pipe() -> tuple[asyncio.StreamReader, int]:
    """Return a reader and the descriptor to write to."""
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
    )
    return reader, write_end
