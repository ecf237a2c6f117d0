"""What a service does with the broker's messages: real tensors in real shared memory, no sockets."""

from collections.abc import Callable, Hashable

import msgspec
import pytest
import torch

from tests.services.kit import (
    POOL_BYTES,
    allocated,
    needs_nixl,
    open_service,
    push,
    ready,
    ready_in_place,
    staged,
    work,
)
from triptych.schemas.errors import WriteOverdue
from triptych.schemas.manifest import EMPTY_MANIFEST, TensorManifest
from triptych.schemas.memory import PoolAddress, Slot
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferAllocRefusedMsg,
    TransferDoneMsg,
    TransferExpectMsg,
    TransferFailedMsg,
    TransferForgetMsg,
    TransferLoadedMsg,
    TransferProgressMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
)
from triptych.services.job import JobKey
from triptych.services.pipelines.interface import Steps
from triptych.services.pipelines.stage import StageOutput
from triptych.transport.tensors.in_place import InPlace
from triptych.transport.tensors.manager import DiffusionTransferManager


async def test_an_encoder_computes_and_stages() -> None:
    """WORK leads to STARTED, PROGRESS and STAGED, and RELEASE frees the slot."""
    async with open_service(Role.ENCODER) as encoder:
        message = await staged(encoder)
        assert (message.slot.size, message.manifest.data_size, message.scalar_fields) == (8192, 8192, {"seed": 1000})
        assert encoder.free_bytes == POOL_BYTES - 8192
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        assert encoder.free_bytes == POOL_BYTES
        await encoder.worker.wait_idle()


@needs_nixl
async def test_a_payload_goes_from_pool_to_pool_and_through() -> None:
    """PUSH writes into the receiver's slot, READY loads it: the receiver stages the very numbers that were sent."""
    async with (
        open_service(Role.ENCODER, engine="nixl") as encoder,
        open_service(Role.DENOISER, engine="nixl") as denoiser,
    ):
        message = await staged(encoder)
        denoiser.worker.take(TransferAllocMsg("r1", 1, message.manifest.data_size))
        slot = (await denoiser.says(TransferAllocatedMsg)).slot
        denoiser.worker.take(TransferExpectMsg("r1", 1, encoder.transfers.address, slot))
        encoder.worker.take(push(message, denoiser, slot))
        pushed = await encoder.says(TransferPushedMsg)
        assert pushed.nbytes == message.manifest.data_size
        denoiser.gate.open.set()
        denoiser.worker.take(ready(slot, message.manifest, "gate", num_inference_steps=2))
        kinds = [type(await denoiser.said.get()) for _ in range(4)]
        assert kinds == [TransferLoadedMsg, TransferStartedMsg, TransferProgressMsg, TransferProgressMsg]
        onward = await denoiser.says(TransferStagedMsg)
        loaded = await denoiser.transfers.load_tensors_async(onward.slot, onward.manifest, "cpu")
        assert torch.equal(loaded.tensors["numbers"], torch.arange(1000))


async def test_a_payload_is_read_where_it_lies() -> None:
    """READY with a pool computes from the sender's slot: nothing moves, no slot is taken, LOADED is not said."""
    async with open_service(Role.ENCODER) as encoder, open_service(Role.DENOISER) as denoiser:
        message = await staged(encoder)
        denoiser.gate.open.set()
        denoiser.worker.take(ready_in_place(encoder, message, "gate", num_inference_steps=1))
        kinds = [type(await denoiser.said.get()) for _ in range(2)]
        assert kinds == [TransferStartedMsg, TransferProgressMsg]
        onward = await denoiser.says(TransferStagedMsg)
        assert onward.scalar_fields == {"seed": 1000}
        loaded = await denoiser.transfers.load_tensors_async(onward.slot, onward.manifest, "cpu")
        assert torch.equal(loaded.tensors["numbers"], torch.arange(1000))
        statistics = denoiser.transfers.statistics()
        assert (statistics.read_in_place, encoder.transfers.statistics().pushed) == ((1, 8192), (0, 0))


