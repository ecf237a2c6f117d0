"""The jobs that run on a service, and how each comes to its end."""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

import structlog

from ..schemas.errors import ErrorInfo, RequestTimedOut, TriptychError
from ..schemas.holdings import HeldJob
from ..schemas.memory import Slot
from ..schemas.roles import Role
from ..schemas.states import RequestState
from ..schemas.transfer import (
    TransferFailedMsg,
    TransferLoadedMsg,
    TransferProgressMsg,
    TransferReadyMsg,
    TransferStartedMsg,
)
from .holdings import Given
from .job import JobKey, Outcome, Parts, Send, Source, run_job
from .receive_slots import ReceiveSlots

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")

#: where a request stands while it is here
STATES = {
    Role.ENCODER: RequestState.ENCODER_RUNNING,
    Role.DENOISER: RequestState.DENOISING_RUNNING,
    Role.DECODER: RequestState.DECODER_RUNNING,
}


class Stop(Enum):
    """Why a job ends before it has come to anything."""

    #: the broker said so, and waits for the answer
    ABORTED = auto()
    #: the request's time ran out
    TIMED_OUT = auto()
    #: aborted by a broker that restarted since, and waits for no answer
    FORGOTTEN = auto()


class Job:
    """One job that runs, as its `Observer`."""

    def __init__(
        self, key: JobKey, source: Source, given: Given, send: Send, on_loaded: Callable[[JobKey], None]
    ) -> None:
        self.key = key
        self.source = source
        self.given = given
        self.stopped: Stop | None = None
        self.is_started = False
        #: what it reads, until it is loaded
        self.slot: Slot | None = source.slot if isinstance(source, TransferReadyMsg) else None
        self._send = send
        self._on_loaded = on_loaded

    @property
    def segment(self) -> str:
        """Of the pool in which it reads in place."""
        source = self.source
        if self.slot is None or not isinstance(source, TransferReadyMsg) or source.pool is None:
            return ""
        return source.pool.segment

    @property
    def own_slot(self) -> Slot | None:
        """The receive slot of this service that it reads."""
        return None if self.segment else self.slot

    def loaded(self) -> None:
        """Give the slot back, and say that it is quiet."""
        self.slot = None
        if self.stopped is None:
            self._on_loaded(self.key)
            self._send(TransferLoadedMsg(self.key.request_id, self.key.attempt))

    def started(self) -> None:
        """Say that it computes."""
        self.is_started = True
        if self.stopped is None:
            self._send(TransferStartedMsg(self.key.request_id, self.key.attempt))

    def progressed(self, step: int, steps: int) -> None:
        """Say how far it is."""
        if self.stopped is None:
            self._send(TransferProgressMsg(self.key.request_id, self.key.attempt, step, steps))

    def held(self, now: float) -> HeldJob:
        """Return it as a broker that restarted is told of it."""
        key, context = self.key, self.given.context_at(now)
        return HeldJob(key.request_id, key.attempt, context, self.slot, self.segment, self.is_started)


class Endings(Protocol):
    """What is done when a job is over; nothing of it runs any more."""

    def came_to(self, job: Job, outcome: Outcome) -> None:
        """Keep the outcome, and say it."""
        ...

    def aborted(self, key: JobKey) -> None:
        """Say that nothing is left of it."""
        ...

    def changed(self) -> None:
        """Take note that there is one job less."""
        ...


class Jobs:
    """The jobs of one incarnation that run: load, wait for the compute thread, compute, or put their output out."""

    def __init__(
        self, parts: Parts, send: Send, tasks: asyncio.TaskGroup, slots: ReceiveSlots, endings: Endings
    ) -> None:
        self._parts = parts
        self._send = send
        self._tasks = tasks
        self._slots = slots
        self._endings = endings
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[JobKey, Job] = {}
        #: all that have not ended, those that are forgotten, too
        self._running: dict[Job, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._running)

    def __contains__(self, key: JobKey) -> bool:
        """Whether a job of this attempt runs that is not forgotten."""
        return key in self._jobs

    def start(self, key: JobKey, source: Source) -> None:
        """Run what `source` asks for, for as long as the request has time."""
        job = Job(key, source, Given(source.context, self._loop.time()), self._send, self._slots.give_back)
        task = self._tasks.create_task(self._run(job))
        timer = self._loop.call_at(job.given.ends_at, self._time_out, job)
        self._jobs[key] = job
        self._running[job] = task
        task.add_done_callback(lambda _: self._ended(job, timer))

    def abort(self, key: JobKey) -> None:
        """End the job at its next step; then the broker is answered."""
        self._stop(self._jobs[key], Stop.ABORTED)

    def forget_aborted(self) -> list[Slot]:
        """Let aborted jobs end without a word to anybody, and return the receive slots that they may still read.

        One that reads in place may see its sender write there again; nobody sees what it makes of that.
        """
        forgotten = [job for job in self._jobs.values() if job.stopped is Stop.ABORTED]
        for job in forgotten:
            job.stopped = Stop.FORGOTTEN
            del self._jobs[job.key]
        return [job.own_slot for job in forgotten if job.own_slot is not None]

    def held(self, now: float) -> tuple[HeldJob, ...]:
        """Return those that are not forgotten."""
        return tuple(job.held(now) for job in self._jobs.values())

    async def aclose(self) -> None:
        """Cancel all, and return when they have ended, telling nobody."""
        for job, task in self._running.items():
            job.stopped = Stop.FORGOTTEN
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(self, job: Job) -> None:
        key = job.key
        try:
            outcome = await run_job(self._parts, key, job.source, job)
        except Exception as error:
            log.exception("job failed", request_id=key.request_id, attempt=key.attempt)
            if job.stopped is None:
                self._fail(job, error)
        else:
            del self._jobs[key]
            self._endings.came_to(job, outcome)

    def _time_out(self, job: Job) -> None:
        if job.stopped is None:
            self._stop(job, Stop.TIMED_OUT)

    def _stop(self, job: Job, why: Stop) -> None:
        job.stopped = why
        self._running[job].cancel()

    def _ended(self, job: Job, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        del self._running[job]
        match job.stopped:
            case Stop.ABORTED:
                self._jobs.pop(job.key, None)
                self._endings.aborted(job.key)
            case Stop.TIMED_OUT:
                log.warning("out of time", request_id=job.key.request_id, attempt=job.key.attempt)
                self._fail(job, RequestTimedOut(job.given.context.timeout_s, STATES[self._parts.role]))
            case _:
                pass
        self._endings.changed()

    def _fail(self, job: Job, error: Exception) -> None:
        """Say why the job came to nothing. Should a broker that restarts not hear it, it starts the attempt anew."""
        del self._jobs[job.key]
        self._slots.give_back(job.key)
        self._send(TransferFailedMsg(job.key.request_id, job.key.attempt, error_info(error)))


def error_info(error: Exception) -> ErrorInfo:
    """Return what the requester is told of `error`."""
    if isinstance(error, TriptychError):
        return error.info()
    return ErrorInfo("internal", f"{type(error).__name__}: {error}")
