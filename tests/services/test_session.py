"""A service and its broker: a real ROUTER that says what the test wants."""

import pytest

from tests.services.kit import context
from tests.services.scene import ACK, PEER, POOL_BYTES, open_scene
from triptych.schemas.errors import MalformedMessage, VersionMismatch
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferErrorMsg,
    TransferHeartbeatMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferRegisterRefusedMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)
from triptych.services.incarnations import Forgotten


async def test_it_registers_until_it_is_acknowledged_then_sends_heartbeats() -> None:
    """REGISTER is repeated; after the ACK heartbeats come at the pace it asks for."""
    async with open_scene() as scene:
        session = scene.start()
        assert await scene.hear(TransferRegisterMsg) == await scene.hear(TransferRegisterMsg)
        scene.tell(ACK)
        await scene.hear(TransferHeartbeatMsg)
        await scene.hear(TransferHeartbeatMsg)
        assert scene.registered.is_set()
        await scene.leave(session)


async def test_heartbeats_go_on_while_the_compute_thread_hangs() -> None:
    """A stage of any length does not hold them up, and neither does the end of one that does not answer."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.tell(TransferWorkMsg("r1", 1, context("gate", num_inference_steps=1)))
        await scene.hear(TransferStartedMsg)
        for _ in range(5):
            assert (await scene.hear(TransferHeartbeatMsg)).jobs == 1
        scene.tell(TransferWorkMsg("r2", 1, context("gate", num_inference_steps=1)))
        scene.tell(TransferAbortMsg("r2", 1))
        await scene.hear(TransferReleasedMsg)
        for _ in range(5):
            await scene.hear(TransferHeartbeatMsg)
        scene.gate.open.set()
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferReleaseMsg("r1", 1))
        await scene.leave(session)


async def test_a_heartbeat_tells_how_much_there_is_to_do() -> None:
    """Jobs, outputs, free bytes, models, and how late the loop is at worst."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        assert (await scene.hear(TransferHeartbeatMsg)).loaded == ()
        scene.tell(TransferWorkMsg("r1", 1, context("count", seed=1000)))
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferWorkMsg("r2", 1, context("gate", num_inference_steps=1)))
        await scene.hear(TransferStartedMsg)
        beat = await scene.hear(TransferHeartbeatMsg)
        assert (beat.jobs, beat.staged, beat.free_bytes, beat.loaded) == (1, 1, POOL_BYTES - 8192, ("model",))
        assert beat.loop_lag_s >= 0
        scene.gate.open.set()
        await scene.hear(TransferStagedMsg)
        for request_id in ("r1", "r2"):
            scene.tell(TransferReleaseMsg(request_id, 1))
        await scene.leave(session)


async def test_a_refusal_ends_it_with_the_reason() -> None:
    """What the broker refused the registration with is raised."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.hear(TransferRegisterMsg)
        scene.tell(TransferRegisterRefusedMsg(VersionMismatch(3, 2).info()))
        with pytest.raises(VersionMismatch, match="speaks protocol version 3, the peer version 2"):
            await session


async def test_a_registration_that_is_no_message_ends_it_with_the_reason() -> None:
    """Saying it again would not help."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.hear(TransferRegisterMsg)
        scene.tell(TransferErrorMsg(MalformedMessage("capacity is too large").info()))
        with pytest.raises(MalformedMessage, match="capacity is too large"):
            await session


async def test_a_broker_for_which_it_is_gone_ends_the_incarnation() -> None:
    """REGISTER_AGAIN with a number drops all work, running and staged, and asks for an incarnation above it."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        scene.tell(TransferWorkMsg("staged", 1, context("count", seed=100)))
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferWorkMsg("running", 1, context("gate", num_inference_steps=100)))
        await scene.hear(TransferStartedMsg)
        scene.tell(TransferRegisterAgainMsg(exceed=7))
        scene.gate.open.set()
        assert await session == Forgotten(exceed=7)


async def test_stopping_before_the_broker_answers_ends_at_once() -> None:
    """There is nothing to drain, and nobody to tell."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.hear(TransferRegisterMsg)
        scene.stop.set()
        assert await session is None


@pytest.mark.parametrize("frames", [[b"nonsense"], [b"__transfer__", b"\xc1"], [b"__transfer__", b"\x91" * 10_000]])
async def test_garbage_from_the_broker_is_dropped(frames: list[bytes]) -> None:
    """The next message is taken."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        with pytest.raises(MalformedMessage):
            scene.link.codec.decode(frames)
        scene.link._socket.send_nowait([PEER, *frames])
        scene.tell(TransferErrorMsg(MalformedMessage("1 frames").info()))
        scene.tell(TransferWorkMsg("r1", 1, context("count")))
        await scene.hear(TransferStagedMsg)
        scene.tell(TransferReleaseMsg("r1", 1))
        await scene.leave(session)
