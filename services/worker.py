"""What a service does with the broker's messages, and what it holds for them."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from ..schemas.errors import ResourceError, ResultGone, TriptychError
from ..schemas.memory import Slot
from ..schemas.transfer import (
    BrokerMsg,
    TransferAbortMsg,
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferAllocRefusedMsg,
    TransferChunkMsg,
    TransferExpectMsg,
    TransferFetchEndMsg,
    TransferFetchFailedMsg,
    TransferFetchMsg,
    TransferForgetMsg,
    TransferHeartbeatMsg,
    TransferPushMsg,
    TransferReadyMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferWorkMsg,
)
from .delivered import DeliveredResults
from .holdings import Holdings
from .job import JobKey, Outcome, Parts, Send, Source
from .jobs import Job, Jobs
from .receive_slots import ReceiveSlots
from .staged import StagedOutputs

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")


class Worker:
    """The jobs of one incarnation, what they read, and what they came to.

    Every message is taken without waiting; what takes time is a task of `tasks`.
    """

    def __init__(
        self, parts: Parts, send: Send, tasks: asyncio.TaskGroup, receive_slots: tuple[Slot, ...] = ()
    ) -> None:
        self._parts = parts
        self._send = send
        self._slots = ReceiveSlots(parts.transfers, receive_slots)
        self._outputs = StagedOutputs(parts.transfers, send, tasks, self.changed)
        self._delivered = DeliveredResults(send, parts.results)
        self._jobs = Jobs(parts, send, tasks, self._slots, self)
        self._idle = asyncio.Event()
        self._idle.set()
        self._take: dict[type[BrokerMsg], Callable[[Any], None]] = {
            TransferWorkMsg: self._start,
            TransferReadyMsg: self._start,
            TransferAllocMsg: self._allocate,
            TransferPushMsg: self._outputs.push,
            TransferExpectMsg: self._expect,
            TransferForgetMsg: self._forget,
            TransferReleaseMsg: self._release,
            TransferAbortMsg: self._abort,
            TransferFetchMsg: self._fetch,
            TransferFetchEndMsg: self._fetch_end,
        }

    def take(self, message: BrokerMsg) -> None:
        """Do what `message` says; one that is not about work is none of the worker's."""
        take = self._take.get(type(message))
        if take is not None:
            take(message)
            self.changed()

    @property
    def idle(self) -> bool:
        """Whether nothing runs, and nothing is staged, allocated or waiting for an answer."""
        return self._idle.is_set()

    async def wait_idle(self) -> None:
        """Wait until nothing runs, and nothing is staged, allocated or waiting for an answer."""
        await self._idle.wait()

    def take_stock(self) -> Holdings:
        """Return what a broker that restarted has to know, and let go of what it cannot know of.

        That is: slots that were promised for inputs which have not come, answers to pushes, and aborted jobs.
        """
        now = asyncio.get_running_loop().time()
        self._outputs.forget_pushes()
        slots = self._slots.settle(reading=self._jobs, leaving=self._jobs.forget_aborted())
        jobs = (*self._jobs.held(now), *self._delivered.held(now))
        self.changed()
        return Holdings(jobs, self._outputs.held(now), slots)

    def say_again(self) -> None:
        """Say once more what the broker has not answered."""
        self._delivered.say_again()

    def load(self, loop_lag_s: float) -> TransferHeartbeatMsg:
        """Return how much there is to do and to keep."""
        free_bytes = self._parts.transfers.statistics().pool.memory.free
        loaded = self._parts.compute.models.loaded
        return TransferHeartbeatMsg(len(self._jobs), len(self._outputs), free_bytes, loop_lag_s, loaded)

    async def aclose(self) -> None:
        """Cancel every job and push and drop all that is held, telling nobody."""
        await self._jobs.aclose()
        await self._outputs.aclose()
        self._slots.close()

    def came_to(self, job: Job, outcome: Outcome) -> None:
        """Keep what a job came to until the broker releases it."""
        if isinstance(outcome.message, TransferStagedMsg):
            self._outputs.keep(job.key, outcome.message, job.given)
        else:
            self._delivered.keep(job.key, outcome.message, outcome.attachments, job.given)

    def aborted(self, key: JobKey) -> None:
        """Drop whatever is held for `key`, and say so. Nothing of it runs any more."""
        self._slots.drop(key)
        self._dropped(key, slot_retired=False)

    def changed(self) -> None:
        """See whether anything is left."""
        if self._jobs or self._outputs or self._slots or self._delivered:
            self._idle.clear()
        else:
            self._idle.set()

    def _start(self, message: Source) -> None:
        key = JobKey(message.request_id, message.attempt)
        self._slots.arrived(key)
        if key in self._jobs or key in self._outputs or key in self._delivered:
            log.warning("work repeated", request_id=key.request_id, attempt=key.attempt)
        else:
            self._jobs.start(key, message)

    def _allocate(self, message: TransferAllocMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        try:
            slot = self._slots.allocate(key, message.size)
        except ResourceError as error:
            self._send(TransferAllocRefusedMsg(key.request_id, key.attempt, error.info()))
        else:
            self._send(TransferAllocatedMsg(key.request_id, key.attempt, slot))

    def _expect(self, message: TransferExpectMsg) -> None:
        self._slots.expect(JobKey(message.request_id, message.attempt), message.pool, message.slot)

    def _forget(self, message: TransferForgetMsg) -> None:
        self._parts.transfers.forget(message.pool)

    def _release(self, message: TransferReleaseMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        self._outputs.release(key)
        self._delivered.answered(key)

    def _abort(self, message: TransferAbortMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        if key in self._jobs:
            self._jobs.abort(key)
        elif message.writer_lost:
            self._dropped(key, slot_retired=self._slots.drop_unsafe(key))
        else:
            self.aborted(key)

    def _dropped(self, key: JobKey, *, slot_retired: bool) -> None:
        self._outputs.release(key)
        self._delivered.withdraw(key)
        self._send(TransferReleasedMsg(key.request_id, key.attempt, slot_retired))

    def _fetch(self, message: TransferFetchMsg) -> None:
        """Hand out a piece of a result to a client that can only reach the broker."""
        try:
            if self._parts.results is None:
                raise ResultGone(message.claim.request_id)
            data = self._parts.results.read(message.claim, message.piece)
        except TriptychError as error:
            self._send(TransferFetchFailedMsg(message.relay_id, error.info()))
        else:
            self._send(TransferChunkMsg(message.relay_id), (data,))

    def _fetch_end(self, message: TransferFetchEndMsg) -> None:
        if self._parts.results is not None:
            self._parts.results.end(message.claim)
