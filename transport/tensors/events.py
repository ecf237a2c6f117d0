"""An event on a stream of copies, awaitable from asyncio."""

from asyncio import AbstractEventLoop, CancelledError, Future, get_running_loop
from collections.abc import Callable, Generator
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Generic, Literal, TypeVar

T = TypeVar("T")


class StreamEvent(Generic[T]):
    """Passes once, when its job and all before it are complete on the device. Awaited, it gives what its job returned.

    Any number of tasks of the loop it was made on may await it, at any time; cancelling one of them changes neither the
    job nor the event. What its job raised is raised to those who await it.
    """

    def __init__(self) -> None:
        self._loop: AbstractEventLoop = get_running_loop()
        self._waiters: list[Future[None]] = []
        self._value: T
        self._error: BaseException | None = None
        self._passed = False
        #: `time.perf_counter()` when the job began, on the host, and when the event passed
        self.started_s: float | None = None
        self.finished_s: float | None = None

    def passed(self) -> bool:
        """Return whether everything up to this event is complete."""
        return self._passed

    @property
    def duration_s(self) -> float:
        """Return the seconds from the start of the job until the event passed, 0 before that."""
        if self.started_s is None or self.finished_s is None:
            return 0.0
        return self.finished_s - self.started_s

    async def wait_passed(self) -> None:
        """Wait for the event, whatever came of its job."""
        if not self._passed:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    async def wait(self) -> T:
        """Wait for the event; return what its job returned, or raise what it raised."""
        if not self._passed:
            await self.wait_passed()
        return self._outcome()

    def __await__(self) -> Generator[object, None, T]:
        return self.wait().__await__()

    async def settle(self) -> T:
        """Wait like `wait`, but raise a cancellation only after the event passed: by then nothing touches memory."""
        if not self._passed:
            try:
                await self.wait_passed()
            except CancelledError:
                await self.wait_quiet()
                raise
        return self._outcome()

    async def wait_quiet(self) -> None:
        """Wait for the event and let no cancellation cut that short."""
        while not self._passed:
            with suppress(CancelledError):
                await self.wait_passed()

    def run(self, job: Callable[[], T]) -> None:
        """Run the job and keep what comes of it. Only a stream calls this, once."""
        self.started_s = perf_counter()
        outcome = _Outcome()
        with outcome:
            self._value = job()
        self._error = outcome.error

    def fail(self, error: BaseException) -> None:
        """Keep an error that the device reported after the job had run. Only a stream calls this."""
        self._error = self._error or error

    def finish(self) -> None:
        """Let the event pass. Only a stream calls this, once, from any thread."""
        self.finished_s = perf_counter()
        self._passed = True

    def wake(self) -> None:
        """Wake those who await the event. Only a stream calls this, after `finish`, on the loop's thread."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value

    def wake_from_thread(self) -> None:
        """Have the loop wake those who await the event."""
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(self.wake)


class _Outcome:
    """Takes whatever a job raises, to raise it where the job is awaited."""

    error: BaseException | None = None

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[True]:
        self.error = error
        return True
