"""What a service tells a broker that restarted of what it holds, and what it lets go of then."""

import asyncio

import msgspec
import pytest

from tests.services.kit import (
    POOL_BYTES,
    Service,
    allocated,
    context,
    open_service,
    push,
    ready,
    ready_in_place,
    staged,
    work,
)
from tests.services.test_retries import HERE, SlowTransfers
from triptych.schemas.holdings import HeldJob, HeldOutput
from triptych.schemas.manifest import EMPTY_MANIFEST, TensorManifest
from triptych.schemas.memory import PoolAddress, Slot
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    TransferAbortMsg,
    TransferDoneMsg,
    TransferExpectMsg,
    TransferLoadedMsg,
    TransferRegisterMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
)
from triptych.services.holdings import Given, Holdings, registration_with, too_much
from triptych.transport.tensors.manager import DiffusionTransferManager, Loaded


def held_jobs(service: Service) -> list[tuple[str, int, Slot | None, str, bool]]:
    """Take stock and return what is said of each job beside its context."""
    return [
        (job.request_id, job.attempt, job.slot, job.segment, job.started) for job in service.worker.take_stock().jobs
    ]


def test_the_time_that_is_left_is_counted_down() -> None:
    """By how long it was held, and not below nothing; all else stays."""
    given = Given(context("a fox", left_s=60.0), at=1000.0)
    assert given.context_at(1010.0) == context("a fox", left_s=50.0)
    assert given.context_at(1100.0) == context("a fox", left_s=0.0)


async def test_jobs_are_told_with_what_they_read_and_whether_they_compute() -> None:
    """One computes, with its input loaded; one waits for the compute thread."""
    async with open_service(Role.DENOISER, receive_slots=2) as denoiser:
        denoiser.worker.take(ready(denoiser.slots[0], EMPTY_MANIFEST, "gate", "computes", num_inference_steps=1))
        await denoiser.hears(TransferStartedMsg)
        denoiser.worker.take(ready(denoiser.slots[1], EMPTY_MANIFEST, "count", "waits"))
        await denoiser.hears(TransferLoadedMsg)
        assert held_jobs(denoiser) == [("computes", 1, None, "", True), ("waits", 1, None, "", False)]
        assert denoiser.worker.take_stock().receive_slots == denoiser.slots


async def test_a_job_that_reads_in_place_names_its_sender_s_slot() -> None:
    """For as long as it runs: the sender must not write there."""
    async with open_service(Role.ENCODER) as encoder, open_service(Role.DENOISER) as denoiser:
        message = await staged(encoder)
        denoiser.worker.take(ready_in_place(encoder, message, "gate", num_inference_steps=1))
        await denoiser.says(TransferStartedMsg)
        assert held_jobs(denoiser) == [("r1", 1, message.slot, encoder.transfers.address.segment, True)]


async def test_outputs_are_told_as_they_were_staged() -> None:
    """With the request's context; those that are released are not."""
    async with open_service(Role.ENCODER) as encoder:
        kept = await staged(encoder, "kept")
        await staged(encoder, "released")
        encoder.worker.take(TransferReleaseMsg("released", 1))
        holdings = encoder.worker.take_stock()
        (output,) = holdings.outputs
        assert holdings.jobs == ()
        assert msgspec.structs.replace(output, context=context("count", seed=1000)) == HeldOutput(
            "kept", 1, context("count", seed=1000), kept.slot, kept.manifest, kept.timing, kept.scalar_fields
        )
        assert 0.0 < output.context.left_s < 60.0


async def test_a_result_without_an_answer_is_told_as_a_job() -> None:
    """It reads nothing any more. RELEASE, or ABORT, ends it."""
    async with open_service(Role.DECODER) as decoder:
        for request_id in ("kept", "released", "aborted"):
            decoder.worker.take(work("picture", request_id, num_images=1))
            await decoder.hears(TransferDoneMsg)
        decoder.worker.take(TransferReleaseMsg("released", 1))
        decoder.worker.take(TransferAbortMsg("aborted", 1))
        assert held_jobs(decoder) == [("kept", 1, None, "", True)]
        assert not decoder.worker.idle
        decoder.worker.take(TransferReleaseMsg("kept", 1))
        await decoder.worker.wait_idle()