class Watched:
    """A stage that keeps what it was given, as a stage must not, and hands it on."""

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []

    def __call__(self, _params: SamplingParams, inputs: StageOutput) -> Steps:
        numbers = inputs.tensors["numbers"]
        assert isinstance(numbers, torch.Tensor)
        self.inputs.append(numbers)
        yield 1
        return inputs


async def test_what_is_read_in_place_is_the_sender_s_memory() -> None:
    """The stage is given a view: what the sender writes later shows in it."""
    watched = Watched()
    async with (
        open_service(Role.ENCODER) as encoder,
        open_service(Role.DENOISER, extra={"watched": watched}) as denoiser,
    ):
        message = await staged(encoder)
        denoiser.worker.take(ready_in_place(encoder, message, "watched"))
        for _ in range(2):
            await denoiser.said.get()
        await denoiser.says(TransferStagedMsg)
        assert torch.equal(watched.inputs[0], torch.arange(1000))
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        again = await staged(encoder, "r2", seed=500)
        assert again.slot.offset == message.slot.offset
        assert torch.equal(watched.inputs[0][:500], torch.arange(500))


async def test_abort_while_reading_in_place_is_answered_after_the_step() -> None:
    """RELEASED comes when the thread has let go of the sender's memory, and nothing else after it."""
    async with open_service(Role.ENCODER) as encoder, open_service(Role.DENOISER) as denoiser:
        message = await staged(encoder)
        denoiser.worker.take(ready_in_place(encoder, message, "gate", num_inference_steps=1000))
        await denoiser.says(TransferStartedMsg)
        denoiser.worker.take(TransferAbortMsg("r1", 1))
        assert denoiser.said.empty()
        denoiser.gate.open.set()
        await denoiser.worker.wait_idle()
        said = [denoiser.said.get_nowait() for _ in range(denoiser.said.qsize())]
        assert said[-1] == TransferReleasedMsg("r1", 1)


class CopyingTransfers(DiffusionTransferManager):
    """A manager that reads other pools as one of an accelerator does: into memory of its own."""

    async def read_in_place_async(
        self, slot: Slot, manifest: TensorManifest, pool: PoolAddress, device: str
    ) -> InPlace:
        """Copy what the views show."""
        read = await super().read_in_place_async(slot, manifest, pool, device)
        return InPlace({name: value.clone() for name, value in read.tensors.items()}, 0.0, holds_slot=False)


async def test_a_copy_of_what_lies_elsewhere_lets_the_sender_go() -> None:
    """On an accelerator the input is copied: LOADED says at once that the sender's slot is read no more."""
    async with (
        open_service(Role.ENCODER) as encoder,
        open_service(Role.DENOISER, kind=CopyingTransfers) as denoiser,
    ):
        message = await staged(encoder)
        denoiser.worker.take(ready_in_place(encoder, message, "gate", num_inference_steps=1))
        await denoiser.says(TransferLoadedMsg)
        await denoiser.says(TransferStartedMsg)


async def test_a_sender_that_is_gone_cannot_be_read() -> None:
    """READY with a pool that is not there (any more) is answered with FAILED and the reason."""
    async with open_service(Role.ENCODER) as encoder, open_service(Role.DENOISER) as denoiser:
        request = ready_in_place(encoder, await staged(encoder), "count")
        gone = msgspec.structs.replace(encoder.transfers.address, segment="triptych-gone-1")
        denoiser.worker.take(msgspec.structs.replace(request, pool=gone))
        assert "triptych-gone-1" in (await denoiser.says(TransferFailedMsg)).error.message


class WatchedTransfers(DiffusionTransferManager):
    """A manager that notes what it is told of others."""

    def expect(self, key: Hashable, pool: PoolAddress) -> None:
        self.notes.append(("expect", key))
        super().expect(key, pool)

    def expected_over(self, key: Hashable) -> None:
        self.notes.append(("over", key))
        super().expected_over(key)

    def retire(self, slot_id: int, writer: PoolAddress | None = None) -> None:
        self.notes.append(("retire", writer and writer.segment))
        super().retire(slot_id, writer)

    def forget(self, address: PoolAddress) -> None:
        self.notes.append(("forget", address.segment))
        super().forget(address)

    @property
    def notes(self) -> list[tuple[str, object]]:
        return vars(self).setdefault("_notes", [])


