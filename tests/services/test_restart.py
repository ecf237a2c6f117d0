"""A broker that restarts under its services: nothing is dropped, computed again or left unsaid."""

from msgspec.structs import replace

from tests.services.kit import context
from tests.services.scene import ACK, PEER, Scene, open_scene
from triptych.schemas.errors import MalformedMessage
from triptych.schemas.holdings import HeldJob, HeldOutput
from triptych.schemas.manifest import EMPTY_MANIFEST
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    ServiceMsg,
    TransferDoneMsg,
    TransferErrorMsg,
    TransferFailedMsg,
    TransferLoadedMsg,
    TransferReadyMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)
from triptych.services.incarnations import Forgotten

RUNNING = context("gate", num_inference_steps=1)


def as_given(held: HeldJob | HeldOutput) -> HeldJob | HeldOutput:
    """Return `held` with all its time left."""
    assert held.context.left_s <= 60.0
    return replace(held, context=replace(held.context, left_s=60.0))


async def busy(scene: Scene) -> TransferStagedMsg:
    """Have a service compute one request, with another staged; return what it said of that."""
    scene.tell(TransferWorkMsg("staged", 1, context("count")))
    message = await scene.hear(TransferStagedMsg)
    scene.tell(TransferWorkMsg("running", 2, RUNNING))
    await scene.hear(TransferStartedMsg)
    return message


async def release(scene: Scene, *requests: tuple[str, int]) -> None:
    for request_id, attempt in requests:
        scene.tell(TransferReleaseMsg(request_id, attempt))


async def test_it_registers_again_with_what_it_holds() -> None:
    """The same peer, incarnation and pool; what was computed before is not computed again, and what runs goes on."""
    async with open_scene() as scene:
        session = scene.start()
        first = await scene.hear(TransferRegisterMsg)
        scene.tell(ACK)
        staged = await busy(scene)
        again = await scene.restart()
        assert replace(again, jobs=(), outputs=()) == first
        assert [as_given(job) for job in again.jobs] == [HeldJob("running", 2, RUNNING, started=True)]
        assert [as_given(output) for output in again.outputs] == [
            HeldOutput("staged", 1, context("count"), staged.slot, staged.manifest, staged.timing, staged.scalar_fields)
        ]
        scene.tell(ACK)
        scene.gate.open.set()
        assert (await scene.hear(TransferStagedMsg)).request_id == "running"
        await release(scene, ("staged", 1), ("running", 2))
        await scene.leave(session)


async def test_what_happens_before_the_acknowledgement_is_said_after_it() -> None:
    """In order; meanwhile only heartbeats are said. What the registration covers is not said again."""
    async with open_scene(Role.DENOISER, receive_slots=1) as scene:
        session = scene.start()
        await scene.register()
        await busy(scene)
        await scene.restart()
        scene.tell(TransferReadyMsg("loads", 1, scene.slots[0], EMPTY_MANIFEST, context("fail")))
        scene.gate.open.set()
        assert await scene.quiet() == []
        scene.tell(ACK)
        said = [await scene.hear_next() for _ in range(4)]
        of_one = [type(message) for message in said if message.request_id == "loads"]
        assert of_one == [TransferLoadedMsg, TransferStartedMsg, TransferFailedMsg]
        assert [type(message) for message in said if message.request_id == "running"] == [TransferStagedMsg]
        await release(scene, ("staged", 1), ("running", 2))
        await scene.leave(session)


async def test_a_result_is_said_again_until_it_is_answered() -> None:
    """DONE with its pictures, first of all; RELEASE ends it."""
    async with open_scene(Role.DECODER) as scene:
        session = scene.start()
        await scene.register()
        scene.tell(TransferWorkMsg("r1", 1, context("picture", num_images=2)))
        done = await scene.hear(TransferDoneMsg)
        pictures = scene.attachments
        for _ in range(2):
            again = await scene.restart()
            assert [(job.request_id, job.started) for job in again.jobs] == [("r1", True)]
            scene.tell(ACK)
            assert await scene.hear_next() == done
            assert scene.attachments == pictures
        await release(scene, ("r1", 1))
        assert (await scene.restart()).jobs == ()
        scene.tell(ACK)
        assert await scene.quiet() == []
        await scene.leave(session)


async def test_a_broker_that_restarts_once_more_is_told_the_same_words() -> None:
    """Not each time that it answers a heartbeat of a stranger; what waited for the first one waits for the second."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        await busy(scene)
        first = await scene.restart()
        scene.gate.open.set()
        said: list[ServiceMsg] = []
        while not said:
            scene.tell(TransferRegisterAgainMsg())
            said += await scene.quiet()
        assert said == [first]
        scene.tell(ACK)
        assert (await scene.hear(TransferStagedMsg)).request_id == "running"
        await release(scene, ("staged", 1), ("running", 2))
        await scene.leave(session)


async def test_an_acknowledgement_that_comes_twice_is_no_harm() -> None:
    """The registration was said twice."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        await busy(scene)
        await scene.restart()
        scene.tell(ACK)
        scene.tell(ACK)
        scene.gate.open.set()
        assert (await scene.hear_next()).request_id == "running"
        assert await scene.quiet() == []
        await release(scene, ("staged", 1), ("running", 2))
        await scene.leave(session)


async def test_more_than_a_message_holds_is_dropped() -> None:
    """Where the registration would be too large to be taken, a new incarnation comes with nothing."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        for request_id in ("r1", "r2"):
            work = TransferWorkMsg(request_id, 1, context("count", negative_prompt="x" * 5 * 2**20))
            scene.link.send_nowait(PEER, work)
            await scene.hear(TransferStagedMsg)
        scene.tell(TransferRegisterAgainMsg())
        assert await session == Forgotten()


async def test_a_registration_that_cannot_be_read_costs_what_is_held() -> None:
    """Saying it again would not help: a new incarnation comes with nothing."""
    async with open_scene() as scene:
        session = scene.start()
        await scene.register()
        await busy(scene)
        await scene.restart()
        scene.tell(TransferErrorMsg(MalformedMessage("8388609 bytes").info()))
        scene.gate.open.set()
        assert await session == Forgotten()


async def test_the_first_registration_is_said_until_it_is_acknowledged() -> None:
    """A broker that asks for it before has not been told: there is nothing to tell beside it."""
    async with open_scene() as scene:
        session = scene.start()
        first = await scene.hear(TransferRegisterMsg)
        assert await scene.restart() == first
        scene.tell(ACK)
        await scene.registered.wait()
        await scene.leave(session)
