"""What a service does for a request that is tried again."""

import asyncio

import pytest

from tests.results.kit import LARGE, open_holder
from tests.services.kit import POOL_BYTES, open_service, push, staged, work
from triptych.schemas.errors import WriteOverdue
from triptych.schemas.memory import PoolAddress, Slot
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferProgressMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
)
from triptych.transport.tensors.manager import DiffusionTransferManager


class SlowTransfers(DiffusionTransferManager):
    """A manager whose pushes take as long as the test says, each told by the slot it goes to."""

    async def push(
        self, slot: Slot, data_size: int, address: PoolAddress, target: Slot, timeout_s: float, on_quiet: object
    ) -> float:
        await self.over(target).wait()
        return 0.5

    def over(self, target: Slot) -> asyncio.Event:
        return vars(self).setdefault("_over", {}).setdefault(target.slot_id, asyncio.Event())


HERE, THERE = Slot(0, 0, 8192), Slot(1, 8192, 8192)


async def test_an_output_is_pushed_again_while_an_older_push_winds_down() -> None:
    """The second receiver gets the same bytes for a later attempt; each push is answered under its own."""
    async with open_service(Role.ENCODER, kind=SlowTransfers) as encoder:
        message = await staged(encoder)
        encoder.worker.take(push(message, encoder, HERE, attempt=1))
        encoder.worker.take(push(message, encoder, THERE, attempt=2))
        encoder.transfers.over(THERE).set()
        assert await encoder.says(TransferPushedMsg) == TransferPushedMsg("r1", 2, 8192, 0.5)
        encoder.transfers.over(HERE).set()
        assert await encoder.says(TransferPushedMsg) == TransferPushedMsg("r1", 1, 8192, 0.5)


async def test_a_released_output_goes_when_the_last_of_its_pushes_is_over() -> None:
    """However many there are, and in whatever order they end."""
    async with open_service(Role.ENCODER, kind=SlowTransfers) as encoder:
        message = await staged(encoder)
        for attempt, target in ((1, HERE), (2, THERE)):
            encoder.worker.take(push(message, encoder, target, attempt))
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        encoder.transfers.over(THERE).set()
        await encoder.says(TransferPushedMsg)
        assert not encoder.worker.idle
        assert encoder.free_bytes == POOL_BYTES - 8192
        encoder.transfers.over(HERE).set()
        await encoder.says(TransferPushedMsg)
        await encoder.worker.wait_idle()
        assert encoder.free_bytes == POOL_BYTES


async def test_what_is_released_is_not_pushed_again() -> None:
    """Though an older push still reads it."""
    async with open_service(Role.ENCODER, kind=SlowTransfers) as encoder:
        message = await staged(encoder)
        encoder.worker.take(push(message, encoder, HERE))
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        encoder.worker.take(push(message, encoder, THERE, attempt=2))
        failed = await encoder.says(TransferPushFailedMsg)
        assert (failed.attempt, failed.error.code) == (2, "transfer_error")
        encoder.transfers.over(HERE).set()
        await encoder.says(TransferPushedMsg)


class OverdueTransfers(SlowTransfers):
    """A manager whose pushes are overdue at once, and end as the test says."""

    async def push(
        self, slot: Slot, data_size: int, address: PoolAddress, target: Slot, timeout_s: float, on_quiet: object
    ) -> float:
        assert callable(on_quiet)
        vars(self).setdefault("_quiet", {})[target.slot_id] = on_quiet
        raise WriteOverdue("nothing moved", timeout_s)

    def let_go(self, target: Slot) -> None:
        vars(self)["_quiet"][target.slot_id]()


async def test_a_push_to_a_lost_receiver_that_hangs_does_not_hold_up_the_next() -> None:
    """The output stays until both engines have let go."""
    async with open_service(Role.ENCODER, kind=OverdueTransfers) as encoder:
        message = await staged(encoder)
        for attempt, target in ((1, HERE), (2, THERE)):
            encoder.worker.take(push(message, encoder, target, attempt))
            assert (await encoder.says(TransferPushFailedMsg)).attempt == attempt
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        for attempt, target in ((2, THERE), (1, HERE)):
            assert encoder.free_bytes == POOL_BYTES - 8192
            encoder.transfers.let_go(target)
            assert (await encoder.says(TransferPushFailedMsg)).attempt == attempt
        await encoder.worker.wait_idle()


@pytest.mark.parametrize("attempt", [2, 3])
async def test_an_attempt_is_given_while_an_older_one_winds_down(attempt: int) -> None:
    """The older one is answered with RELEASED when its step is over, the newer one computes; they are told apart."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(work("gate", num_inference_steps=1000))
        await encoder.says(TransferStartedMsg)
        encoder.worker.take(TransferAbortMsg("r1", 1))
        encoder.worker.take(work("count", attempt=attempt, seed=1000))
        assert encoder.said.empty()
        encoder.gate.open.set()
        said = [await encoder.said.get() for _ in range(4)]
        assert TransferReleasedMsg("r1", 1) in said
        assert [(type(message), message.attempt) for message in said if message != TransferReleasedMsg("r1", 1)] == [
            (TransferStartedMsg, attempt),
            (TransferProgressMsg, attempt),
            (TransferStagedMsg, attempt),
        ]
        encoder.worker.take(TransferReleaseMsg("r1", 1))
        assert encoder.free_bytes == POOL_BYTES - 8192
        encoder.worker.take(TransferReleaseMsg("r1", attempt))
        assert encoder.free_bytes == POOL_BYTES


async def test_a_result_that_is_withdrawn_late_takes_no_other_along() -> None:
    """An attempt's result that has been replaced by a later one's is not the one that goes."""
    async with open_holder() as holder:
        older = await holder.offer("r1", (LARGE,))
        newer = await holder.offer("r1", (LARGE,))
        assert older is not None
        assert newer is not None
        holder.withdraw("r1", older)
        assert len(holder.outbox) == 1
        holder.withdraw("r1", newer)
        assert len(holder.outbox) == 0
