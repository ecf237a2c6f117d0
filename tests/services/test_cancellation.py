"""ABORT in every state of a job: it is prompt, nothing touches memory afterwards, and nothing is left."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.results.kit import LARGE, open_holder, ticket_for
from tests.services.kit import POOL_BYTES, Service, open_service, ready, staged, work
from triptych.schemas.manifest import EMPTY_MANIFEST
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferDoneMsg,
    TransferProgressMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
)
from triptych.services.pipelines.interface import Steps
from triptych.services.pipelines.stage import StageOutput
from triptych.services.threads import collect_in_thread
from triptych.transport.tensors.streams import INLINE_BYTES

RELEASED = TransferReleasedMsg("r1", 1)


class Held:
    """Keeps the thread that copies busy until the test lets it go on."""

    def __init__(self, service: Service) -> None:
        self._open = threading.Event()
        service.transfers._stream.submit(lambda: self._open.wait(30), nbytes=INLINE_BYTES + 1)

    def go_on(self) -> None:
        self._open.set()


async def turn_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds."""
    while not condition():  # noqa: ASYNC110  (nothing tells it)
        await asyncio.sleep(0)


async def test_while_the_input_loads() -> None:
    """RELEASED comes when the copy is over, so that nobody writes into a slot that is read."""
    async with open_service(Role.DENOISER, receive_slots=1) as denoiser:
        copies = Held(denoiser)
        denoiser.worker.take(ready(denoiser.slots[0], EMPTY_MANIFEST, "count"))
        await asyncio.sleep(0)  # the job begins
        denoiser.worker.take(TransferAbortMsg("r1", 1))
        await asyncio.sleep(0)  # and is told
        assert denoiser.said.empty()
        copies.go_on()
        assert await denoiser.said.get() == RELEASED
        await denoiser.worker.wait_idle()
        assert denoiser.said.empty()


async def test_while_the_output_is_staged() -> None:
    """RELEASED comes when the copy is over; its room in the pool is free."""
    async with open_service(Role.ENCODER) as encoder:
        copies = Held(encoder)
        encoder.worker.take(work("count", seed=1000))
        await encoder.hears(TransferProgressMsg)
        await turn_until(lambda: encoder.free_bytes < POOL_BYTES)
        encoder.worker.take(TransferAbortMsg("r1", 1))
        await asyncio.sleep(0)
        assert encoder.said.empty()
        copies.go_on()
        assert await encoder.said.get() == RELEASED
        assert encoder.free_bytes == POOL_BYTES


async def test_while_the_output_waits_for_room_in_the_pool() -> None:
    """At once; its place in the line is the next one's."""
    async with open_service(Role.ENCODER, pool_bytes=8192) as encoder:
        await staged(encoder, "first")
        encoder.worker.take(work("count", seed=1000))
        await encoder.hears(TransferProgressMsg)
        await turn_until(lambda: encoder.transfers.statistics().pool.waiting == 1)
        encoder.worker.take(TransferAbortMsg("r1", 1))
        assert await encoder.said.get() == RELEASED
        encoder.worker.take(TransferReleaseMsg("first", 1))
        assert encoder.free_bytes == 8192


class Media:
    """Media that the test sees drawn, each when it says so."""

    def __init__(self) -> None:
        self.drawn = 0
        self.asked = threading.Event()
        self.open = threading.Event()

    def __iter__(self) -> Iterator[int]:
        for index in range(1000):
            self.asked.set()
            assert self.open.wait(30)
            self.drawn += 1
            yield index


async def test_while_media_are_encoded() -> None:
    """It ends with the medium that is being encoded, and only then: the pictures may lie in a slot of the sender."""
    media = Media()
    encoding = asyncio.create_task(collect_in_thread(media))
    await asyncio.to_thread(media.asked.wait)
    for _ in range(3):
        encoding.cancel()
        await asyncio.sleep(0)
    assert not encoding.done()
    media.open.set()
    with pytest.raises(asyncio.CancelledError):
        await encoding
    assert media.drawn == 1


def film(_params: SamplingParams, _inputs: StageOutput) -> Steps:
    """Give one medium of two megabytes."""
    yield 1
    return StageOutput({"media": [torch.zeros(len(LARGE), dtype=torch.uint8)]})


async def test_while_the_result_waits_for_room_in_the_outbox() -> None:
    """At once; the result is nowhere."""
    async with (
        open_holder(outbox=len(LARGE)) as holder,
        open_service(Role.DECODER, results=holder, extra={"film": film}) as decoder,
    ):
        await ticket_for(holder, LARGE, request_id="another")
        decoder.worker.take(work("film"))
        await decoder.hears(TransferProgressMsg)
        decoder.worker.take(TransferAbortMsg("r1", 1))
        assert await decoder.said.get() == RELEASED
        assert (len(holder.outbox), holder.outbox.held_bytes) == (1, len(LARGE))


async def test_when_the_result_waits_to_be_fetched() -> None:
    """DONE has crossed ABORT: the result is dropped."""
    async with (
        open_holder() as holder,
        open_service(Role.DECODER, results=holder, extra={"film": film}) as decoder,
    ):
        decoder.worker.take(work("film"))
        assert (await decoder.hears(TransferDoneMsg)).ticket is not None
        assert len(holder.outbox) == 1
        decoder.worker.take(TransferAbortMsg("r1", 1))
        assert await decoder.said.get() == RELEASED
        assert len(holder.outbox) == 0
