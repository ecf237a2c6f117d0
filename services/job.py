"""One attempt of one request on this service: load its input, compute, hand the output on."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch
from msgspec import Struct

from ..schemas.roles import Role
from ..schemas.timing import StageTiming
from ..schemas.transfer import (
    ServiceMsg,
    TransferDoneMsg,
    TransferProgressMsg,
    TransferReadyMsg,
    TransferStagedMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)
from ..transport.tensors.manager import DiffusionTransferManager
from .compute import ComputeThread
from .media import encode_images
from .pipelines.interface import NO_INPUT
from .pipelines.stage import StageOutput


class JobKey(Struct, frozen=True):
    """An attempt of a request."""

    request_id: str
    attempt: int


class Send(Protocol):
    """Whatever queues a message for the broker."""

    def __call__(self, message: ServiceMsg, attachments: tuple[bytes, ...] = ()) -> None:
        """Queue `message`."""
        ...


@dataclass(frozen=True)
class Parts:
    """What every job of a service works with; opened once for the life of the process."""

    role: Role
    instance_id: str
    device: torch.device
    transfers: DiffusionTransferManager
    compute: ComputeThread


class Outcome(Struct, frozen=True):
    """What the broker is told at the end of a job."""

    message: TransferStagedMsg | TransferDoneMsg
    attachments: tuple[bytes, ...] = ()


async def run_job(
    parts: Parts, key: JobKey, source: TransferWorkMsg | TransferReadyMsg, send: Send, on_loaded: Callable[[], None]
) -> Outcome:
    """Compute `source` and return what it came to. `on_loaded` is called when the receive slot is quiet.

    Whatever it raises, `asyncio.CancelledError` included, nothing of the job runs or holds memory afterwards.
    """
    inputs, load_s = await _load(parts, source)
    on_loaded()
    loaded = time.perf_counter()
    steps = source.params.num_inference_steps if parts.role is Role.DENOISER else 1
    computed = await parts.compute.run(
        source.params,
        inputs,
        on_start=lambda: send(TransferStartedMsg(key.request_id, key.attempt)),
        on_step=lambda step: send(TransferProgressMsg(key.request_id, key.attempt, step, steps)),
    )
    timing = StageTiming(
        parts.role,
        parts.instance_id,
        load_s=load_s,
        wait_s=max(0.0, computed.started - loaded),
        compute_s=computed.finished - computed.started,
    )
    if parts.role is Role.DECODER:
        return await _encode_media(key, computed.output, source.params.seed, timing)
    return await _stage(parts, key, computed.output, timing)


async def _load(parts: Parts, source: TransferWorkMsg | TransferReadyMsg) -> tuple[StageOutput, float]:
    if isinstance(source, TransferWorkMsg):
        return NO_INPUT, 0.0
    loaded = await parts.transfers.load_tensors_async(source.slot, source.manifest, parts.device)
    return StageOutput(loaded.tensors, source.scalar_fields), loaded.duration_s


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


async def _encode_media(key: JobKey, output: StageOutput, seed: int, timing: StageTiming) -> Outcome:
    images = output.tensors["images"]
    if not isinstance(images, torch.Tensor):
        raise TypeError("the last stage's images are no tensor")
    began = time.perf_counter()
    media, files = await asyncio.to_thread(encode_images, images, seed)
    timing = _with_output_time(timing, time.perf_counter() - began)
    return Outcome(TransferDoneMsg(key.request_id, key.attempt, timing, media), files)


def _with_output_time(timing: StageTiming, output_s: float) -> StageTiming:
    return msgspec.structs.replace(timing, output_s=output_s)
