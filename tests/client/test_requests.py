"""What becomes of requests."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from triptych.client import (
    Client,
    Event,
    Finished,
    Image,
    Queued,
    Result,
    Retrying,
    StageFinished,
    StageStarted,
    StepDone,
)
from triptych.schemas.client import (
    CancelMsg,
    ErrorMsg,
    ProgressMsg,
    QueuedMsg,
    ResultMsg,
    RetryingMsg,
    StageFinishedMsg,
    StageStartedMsg,
    SubmitMsg,
)
from triptych.schemas.errors import (
    InvalidRequest,
    MalformedMessage,
    Overloaded,
    PayloadTooLarge,
    RequestCancelled,
)
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.states import RequestState
from triptych.schemas.transfer import MediaInfo

from .scripted import LIMITS, STAGES, TRANSFERS, ScriptedBroker, connected


async def test_generate_returns_the_pictures_and_where_the_time_went(broker: ScriptedBroker) -> None:
    """What was asked reaches the broker, and what it answers comes back whole."""
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(client.generate("a fox", seed=5, num_inference_steps=8, timeout_s=30.0))
        submit = await broker.take(SubmitMsg)
        assert submit == SubmitMsg(submit.request_id, SamplingParams("a fox", seed=5, num_inference_steps=8), 30.0)
        broker.say_done(submit)
    image = Image(b"a picture", "image/png", 64, 64, 5)
    assert asked.result() == Result(submit.request_id, (image,), 5, STAGES, TRANSFERS, 1.5)


async def test_stream_yields_what_happens_in_order(broker: ScriptedBroker) -> None:
    """Each message of the broker is one typed event, and the result is the last."""
    events: list[Event] = []

    async def collect() -> None:
        async for event in client.stream("a fox", seed=5):
            events.append(event)  # noqa: PERF401  (what came before a failure is to be seen)

    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(collect())
        submit = await broker.take(SubmitMsg)
        name = submit.request_id
        broker.say(QueuedMsg(name, 3, (Role.DECODER,)))
        broker.say(StageStartedMsg(name, Role.DENOISER, "denoiser-0"))
        broker.say(ProgressMsg(name, Role.DENOISER, 1, 20))
        broker.say(RetryingMsg(name, 2, Role.DENOISER, "denoiser-0 was lost"))
        broker.say(StageFinishedMsg(name, STAGES[1]))
        broker.say_done(submit)
    finished = events.pop()
    assert isinstance(finished, Finished)
    assert events == [
        Queued(name, 3, (Role.DECODER,)),
        StageStarted(name, Role.DENOISER, "denoiser-0"),
        StepDone(name, Role.DENOISER, 1, 20),
        Retrying(name, 2, Role.DENOISER, "denoiser-0 was lost"),
        StageFinished(name, STAGES[1]),
    ]


async def test_without_a_seed_each_request_gets_its_own_and_tells_it(broker: ScriptedBroker) -> None:
    """A picture that pleases can be drawn again."""
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(client.generate("a fox", seed=None)), tasks.create_task(client.generate("a fox"))]
        submits = [await broker.take(SubmitMsg) for _ in asked]
        for submit in submits:
            broker.say_done(submit)
    assert [task.result().seed for task in asked] == [submit.params.seed for submit in submits]
    assert submits[0].params.seed != submits[1].params.seed


async def test_many_requests_share_one_client(broker: ScriptedBroker) -> None:
    """Answers in another order find the request they belong to."""
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(client.generate(f"fox {number}", seed=number)) for number in range(100)]
        submits = [await broker.take(SubmitMsg) for _ in asked]
        for submit in reversed(submits):
            broker.say_done(submit, submit.params.prompt.encode())
    assert [task.result().images[0].data for task in asked] == [b"fox %d" % number for number in range(100)]


@pytest.mark.parametrize("prompt", ["", "   ", "x" * 100_000, "\ud800", 7, None])
async def test_a_bad_prompt_is_refused_before_it_is_sent(broker: ScriptedBroker, prompt: Any) -> None:
    """Whatever is passed as a prompt, the answer is the typed error."""
    async with connected(broker) as client:
        with pytest.raises(InvalidRequest, match="prompt is "):
            await client.generate(prompt)


async def test_the_pipelines_limits_are_asked_again_before_they_refuse(broker: ScriptedBroker) -> None:
    """A client that lives longer than a pipeline does not refuse by old limits, but it does by the new."""
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        broker.limits = replace(LIMITS, max_size=512)
        tasks.create_task(client.generate("a fox", width=256, height=256))
        broker.say_done(await broker.take(SubmitMsg))
        broker.limits = LIMITS
        with pytest.raises(InvalidRequest, match="width is 1024; allowed: a whole number from 8 to 128"):
            await client.generate("a fox", width=1024)


async def test_the_brokers_error_is_raised_as_its_type(broker: ScriptedBroker) -> None:
    """Fields travel with the error."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        submit = await broker.take(SubmitMsg)
        broker.say(ErrorMsg(Overloaded(1024, 2.5).info(), submit.request_id))
        with pytest.raises(Overloaded, match=r"ask again in 2\.5 s") as caught:
            await asking
        assert (caught.value.queued, caught.value.retry_after_s) == (1024, 2.5)