async def test_an_aborted_job_is_not_told_and_answers_nobody() -> None:
    """The broker that aborted it is gone. The very attempt may be given again, and is not mistaken for it."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(work("gate", num_inference_steps=1000))
        await encoder.says(TransferStartedMsg)
        encoder.worker.take(TransferAbortMsg("r1", 1))
        assert held_jobs(encoder) == []
        encoder.worker.take(work("count", seed=1000))
        assert held_jobs(encoder) == [("r1", 1, None, "", False)]
        encoder.gate.open.set()
        await encoder.says(TransferStartedMsg)
        await encoder.hears(TransferStagedMsg)
        assert encoder.said.empty()
        assert encoder.free_bytes == POOL_BYTES - 8192


async def test_a_push_that_was_ordered_before_answers_nobody() -> None:
    """The new broker may have ordered another one of the same attempt."""
    async with open_service(Role.ENCODER, kind=SlowTransfers) as encoder:
        encoder.worker.take(push(await staged(encoder), encoder, HERE))
        encoder.worker.take_stock()
        encoder.transfers.over(HERE).set()
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        await encoder.worker.wait_idle()
        assert encoder.said.empty()


class SlowLoads(DiffusionTransferManager):
    """A manager whose copies out of a slot take until the test ends them; they cannot be cut short."""

    async def load_tensors_async(self, slot: Slot, manifest: TensorManifest, device: object) -> Loaded:
        with self._using(slot.slot_id):
            self.loading.set()
            while not self.copied.is_set():
                try:
                    await self.copied.wait()
                except asyncio.CancelledError as error:
                    await self.copied.wait()
                    raise asyncio.CancelledError from error
        return Loaded({}, 0.0)

    @property
    def loading(self) -> asyncio.Event:
        return vars(self).setdefault("_loading", asyncio.Event())

    @property
    def copied(self) -> asyncio.Event:
        return vars(self).setdefault("_copied", asyncio.Event())


@pytest.fixture
def writer() -> PoolAddress:
    return PoolAddress("another-host", "triptych-writer-1", 2**20)


async def test_a_slot_that_a_job_still_reads_is_named_by_the_job() -> None:
    """A pre-allocated one stays among the receive slots, one set aside for the attempt is the job's alone."""
    async with open_service(Role.DENOISER, kind=SlowLoads, receive_slots=1) as denoiser:
        denoiser.worker.take(ready(denoiser.slots[0], EMPTY_MANIFEST, "count", "fixed"))
        slot = allocated(denoiser, "own")
        denoiser.worker.take(ready(slot, EMPTY_MANIFEST, "count", "own"))
        await denoiser.transfers.loading.wait()
        holdings = denoiser.worker.take_stock()
        assert [(job.request_id, job.slot) for job in holdings.jobs] == [("fixed", denoiser.slots[0]), ("own", slot)]
        assert holdings.receive_slots == denoiser.slots
        denoiser.transfers.copied.set()
        await denoiser.hears(TransferLoadedMsg)
        await denoiser.hears(TransferLoadedMsg)


async def test_a_slot_that_an_aborted_job_still_reads_is_not_offered_again() -> None:
    """It goes back into the pool when the copy out of it is over."""
    async with open_service(Role.DENOISER, kind=SlowLoads, receive_slots=2) as denoiser:
        denoiser.worker.take(ready(denoiser.slots[0], EMPTY_MANIFEST, "count"))
        await denoiser.transfers.loading.wait()
        denoiser.worker.take(TransferAbortMsg("r1", 1))
        assert denoiser.worker.take_stock() == Holdings(receive_slots=denoiser.slots[1:])
        before = denoiser.free_bytes
        denoiser.transfers.copied.set()
        await denoiser.worker.wait_idle()
        assert denoiser.free_bytes - before == 4096
        denoiser.retired_bytes = -4096


async def test_a_slot_that_may_still_be_written_is_kept_out_of_use(writer: PoolAddress) -> None:
    """EXPECT without READY: the sender may be at it, and the new broker does not know."""
    async with open_service(Role.DENOISER, receive_slots=2) as denoiser:
        denoiser.worker.take(TransferExpectMsg("fixed", 1, writer, denoiser.slots[0]))
        slot = allocated(denoiser, "own", 4096)
        denoiser.worker.take(TransferExpectMsg("own", 1, writer, slot))
        assert denoiser.worker.take_stock() == Holdings(receive_slots=denoiser.slots[1:])
        assert denoiser.transfers.statistics().pool.retired == 8192
        assert denoiser.worker.idle
        denoiser.retired_bytes = 4096


async def test_a_slot_that_was_promised_and_never_written_is_free() -> None:
    """ALLOC without EXPECT: nobody was told of it."""
    async with open_service(Role.DENOISER) as denoiser:
        allocated(denoiser)
        assert denoiser.worker.take_stock() == Holdings()
        assert denoiser.free_bytes == POOL_BYTES


async def test_a_slot_that_was_retired_stays_so(writer: PoolAddress) -> None:
    """The broker that was told `slot_retired` is gone; the new one is not offered it."""
    async with open_service(Role.DENOISER, receive_slots=2) as denoiser:
        denoiser.worker.take(TransferExpectMsg("r1", 1, writer, denoiser.slots[1]))
        denoiser.worker.take(TransferAbortMsg("r1", 1, writer_lost=True))
        for _ in range(2):
            assert denoiser.worker.take_stock() == Holdings(receive_slots=denoiser.slots[:1])
        assert denoiser.transfers.statistics().pool.retired == 4096


async def test_a_slot_that_was_written_is_as_good_as_new(writer: PoolAddress) -> None:
    """EXPECT with READY or ABORT is over."""
    async with open_service(Role.DENOISER, receive_slots=2) as denoiser:
        for request_id, slot in zip(("ready", "aborted"), denoiser.slots, strict=True):
            denoiser.worker.take(TransferExpectMsg(request_id, 1, writer, slot))
        denoiser.worker.take(ready(denoiser.slots[0], EMPTY_MANIFEST, "count", "ready"))
        denoiser.worker.take(TransferAbortMsg("aborted", 1))
        await denoiser.hears(TransferStagedMsg)
        assert denoiser.worker.take_stock().receive_slots == denoiser.slots


def test_a_registration_keeps_within_what_the_broker_takes() -> None:
    """By the number of what is held, and by its bytes."""
    first = TransferRegisterMsg(
        PROTOCOL_VERSION, "0", "encoder-0", 7, Role.ENCODER, 2, PoolAddress("here", "segment", 2**20)
    )
    job = HeldJob("r1", 1, context("a fox"))
    assert not too_much(registration_with(first, Holdings(jobs=(job,) * 4096)))
    assert too_much(registration_with(first, Holdings(jobs=(job,) * 4097)))
    long = HeldJob("r1", 1, context("a fox" * 2**10))
    assert not too_much(registration_with(first, Holdings(jobs=(long,) * 1500)))
    assert too_much(registration_with(first, Holdings(jobs=(long,) * 1700)))
