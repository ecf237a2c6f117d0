"""One attempt of one request on this service: load its input, compute, hand the output on."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch
from msgspec import Struct

from ..schemas.memory import PoolAddress
from ..schemas.roles import Role
from ..schemas.sampling import SamplingParams
from ..schemas.timing import StageTiming
from ..schemas.transfer import ServiceMsg, TransferDoneMsg, TransferReadyMsg, TransferStagedMsg, TransferWorkMsg
from ..transport.link.codec import Frame
from ..transport.tensors.manager import DiffusionTransferManager
from .compute import ComputeThread
from .media import each_medium
from .pipelines.interface import NO_INPUT
from .pipelines.stage import StageOutput
from .results.data_link import ResultServer
from .threads import collect_in_thread

#: what gives a service work
Source = TransferWorkMsg | TransferReadyMsg


class JobKey(Struct, frozen=True):
    """An attempt of a request."""

    request_id: str
    attempt: int


class Send(Protocol):
    """Whatever queues a message for the broker."""

    def __call__(self, message: ServiceMsg, attachments: tuple[Frame, ...] = ()) -> None:
        """Queue `message`."""
        ...


class Observer(Protocol):
    """Whoever is told how far a job is."""

    def loaded(self) -> None:
        """Take note that the input is copied: the slot it came in is quiet."""
        ...

    def started(self) -> None:
        """Take note that the compute thread has taken it up."""
        ...

    def progressed(self, step: int, steps: int) -> None:
        """Take note that a step is done."""
        ...


@dataclass(frozen=True)
class Parts:
    """What every job of a service works with; `transfers` for one incarnation, the rest for the life of the process."""

    role: Role
    instance_id: str
    device: torch.device
    transfers: DiffusionTransferManager
    compute: ComputeThread
    #: of a service of the last role
    results: ResultServer | None = None


class Outcome(Struct, frozen=True):
    """What the broker is told at the end of a job."""

    message: TransferStagedMsg | TransferDoneMsg
    attachments: tuple[Frame, ...] = ()


async def run_job(parts: Parts, key: JobKey, source: Source, observer: Observer) -> Outcome:
    """Compute `source` and return what it came to.

    Whatever it raises, `asyncio.CancelledError` included, nothing of the job runs or holds memory afterwards.
    """
    parts.compute.models.check(source.context.model)
    if isinstance(source, TransferWorkMsg):
        return await _compute(parts, key, source, _Input(NO_INPUT), observer)
    if source.pool is not None:
        async with _read_in_place(parts, source, source.pool) as inputs:
            if not inputs.in_place:
                observer.loaded()
            return await _compute(parts, key, source, inputs, observer)
    loaded = await parts.transfers.load_tensors_async(source.slot, source.manifest, parts.device)
    observer.loaded()
    inputs = _Input(StageOutput(loaded.tensors, source.scalar_fields), loaded.duration_s)
    return await _compute(parts, key, source, inputs, observer)


class _Input(Struct, frozen=True):
    output: StageOutput
    load_s: float = 0.0
    #: it lies in the slot of its sender
    in_place: bool = False


@asynccontextmanager
async def _read_in_place(parts: Parts, source: TransferReadyMsg, pool: PoolAddress) -> AsyncGenerator[_Input]:
    """Give the input where its sender staged it. What is computed may share its memory, so it is handed on within."""
    reading = await parts.transfers.read_in_place_async(source.slot, source.manifest, pool, parts.device)
    try:
        yield _Input(StageOutput(reading.tensors, source.scalar_fields), reading.duration_s, reading.holds_slot)
    finally:
        reading.close()


async def _compute(parts: Parts, key: JobKey, source: Source, inputs: _Input, observer: Observer) -> Outcome:
    """Compute, and hand the output on."""
    at_hand = time.perf_counter()
    params = source.context.params
    steps = params.num_inference_steps if parts.role is Role.DENOISER else 1
    computed = await parts.compute.run(
        source.context.model,
        params,
        inputs.output,
        on_start=observer.started,
        on_step=lambda step: observer.progressed(step, steps),
    )
    timing = StageTiming(
        parts.role,
        parts.instance_id,
        load_s=inputs.load_s,
        wait_s=max(0.0, computed.started - at_hand),
        compute_s=computed.finished - computed.started,
    )
    if parts.role is Role.DECODER:
        return await _deliver(parts, key, computed.output, params, timing)
    return await _stage(parts, key, computed.output, timing)


async def _stage(parts: Parts, key: JobKey, output: StageOutput, timing: StageTiming) -> Outcome:
    staged = await parts.transfers.stage_tensors_async(output.tensors)
    return Outcome(
        TransferStagedMsg(
            key.request_id,
            key.attempt,
            staged.slot,
            staged.manifest,
            _with_output_time(timing, staged.duration_s),
            output.scalar_fields,
        )
    )


async def _deliver(
    parts: Parts, key: JobKey, output: StageOutput, params: SamplingParams, timing: StageTiming
) -> Outcome:
    """Let the result go with DONE, or wait to be fetched where it is too large for that."""
    began = time.perf_counter()
    media = await collect_in_thread(each_medium(output, params))
    files = tuple(file for _, file in media)
    ticket = None if parts.results is None else await parts.results.offer(key.request_id, files)
    timing = _with_output_time(timing, time.perf_counter() - began)
    done = TransferDoneMsg(key.request_id, key.attempt, timing, tuple(info for info, _ in media), ticket)
    return Outcome(done, () if ticket else files)


def _with_output_time(timing: StageTiming, output_s: float) -> StageTiming:
    return msgspec.structs.replace(timing, output_s=output_s)