async def test_a_write_is_expected_until_it_is_over() -> None:
    """EXPECT begins and READY or ABORT ends it, or the end of all; a pool that is gone is forgotten."""
    async with open_service(Role.DENOISER, kind=WatchedTransfers) as denoiser:
        other = msgspec.structs.replace(denoiser.transfers.address, segment="triptych-other-1")
        slot = denoiser.transfers.register_prealloc_as_receive(1, 512)[0]
        keys = [JobKey(name, 1) for name in ("ready", "aborted", "left")]
        for key in keys:
            denoiser.worker.take(TransferExpectMsg(key.request_id, 1, other, slot))
        denoiser.worker.take(ready(slot, EMPTY_MANIFEST, "count", "ready"))
        denoiser.worker.take(TransferAbortMsg("aborted", 1))
        denoiser.worker.take(TransferForgetMsg(other))
        await denoiser.worker.aclose()
        denoiser.transfers.release(slot.slot_id)
        assert denoiser.transfers.notes == [
            *(("expect", key) for key in keys),
            *(("over", key) for key in keys[:2]),
            ("forget", "triptych-other-1"),
            ("over", keys[2]),
        ]


async def test_a_slot_is_retired_until_its_writer_has_let_go() -> None:
    """The writer that EXPECT named is what an allocated slot with a lost writer waits for."""
    async with open_service(Role.DENOISER, kind=WatchedTransfers) as denoiser:
        other = msgspec.structs.replace(denoiser.transfers.address, segment="triptych-other-1")
        slot = allocated(denoiser, size=4096)
        denoiser.worker.take(TransferExpectMsg("r1", 1, other, slot))
        denoiser.worker.take(TransferAbortMsg("r1", 1, writer_lost=True))
        assert ("retire", "triptych-other-1") in denoiser.transfers.notes
        denoiser.retired_bytes = 4096


class HeldTransfers(DiffusionTransferManager):
    """A manager whose engine never finishes a write in time, and lets go when the test says."""

    let_go: Callable[[], None]

    async def push(self, *_args: object, **_options: object) -> float:
        """Take what the worker passes: slot, data_size, address, target, timeout_s, on_quiet."""
        *_, timeout_s, self.let_go = _args
        raise WriteOverdue("nothing moved", timeout_s)


async def test_a_push_that_is_overdue_is_answered_twice() -> None:
    """PUSH_FAILED after `timeout_s`, and again when the engine has let go; until then the staged bytes stay."""
    async with open_service(Role.ENCODER, kind=HeldTransfers) as encoder:
        request = push(await staged(encoder), encoder, Slot(0, 0, 8192))
        encoder.worker.take(msgspec.structs.replace(request, timeout_s=3.0))
        overdue = await encoder.says(TransferPushFailedMsg)
        assert (overdue.error.code, overdue.error.details["timeout_s"]) == ("write_overdue", 3.0)
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        assert encoder.free_bytes == POOL_BYTES - 8192
        encoder.transfers.let_go()
        assert (await encoder.says(TransferPushFailedMsg)).error.code == "transfer_error"
        await encoder.worker.wait_idle()
        assert encoder.free_bytes == POOL_BYTES


async def test_a_push_that_is_overdue_does_not_hold_up_the_end() -> None:
    """Closing the worker ends the wait for the engine."""
    async with open_service(Role.ENCODER, kind=HeldTransfers) as encoder:
        encoder.worker.take(push(await staged(encoder), encoder, Slot(0, 0, 8192)))
        await encoder.says(TransferPushFailedMsg)


