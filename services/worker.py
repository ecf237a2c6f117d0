"""What a service does with the broker's messages, and what it holds for them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from ..schemas.errors import ErrorInfo, ResourceError, ResultGone, TransferError, TriptychError, WriteOverdue
from ..schemas.transfer import (
    BrokerMsg,
    PoolAddress,
    Slot,
    TransferAbortMsg,
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferAllocRefusedMsg,
    TransferChunkMsg,
    TransferExpectMsg,
    TransferFailedMsg,
    TransferFetchEndMsg,
    TransferFetchFailedMsg,
    TransferFetchMsg,
    TransferForgetMsg,
    TransferLoadedMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferPushMsg,
    TransferReadyMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferWorkMsg,
)
from .job import JobKey, Parts, Send, run_job

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")


@dataclass
class _Job:
    task: asyncio.Task[None]
    aborted: bool = False


@dataclass
class _Staged:
    slot: Slot
    data_size: int
    pushing: bool = False
    released: bool = False


class Worker:
    """The jobs, staged outputs, allocated receive slots and expected writes of one incarnation.

    Every message is taken without waiting; what takes time is a task of `tasks`.
    """

    def __init__(self, parts: Parts, send: Send, tasks: asyncio.TaskGroup) -> None:
        self._parts = parts
        self._send = send
        self._tasks = tasks
        self._jobs: dict[JobKey, _Job] = {}
        self._staged: dict[JobKey, _Staged] = {}
        self._allocated: dict[JobKey, Slot] = {}
        self._pushes: set[asyncio.Task[None]] = set()
        #: who is told to write
        self._expected: dict[JobKey, PoolAddress] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._take: dict[type[BrokerMsg], Callable[[Any], None]] = {
            TransferWorkMsg: self._start,
            TransferReadyMsg: self._start,
            TransferAllocMsg: self._allocate,
            TransferPushMsg: self._push,
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
            self._note_idle()

    async def wait_idle(self) -> None:
        """Wait until nothing runs and nothing is staged or allocated."""
        await self._idle.wait()

    async def aclose(self) -> None:
        """Cancel every job and push and drop all that is held, telling nobody."""
        tasks = [*(job.task for job in self._jobs.values()), *self._pushes]
        for task in tasks:
            task.cancel()
        if self._pushes:
            await self._parts.transfers.end_pushes()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key in list(self._allocated):
            self._free_allocated(key)
        for key in list(self._expected):
            self._expected_over(key)
        for key in list(self._staged):
            self._release(TransferReleaseMsg(key.request_id, key.attempt))

    def _start(self, message: TransferWorkMsg | TransferReadyMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        self._expected_over(key)
        if key in self._jobs:
            log.warning("work repeated", request_id=key.request_id, attempt=key.attempt)
            return
        task = self._tasks.create_task(self._run(key, message))
        task.add_done_callback(lambda _: self._ended(key))
        self._jobs[key] = _Job(task)

    async def _run(self, key: JobKey, source: TransferWorkMsg | TransferReadyMsg) -> None:
        try:
            outcome = await run_job(self._parts, key, source, self._send, lambda: self._loaded(key))
        except Exception as error:
            log.exception("job failed", request_id=key.request_id, attempt=key.attempt)
            self._free_allocated(key)
            self._send(TransferFailedMsg(key.request_id, key.attempt, error_info(error)))
        else:
            if isinstance(outcome.message, TransferStagedMsg):
                self._staged[key] = _Staged(outcome.message.slot, outcome.message.manifest.data_size)
            self._send(outcome.message, outcome.attachments)

    def _ended(self, key: JobKey) -> None:
        if self._jobs.pop(key).aborted:
            self._answer_abort(key, writer_lost=False)
        self._note_idle()

    def _loaded(self, key: JobKey) -> None:
        self._free_allocated(key)
        self._send(TransferLoadedMsg(key.request_id, key.attempt))

    def _allocate(self, message: TransferAllocMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        try:
            slot = self._parts.transfers.allocate_receive(message.size)
        except ResourceError as error:
            self._send(TransferAllocRefusedMsg(key.request_id, key.attempt, error.info()))
        else:
            self._allocated[key] = slot
            self._send(TransferAllocatedMsg(key.request_id, key.attempt, slot))

    def _expect(self, message: TransferExpectMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        self._expected[key] = message.pool
        self._parts.transfers.expect(key, message.pool)

    def _expected_over(self, key: JobKey) -> PoolAddress | None:
        """Help a write no longer, and return who was to write, if it was expected."""
        writer = self._expected.pop(key, None)
        if writer is not None:
            self._parts.transfers.expected_over(key)
        return writer

    def _forget(self, message: TransferForgetMsg) -> None:
        self._parts.transfers.forget(message.pool)

    def _push(self, message: TransferPushMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        staged = self._staged.get(key)
        if staged is None or staged.pushing or staged.data_size != message.data_size:
            error = TransferError(f"{message.data_size} bytes of {key.request_id} are not staged here, or move already")
            self._send(TransferPushFailedMsg(key.request_id, key.attempt, error.info()))
            return
        staged.pushing = True
        task = self._tasks.create_task(self._push_out(key, staged, message))
        self._pushes.add(task)
        task.add_done_callback(self._pushes.discard)

    async def _push_out(self, key: JobKey, staged: _Staged, message: TransferPushMsg) -> None:
        quiet = asyncio.Event()
        try:
            duration_s = await self._parts.transfers.push(
                staged.slot, message.data_size, message.pool, message.slot, message.timeout_s, quiet.set
            )
            self._send(TransferPushedMsg(key.request_id, key.attempt, message.data_size, duration_s))
        except WriteOverdue as error:
            self._push_failed(key, error)
            await quiet.wait()
            self._push_failed(key, TransferError("the engine has let go of a write that was overdue"))
        except TriptychError as error:
            self._push_failed(key, error)
        finally:
            staged.pushing = False
            if staged.released:
                self._drop_staged(key)

    def _push_failed(self, key: JobKey, error: TriptychError) -> None:
        log.warning("push failed", request_id=key.request_id, attempt=key.attempt, reason=str(error))
        self._send(TransferPushFailedMsg(key.request_id, key.attempt, error.info()))

    def _release(self, message: TransferReleaseMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        staged = self._staged.get(key)
        if staged is None:
            return
        staged.released = True
        if not staged.pushing:
            self._drop_staged(key)

    def _drop_staged(self, key: JobKey) -> None:
        self._parts.transfers.release(self._staged.pop(key).slot.slot_id)
        self._note_idle()

    def _abort(self, message: TransferAbortMsg) -> None:
        key = JobKey(message.request_id, message.attempt)
        job = self._jobs.get(key)
        if job is None:
            self._answer_abort(key, writer_lost=message.writer_lost)
        else:
            job.aborted = True
            job.task.cancel()

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

    def _answer_abort(self, key: JobKey, *, writer_lost: bool) -> None:
        """Drop whatever is held for `key`, and say so. Nothing of it runs any more."""
        writer = self._expected_over(key)
        retired = writer_lost and key not in self._allocated
        self._free_allocated(key, writer_lost=writer_lost, writer=writer)
        self._release(TransferReleaseMsg(key.request_id, key.attempt))
        if self._parts.results is not None:
            self._parts.results.withdraw(key.request_id)
        self._send(TransferReleasedMsg(key.request_id, key.attempt, retired))

    def _free_allocated(self, key: JobKey, *, writer_lost: bool = False, writer: PoolAddress | None = None) -> None:
        slot = self._allocated.pop(key, None)
        if slot is None:
            return
        if writer_lost:
            self._parts.transfers.retire(slot.slot_id, writer)
        else:
            self._parts.transfers.release(slot.slot_id)

    def _note_idle(self) -> None:
        if self._jobs or self._staged or self._allocated:
            self._idle.clear()
        else:
            self._idle.set()


def error_info(error: Exception) -> ErrorInfo:
    """Return what the requester is told of `error`."""
    if isinstance(error, TriptychError):
        return error.info()
    return ErrorInfo("internal", f"{type(error).__name__}: {error}")
