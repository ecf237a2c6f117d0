"""A service ends what has no time left by itself: the broker may be down."""

import asyncio
import threading

import pytest

from tests.services.kit import allocated, context, open_service, ready, staged, work
from triptych.schemas.manifest import EMPTY_MANIFEST
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferFailedMsg,
    TransferReadyMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStartedMsg,
)
from triptych.services.pipelines.interface import Steps
from triptych.services.pipelines.stage import StageOutput


def endless(_params: SamplingParams, inputs: StageOutput) -> Steps:
    """Go from step to step until it is told to end."""
    between = threading.Event()
    step = 0
    while True:
        between.wait(0.001)
        yield (step := step + 1)


async def test_what_computes_is_ended_at_its_next_step() -> None:
    """FAILED says what the timeout was and where the request stood; the next one is served."""
    async with open_service(Role.ENCODER, extra={"endless": endless}) as encoder:
        encoder.worker.take(work("endless", left_s=0.05))
        failed = await encoder.hears(TransferFailedMsg)
        assert (failed.error.code, failed.error.details) == (
            "timed_out",
            {"timeout_s": 60.0, "state": "ENCODER_RUNNING"},
        )
        await staged(encoder, "r2")


@pytest.mark.parametrize("left_s", [0.0, 0.05])
async def test_what_waits_for_the_compute_thread_is_ended_at_once(left_s: float) -> None:
    """Though the one that computes goes on; its own slot is free again."""
    async with open_service(Role.DENOISER) as denoiser:
        denoiser.worker.take(ready(allocated(denoiser), EMPTY_MANIFEST, "gate", num_inference_steps=1))
        await denoiser.hears(TransferStartedMsg)
        slot = allocated(denoiser, "r2")
        denoiser.worker.take(TransferReadyMsg("r2", 1, slot, EMPTY_MANIFEST, context("count", left_s)))
        failed = await denoiser.hears(TransferFailedMsg)
        assert (failed.request_id, failed.error.code) == ("r2", "timed_out")
        assert not denoiser.gate.open.is_set()


async def test_what_waits_for_room_for_its_output_is_ended() -> None:
    """The pool is full: nothing of it is left there."""
    async with open_service(Role.ENCODER, pool_bytes=8192) as encoder:
        await staged(encoder, "first")
        encoder.worker.take(work("count", "second", left_s=0.05, seed=1000))
        assert (await encoder.hears(TransferFailedMsg)).request_id == "second"
        encoder.worker.take(TransferReleaseMsg("first", 1))
        await staged(encoder, "third")


@pytest.mark.parametrize("abort_first", [True, False])
async def test_a_job_that_is_aborted_as_its_time_runs_out_is_answered_once(*, abort_first: bool) -> None:
    """The broker waits for RELEASED, and gets it alone, whichever came first."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(work("gate", left_s=0.1, num_inference_steps=1000))
        await encoder.says(TransferStartedMsg)
        await asyncio.to_thread(encoder.gate.started.wait)
        if abort_first:
            encoder.worker.take(TransferAbortMsg("r1", 1))
        encoder.worker.take(work("count", "later", left_s=0.15))
        assert (await encoder.says(TransferFailedMsg)).request_id == "later"
        if not abort_first:
            encoder.worker.take(TransferAbortMsg("r1", 1))
        encoder.gate.open.set()
        assert await encoder.says(TransferReleasedMsg) == TransferReleasedMsg("r1", 1)
        await encoder.worker.wait_idle()
        assert encoder.said.empty()