async def test_the_next_input_loads_while_one_computes() -> None:
    """B is LOADED while A, whose compute the test holds, has not ended: prefetch."""
    async with open_service(Role.DENOISER) as denoiser:
        slots = denoiser.transfers.register_prealloc_as_receive(2, 4096)
        denoiser.worker.take(ready(slots[0], EMPTY_MANIFEST, "gate", "a", num_inference_steps=1))
        assert [await denoiser.said.get(), await denoiser.said.get()] == [
            TransferLoadedMsg("a", 1),
            TransferStartedMsg("a", 1),
        ]
        denoiser.worker.take(ready(slots[1], EMPTY_MANIFEST, "count", "b", seed=1))
        assert await denoiser.said.get() == TransferLoadedMsg("b", 1)
        denoiser.gate.open.set()
        ended = [(type(message), message.request_id) for message in [await denoiser.said.get() for _ in range(5)]]
        assert ended.index((TransferStagedMsg, "a")) < ended.index((TransferStagedMsg, "b"))
        for slot in slots:
            denoiser.transfers.release(slot.slot_id)


async def test_a_decoder_delivers_pictures() -> None:
    """DONE carries one PNG for each image, each with the seed that draws it alone."""
    async with open_service(Role.DECODER) as decoder:
        decoder.worker.take(ready(allocated(decoder), EMPTY_MANIFEST, "picture", num_images=2, seed=2**64 - 1))
        await decoder.says(TransferLoadedMsg)
        await decoder.says(TransferStartedMsg)
        await decoder.says(TransferProgressMsg)
        done = await decoder.says(TransferDoneMsg)
        assert [(media.media_type, media.seed) for media in done.media] == [
            ("image/png", 2**64 - 1),
            ("image/png", 0),
        ]
        assert [file[:4] for file in decoder.attachments] == [b"\x89PNG"] * 2


async def test_a_stage_that_fails_is_answered_with_the_reason() -> None:
    """FAILED says what was raised; the next request is served."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(work("fail"))
        await encoder.says(TransferStartedMsg)
        failed = await encoder.says(TransferFailedMsg)
        assert failed.error.message == "ValueError: no picture in it"
        await staged(encoder, "r2")


async def test_a_manifest_that_lies_is_refused_before_anything_is_read() -> None:
    """READY with a manifest larger than its slot is answered with FAILED."""
    async with open_service(Role.ENCODER) as encoder, open_service(Role.DENOISER) as denoiser:
        message = await staged(encoder)
        slot = denoiser.transfers.allocate_receive(message.manifest.data_size // 2)
        denoiser.worker.take(ready(slot, message.manifest, "count"))
        failed = await denoiser.says(TransferFailedMsg)
        assert failed.error.code == "manifest_mismatch"
        denoiser.transfers.release(slot.slot_id)


async def test_an_allocation_that_does_not_fit_is_refused_at_once() -> None:
    """No room now and no room ever are different answers."""
    async with open_service(Role.DENOISER) as denoiser:
        denoiser.worker.take(TransferAllocMsg("big", 1, POOL_BYTES + 1))
        assert (await denoiser.says(TransferAllocRefusedMsg)).error.code == "payload_too_large"
        denoiser.worker.take(TransferAllocMsg("first", 1, POOL_BYTES))
        await denoiser.says(TransferAllocatedMsg)
        denoiser.worker.take(TransferAllocMsg("second", 1, 1))
        assert (await denoiser.says(TransferAllocRefusedMsg)).error.code == "pool_exhausted"


async def test_output_waits_for_room_in_the_pool() -> None:
    """A full pool delays STAGED until something is released; nothing fails."""
    async with open_service(Role.ENCODER, pool_bytes=8192) as encoder:
        await staged(encoder, "first")
        encoder.worker.take(work("count", "second", seed=1000))
        await encoder.says(TransferStartedMsg)
        await encoder.says(TransferProgressMsg)
        encoder.worker.take(TransferReleaseMsg("first", 1))
        assert (await encoder.says(TransferStagedMsg)).request_id == "second"


async def test_a_push_to_nowhere_fails_with_the_reason() -> None:
    """The receiver's segment is gone: PUSH_FAILED, and the staged bytes stay."""
    async with open_service(Role.ENCODER) as encoder, open_service(Role.DENOISER) as denoiser:
        message = await staged(encoder)
        request = push(message, denoiser, Slot(0, 0, 8192))
        gone = msgspec.structs.replace(request.pool, segment="triptych-gone")
        encoder.worker.take(msgspec.structs.replace(request, pool=gone))
        assert (await encoder.says(TransferPushFailedMsg)).error.code == "transfer_error"
        assert encoder.free_bytes == POOL_BYTES - 8192


