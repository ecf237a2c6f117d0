"""How a service leaves, told to stop."""

import asyncio

import pytest

from tests.services.kit import context
from tests.services.scene import ACK, Scene, open_scene
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    TransferDoneMsg,
    TransferDrainedMsg,
    TransferDrainMsg,
    TransferHeartbeatMsg,
    TransferLeaveMsg,
    TransferRegisterAckMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)
from triptych.services.incarnations import Forgotten


async def stays(scene: Scene, session: asyncio.Task[Forgotten | None]) -> bool:
    """Return whether it says nothing but heartbeats."""
    return not await scene.quiet() and not session.done()


async def test_work_that_crosses_drain_is_done() -> None:
    """Nothing runs when it is told to stop, but work is on its way: it leaves only when the broker says so."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.stop.set()
        await scene.hear(TransferDrainMsg)
        assert await stays(scene, session)
        scene.tell(TransferWorkMsg("r1", 1, context("count")))
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferReleaseMsg("r1", 1))
        assert await stays(scene, session)
        scene.tell(TransferDrainedMsg())
        assert (await scene.hear(TransferLeaveMsg)).reason == "drained"
        assert await session is None


async def test_a_result_without_an_answer_holds_it_up_no_longer_than_the_broker_wants() -> None:
    """DONE is not RELEASEd; DRAINED says that nobody needs it."""
    async with open_scene(Role.DECODER) as scene:
        session = scene.start()
        await scene.register()
        scene.tell(TransferWorkMsg("r1", 1, context("picture", num_images=1)))
        await scene.hear(TransferDoneMsg)
        await scene.leave(session)


async def test_draining_has_a_limit() -> None:
    """Work that is not over by then is dropped, and the broker told."""
    async with open_scene() as scene:
        session = scene.start(drain_s=0.01)
        await scene.register()
        scene.tell(TransferWorkMsg("r1", 1, context("gate", num_inference_steps=100)))
        await scene.hear(TransferStartedMsg)
        scene.stop.set()
        assert "unfinished" in (await scene.hear(TransferLeaveMsg)).reason
        scene.gate.open.set()
        assert await session is None


async def test_a_broker_that_restarts_is_asked_again() -> None:
    """What the one before has answered, or not, does not count: the new one has not promised anything."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.stop.set()
        await scene.hear(TransferDrainMsg)
        await scene.restart()
        scene.tell(ACK)
        await scene.hear(TransferDrainMsg)
        assert await stays(scene, session)
        scene.tell(TransferDrainedMsg())
        assert (await scene.hear(TransferLeaveMsg)).reason == "drained"
        assert await session is None


async def test_nobody_waits_for_a_broker_that_is_gone() -> None:
    """A service that holds nothing leaves when the broker was silent for the lease, long before the limit."""
    async with open_scene() as scene:
        session = scene.start(drain_s=3600.0)
        await scene.register(TransferRegisterAckMsg(PROTOCOL_VERSION, heartbeat_s=0.01, lease_s=0.05))
        await scene.hear(TransferHeartbeatMsg)
        scene.stop.set()
        await scene.hear(TransferLeaveMsg)
        assert await session is None


@pytest.mark.parametrize("released", [True, False])
async def test_what_is_held_is_worth_waiting_for_though_the_broker_is_gone(*, released: bool) -> None:
    """It may come back before the limit, and want what was staged."""
    async with open_scene() as scene:
        session = scene.start(drain_s=3600.0)
        await scene.register(TransferRegisterAckMsg(PROTOCOL_VERSION, heartbeat_s=0.01, lease_s=0.05))
        scene.tell(TransferWorkMsg("r1", 1, context("count")))
        await scene.hear(TransferStagedMsg)
        scene.stop.set()
        for _ in range(10):
            await scene.hear(TransferHeartbeatMsg)
        assert not session.done()
        if released:
            scene.tell(TransferReleaseMsg("r1", 1))
        else:
            scene.tell(TransferDrainedMsg())
        assert (await scene.hear(TransferLeaveMsg)).reason == "drained"
        assert await session is None