async def test_cancel_asks_the_broker_and_the_waiter_learns_it(broker: ScriptedBroker) -> None:
    """`cancel` by id; the broker's answer ends the request."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox", request_id="mine"))
        await broker.take(SubmitMsg)
        client.cancel("mine")
        assert await broker.take(CancelMsg) == CancelMsg("mine")
        broker.say(ErrorMsg(RequestCancelled("client").info(), "mine", RequestState.CANCELLED))
        with pytest.raises(RequestCancelled):
            await asking


async def test_an_id_that_is_in_flight_is_refused(broker: ScriptedBroker) -> None:
    """Two requests of one name could not be told apart."""
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.generate("a fox", request_id="mine"))
        submit = await broker.take(SubmitMsg)
        with pytest.raises(InvalidRequest, match="request_id is 'mine'; allowed: one that is not in flight"):
            await client.generate("a cat", request_id="mine")
        broker.say_done(submit)


async def test_cancelling_generate_cancels_the_request(broker: ScriptedBroker) -> None:
    """Nobody waits any more, so nobody shall compute."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        submit = await broker.take(SubmitMsg)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await broker.take(CancelMsg) == CancelMsg(submit.request_id)


@pytest.mark.parametrize("leave", ["break", "aclose", "raise"])
async def test_leaving_the_stream_early_cancels_the_request(broker: ScriptedBroker, leave: str) -> None:
    """However the loop is left."""

    async def watch() -> None:
        async for event in client.stream("a fox", request_id="mine"):
            assert isinstance(event, Queued)
            if leave == "raise":
                raise LookupError
            break

    async def watch_and_close() -> None:
        async with aclosing(client.stream("a fox", request_id="mine")) as events:
            await anext(events)

    async with connected(broker) as client:
        watching = asyncio.create_task(watch_and_close() if leave == "aclose" else watch())
        await broker.take(SubmitMsg)
        broker.say(QueuedMsg("mine", 0))
        assert await broker.take(CancelMsg) == CancelMsg("mine")
        await asyncio.wait([watching])
        assert isinstance(watching.exception(), LookupError) == (leave == "raise")


async def test_a_finished_request_is_not_cancelled(broker: ScriptedBroker) -> None:
    """The next thing the broker hears is the next request."""
    async with connected(broker) as client:
        for _ in range(2):
            asking = asyncio.create_task(client.generate("a fox"))
            broker.say_done(await broker.take(SubmitMsg))
            await asking