async def test_a_push_of_what_is_not_staged_fails() -> None:
    """A PUSH for an unknown request, or with another size than was staged, moves nothing."""
    async with open_service(Role.ENCODER) as encoder, open_service(Role.DENOISER) as denoiser:
        message = await staged(encoder)
        request = push(message, denoiser, Slot(0, 0, 8192))
        encoder.worker.take(msgspec.structs.replace(request, request_id="unknown"))
        await encoder.says(TransferPushFailedMsg)
        encoder.worker.take(msgspec.structs.replace(request, data_size=4096))
        await encoder.says(TransferPushFailedMsg)


@pytest.mark.parametrize("messages", [[], [TransferAllocMsg("r1", 1, 4096)]], ids=["nothing known", "allocated"])
async def test_abort_before_the_job_is_answered_at_once(messages: list[TransferAllocMsg]) -> None:
    """RELEASED comes whether or not anything was known; what was allocated is free."""
    async with open_service(Role.DENOISER) as denoiser:
        for message in messages:
            denoiser.worker.take(message)
            await denoiser.says(TransferAllocatedMsg)
        denoiser.worker.take(TransferAbortMsg("r1", 1))
        assert await denoiser.said.get() == TransferReleasedMsg("r1", 1)
        assert denoiser.free_bytes == POOL_BYTES


async def test_abort_before_the_task_has_begun_is_answered() -> None:
    """WORK and ABORT in one turn of the loop: only RELEASED is said."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(work("count"))
        encoder.worker.take(TransferAbortMsg("r1", 1))
        assert await encoder.said.get() == TransferReleasedMsg("r1", 1)


async def test_abort_while_computing_is_answered_after_the_step() -> None:
    """RELEASED comes when the thread has let go, and nothing else after it."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(work("gate", num_inference_steps=1000))
        await encoder.says(TransferStartedMsg)
        encoder.worker.take(TransferAbortMsg("r1", 1))
        assert encoder.said.empty()
        encoder.gate.open.set()
        await encoder.worker.wait_idle()
        said = [encoder.said.get_nowait() for _ in range(encoder.said.qsize())]
        assert said[-1] == TransferReleasedMsg("r1", 1)
        assert {type(message) for message in said[:-1]} <= {TransferProgressMsg}


async def test_abort_after_staging_drops_the_staged_bytes() -> None:
    """When ABORT crosses STAGED the output is dropped and RELEASED said."""
    async with open_service(Role.ENCODER) as encoder:
        await staged(encoder)
        encoder.worker.take(TransferAbortMsg("r1", 1))
        assert await encoder.said.get() == TransferReleasedMsg("r1", 1)
        assert encoder.free_bytes == POOL_BYTES


async def test_a_slot_whose_writer_is_lost_is_not_used_again() -> None:
    """ABORT with `writer_lost` retires a pre-allocated slot, and keeps an allocated one out of the pool."""
    async with open_service(Role.DENOISER) as denoiser:
        denoiser.worker.take(TransferAbortMsg("pre-allocated", 1, writer_lost=True))
        assert await denoiser.said.get() == TransferReleasedMsg("pre-allocated", 1, slot_retired=True)
        denoiser.worker.take(TransferAllocMsg("allocated", 1, 4096))
        await denoiser.says(TransferAllocatedMsg)
        denoiser.worker.take(TransferAbortMsg("allocated", 1, writer_lost=True))
        assert await denoiser.said.get() == TransferReleasedMsg("allocated", 1)
        assert denoiser.free_bytes == POOL_BYTES - 4096
        denoiser.retired_bytes = 4096


async def test_a_repeated_message_starts_nothing_twice() -> None:
    """The second WORK of an attempt that runs is dropped."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(work("gate", num_inference_steps=1))
        encoder.worker.take(work("gate", num_inference_steps=1))
        encoder.gate.open.set()
        kinds = [type(await encoder.said.get()) for _ in range(3)]
        assert kinds == [TransferStartedMsg, TransferProgressMsg, TransferStagedMsg]
        assert encoder.said.empty()
