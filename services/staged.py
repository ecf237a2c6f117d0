"""Outputs that wait in the pool until the broker releases them, and the pushes of them to other services."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from ..schemas.errors import TransferError, TriptychError, WriteOverdue
from ..schemas.holdings import HeldOutput
from ..schemas.transfer import (
    ServiceMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferPushMsg,
    TransferStagedMsg,
)
from ..transport.tensors.manager import DiffusionTransferManager
from .holdings import Given
from .job import JobKey, Send

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")


@dataclass(eq=False)
class _Output:
    message: TransferStagedMsg
    given: Given
    pushes: set["_Push"] = field(default_factory=set["_Push"])


@dataclass(eq=False)
class _Push:
    """One write of an output to one receiver. A retry has one of its own while an older one still winds down."""

    message: TransferPushMsg
    #: that it was ordered by a broker which has restarted since, and does not know of it
    forgotten: bool = False


class StagedOutputs:
    """The outputs of one incarnation. Each goes once it is released and no push reads it any more."""

    def __init__(
        self, transfers: DiffusionTransferManager, send: Send, tasks: asyncio.TaskGroup, on_dropped: Callable[[], None]
    ) -> None:
        self._transfers = transfers
        self._send = send
        self._tasks = tasks
        self._on_dropped = on_dropped
        #: not released
        self._outputs: dict[JobKey, _Output] = {}
        #: released, and still read by a push
        self._leaving: set[_Output] = set()
        self._pushing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many lie in the pool."""
        return len(self._outputs) + len(self._leaving)

    def __contains__(self, key: JobKey) -> bool:
        """Whether what the attempt staged lies there and is not released."""
        return key in self._outputs

    def keep(self, key: JobKey, message: TransferStagedMsg, given: Given) -> None:
        """Keep what `key` staged, and say so."""
        self._outputs[key] = _Output(message, given)
        self._send(message)

    def push(self, message: TransferPushMsg) -> None:
        """Write an output to a receiver, beside whatever else is written of it. Answered by PUSHED or PUSH_FAILED."""
        push = _Push(message)
        output = self._outputs.get(JobKey(message.request_id, message.staged_attempt))
        if output is None or output.message.manifest.data_size != message.data_size:
            what = f"{message.data_size} bytes of attempt {message.staged_attempt} of {message.request_id}"
            self._fail(push, TransferError(f"{what} are not staged here"))
            return
        output.pushes.add(push)
        task = self._tasks.create_task(self._write(push, output))
        self._pushing.add(task)
        task.add_done_callback(lambda _: self._written(task, push, output))

    def release(self, key: JobKey) -> None:
        """Drop what `key` staged, when its pushes are over; nothing staged is no harm."""
        output = self._outputs.pop(key, None)
        if output is not None:
            self._leaving.add(output)
            self._drop_quiet(output)

    def held(self, now: float) -> tuple[HeldOutput, ...]:
        """Return what is not released."""
        return tuple(_held(output, now) for output in self._outputs.values())

    def forget_pushes(self) -> None:
        """Let the pushes that run answer nobody: a broker that restarted may order others of the same attempts."""
        for output in [*self._outputs.values(), *self._leaving]:
            for push in output.pushes:
                push.forgotten = True

    async def aclose(self) -> None:
        """End the pushes and drop the outputs, telling nobody."""
        self.forget_pushes()
        for task in self._pushing:
            task.cancel()
        if self._pushing:
            await self._transfers.end_pushes()
        await asyncio.gather(*self._pushing, return_exceptions=True)
        for key in list(self._outputs):
            self.release(key)

    async def _write(self, push: _Push, output: _Output) -> None:
        message, quiet = push.message, asyncio.Event()
        try:
            duration_s = await self._transfers.push(
                output.message.slot, message.data_size, message.pool, message.slot, message.timeout_s, quiet.set
            )
        except WriteOverdue as error:
            self._fail(push, error)
            await quiet.wait()
            self._fail(push, TransferError("the engine has let go of a write that was overdue"))
        except TriptychError as error:
            self._fail(push, error)
        else:
            done = TransferPushedMsg(message.request_id, message.attempt, message.data_size, duration_s)
            self._answer(push, done)

    def _written(self, task: asyncio.Task[None], push: _Push, output: _Output) -> None:
        self._pushing.discard(task)
        output.pushes.discard(push)
        self._drop_quiet(output)

    def _drop_quiet(self, output: _Output) -> None:
        if output in self._leaving and not output.pushes:
            self._leaving.remove(output)
            self._transfers.release(output.message.slot.slot_id)
            self._on_dropped()

    def _fail(self, push: _Push, error: TriptychError) -> None:
        message = push.message
        log.warning("push failed", request_id=message.request_id, attempt=message.attempt, reason=str(error))
        self._answer(push, TransferPushFailedMsg(message.request_id, message.attempt, error.info()))

    def _answer(self, push: _Push, message: ServiceMsg) -> None:
        if not push.forgotten:
            self._send(message)


def _held(output: _Output, now: float) -> HeldOutput:
    message = output.message
    return HeldOutput(
        message.request_id,
        message.attempt,
        output.given.context_at(now),
        message.slot,
        message.manifest,
        message.timing,
        message.scalar_fields,
    )
