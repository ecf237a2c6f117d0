"""Which models there are, and what they allow."""

import asyncio

import pytest
from msgspec.structs import replace

from triptych.schemas.client import SubmitMsg
from triptych.schemas.errors import InvalidRequest

from .scripted import LIMITS, ScriptedBroker, connected

WIDE = replace(LIMITS, max_size=512)


async def test_models_are_those_that_are_served_now(broker: ScriptedBroker) -> None:
    """The broker is asked each time."""
    async with connected(broker) as client:
        assert await client.models() == {}
        broker.models = {"small": LIMITS, "wide": WIDE}
        assert await client.models() == {"small": LIMITS, "wide": WIDE}


async def test_parameters_are_checked_by_the_limits_of_the_model_they_are_for(broker: ScriptedBroker) -> None:
    """What one model refuses, before it is sent, another draws."""
    broker.models = {"small": LIMITS, "wide": WIDE}
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        for options in ({}, {"model": "small"}):
            with pytest.raises(InvalidRequest, match="width is 512; allowed: a whole number from 8 to 128"):
                await client.generate("a fox", width=512, **options)
        tasks.create_task(client.generate("a fox", width=512, model="wide"))
        submit = await broker.take(SubmitMsg)
        broker.say_done(submit)
    assert submit.model == "wide"


async def test_a_model_that_came_since_is_asked_for_before_its_limits_refuse(broker: ScriptedBroker) -> None:
    """What no pipeline allows by default, one that registered meanwhile may."""
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        broker.models = {"long": replace(LIMITS, max_inference_steps=5000)}
        tasks.create_task(client.generate("a fox", num_inference_steps=2000, model="long"))
        broker.say_done(await broker.take(SubmitMsg))


async def test_whether_a_model_exists_is_the_brokers_to_say(broker: ScriptedBroker) -> None:
    """It may be about to start: the client asks for it in any case."""
    async with connected(broker) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.generate("a fox", model="tomorrow"))
        submit = await broker.take(SubmitMsg)
        broker.say_done(submit)
    assert submit.model == "tomorrow"