async def test_closing_the_client_cancels_what_is_in_flight(broker: ScriptedBroker) -> None:
    """The broker is told before the link closes, and the waiter gets an error, not silence."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        submit = await broker.take(SubmitMsg)
    assert await broker.take(CancelMsg) == CancelMsg(submit.request_id)
    with pytest.raises(RequestCancelled):
        await asking


async def test_a_result_without_its_bytes_is_an_error(broker: ScriptedBroker) -> None:
    """The request ends, with a word about what is missing."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        submit = await broker.take(SubmitMsg)
        media = MediaInfo("image/png", 64, 64, 0)
        broker.say(ResultMsg(submit.request_id, (media, media), (), (), 0.0), (b"one",))
        with pytest.raises(MalformedMessage, match="names 2 media and carries 1"):
            await asking


async def test_an_id_may_be_used_again_only_when_the_broker_has_told_its_end(broker: ScriptedBroker) -> None:
    """Given a request that was left, its id is refused until its RequestCancelled came: that is not the next one's."""
    cancelled = ErrorMsg(RequestCancelled("client").info(), "mine", RequestState.CANCELLED)
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox", request_id="mine"))
        await broker.take(SubmitMsg)
        asking.cancel()
        await asyncio.wait([asking])
        assert await broker.take(CancelMsg) == CancelMsg("mine")
        with pytest.raises(InvalidRequest, match="request_id is 'mine'; allowed: one that is not in flight"):
            await client.generate("a cat", request_id="mine")
        broker.say(cancelled)
        other = asyncio.create_task(client.generate("a dog"))
        broker.say_done(await broker.take(SubmitMsg))
        await other
        again = asyncio.create_task(client.generate("a cat", request_id="mine"))
        broker.say_done(await broker.take(SubmitMsg))
        assert (await again).request_id == "mine"


async def test_an_id_may_be_used_again_as_soon_as_its_request_ended(broker: ScriptedBroker) -> None:
    """Given a stream that has its end and is not left yet, leaving it does not touch the next one of the name."""
    async with connected(broker) as client, aclosing(client.stream("a fox", request_id="mine")) as first:
        ending = asyncio.create_task(anext(first))
        broker.say_done(await broker.take(SubmitMsg))
        assert isinstance(await ending, Finished)
        again = asyncio.create_task(client.generate("a cat", request_id="mine"))
        submit = await broker.take(SubmitMsg)
        await first.aclose()
        broker.say_done(submit)
        assert (await again).request_id == "mine"
        assert await broker.rest(client) == []


@pytest.mark.parametrize("request_id", [7, b"mine", ["mine"], "", "x" * 65, "\ud800", "a\nb"])
async def test_what_is_no_request_id_is_refused(broker: ScriptedBroker, request_id: Any) -> None:
    """Given anything else than 1 to 64 printable ASCII characters, asking and cancelling name the field."""
    async with connected(broker) as client:
        with pytest.raises(InvalidRequest, match=r"request_id is .*; allowed: 1 to 64 printable ASCII characters"):
            await client.generate("a fox", request_id=request_id)
        with pytest.raises(InvalidRequest, match="request_id is "):
            client.cancel(request_id)


@pytest.mark.parametrize("nbytes", [1001, 2 * 2**20])
async def test_a_result_that_is_too_large_for_the_client_is_said(broker: ScriptedBroker, nbytes: int) -> None:
    """Given a result above `max_result_bytes`, the request ends at once with that name; the link stays."""
    broker.limits = LIMITS
    async with Client(broker.endpoint, max_result_bytes=1000) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        broker.say_done(await broker.take(SubmitMsg), bytes(nbytes))
        with pytest.raises(PayloadTooLarge, match=f"{nbytes} bytes do not fit into 1000; raise max_result_bytes"):
            await asking
        asking = asyncio.create_task(client.generate("a fox"))
        broker.say_done(await broker.take(SubmitMsg), bytes(1000))
        assert len((await asking).images[0].data) == 1000
