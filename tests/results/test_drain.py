"""Draining, in the test's own loop."""

import pytest

from tests.results.kit import LARGE, claim_of, open_holder, ticket_for
from tests.services.scene import open_scene
from triptych.schemas.transfer import TransferDrainedMsg, TransferDrainMsg, TransferLeaveMsg


@pytest.mark.parametrize("fetched", [True, False])
async def test_a_service_leaves_when_its_results_are_fetched_or_it_has_waited_long_enough(*, fetched: bool) -> None:
    """It keeps serving readers until then, and says how it went."""
    async with open_holder() as holder, open_scene(results=holder) as scene:
        session = scene.start(drain_s=10.0 if fetched else 0.05)
        await scene.register()
        ticket = await ticket_for(holder, LARGE)
        scene.stop.set()
        await scene.hear(TransferDrainMsg)
        scene.tell(TransferDrainedMsg())
        if fetched:
            assert not session.done()
            holder.end(claim_of(ticket))
        assert (await scene.hear(TransferLeaveMsg)).reason.startswith("drained" if fetched else "stopped with work")
        assert await session is None
