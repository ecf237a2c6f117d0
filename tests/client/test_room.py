"""A broker without room, and callers who wait for some."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from triptych.schemas.client import CancelMsg, ErrorMsg, SubmitMsg
from triptych.schemas.errors import Overloaded, RequestCancelled, TenantLimit

from .scripted import ScriptedBroker, connected

#: told by the broker, in seconds
SOON, LATER = 0.01, 3600.0


@pytest.mark.parametrize("full", [Overloaded(1024, SOON), TenantLimit("team-a", 8, SOON)])
async def test_who_waits_for_room_is_asked_for_until_there_is_some(broker: ScriptedBroker, full: Overloaded) -> None:
    """The same request, with what is left of its time."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox", wait_for_room=True, timeout_s=30.0))
        submits = [await broker.take(SubmitMsg)]
        for _ in range(3):
            broker.say(ErrorMsg(full.info(), submits[-1].request_id))
            submits.append(await broker.take(SubmitMsg))
        broker.say_done(submits[-1])
        await asking
    assert [replace(submit, timeout_s=30.0) for submit in submits] == [submits[0]] * 4
    timeouts = [submit.timeout_s or 0 for submit in submits]
    assert sorted(set(timeouts), reverse=True) == timeouts


@pytest.mark.parametrize("full", [Overloaded(1024, SOON), TenantLimit("team-a", 8, SOON)])
async def test_who_does_not_wait_is_told(broker: ScriptedBroker, full: Overloaded) -> None:
    """With the time to ask again after."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        submit = await broker.take(SubmitMsg)
        broker.say(ErrorMsg(full.info(), submit.request_id))
        with pytest.raises(type(full)) as caught:
            await asking
        assert vars(caught.value) == vars(full)
        assert await broker.rest(client) == []


async def test_nobody_waits_beyond_their_time(broker: ScriptedBroker) -> None:
    """Given room later than the request may take, it is told at once that there is none."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox", wait_for_room=True, timeout_s=LATER))
        submit = await broker.take(SubmitMsg)
        broker.say(ErrorMsg(Overloaded(1024, LATER).info(), submit.request_id))
        with pytest.raises(Overloaded):
            await asking


async def waiting(broker: ScriptedBroker, client: Any) -> asyncio.Task[Any]:
    """Return a request that waits for room for an hour."""
    asking = asyncio.create_task(client.generate("a fox", request_id="mine", wait_for_room=True))
    await broker.take(SubmitMsg)
    broker.say(ErrorMsg(Overloaded(1024, LATER).info(), "mine"))
    broker.forget("mine")
    await client.models()  # its answer comes after the error
    return asking


async def test_cancelling_ends_the_wait(broker: ScriptedBroker) -> None:
    """The broker has nothing to cancel."""
    async with connected(broker) as client:
        asking = await waiting(broker, client)
        client.cancel("mine")
        with pytest.raises(RequestCancelled):
            await asking
        assert await broker.rest(client) == []


async def test_leaving_ends_the_wait(broker: ScriptedBroker) -> None:
    """And gives the id back at once, since the broker never took it."""
    async with connected(broker) as client:
        asking = await waiting(broker, client)
        asking.cancel()
        await asyncio.wait([asking])
        again = asyncio.create_task(client.generate("a cat", request_id="mine"))
        broker.say_done(await broker.take(SubmitMsg))
        await again
        assert await broker.rest(client) == []


@pytest.mark.parametrize("how", ["cancel", "leave"])
async def test_who_does_not_wait_any_more_does_not_come_back(broker: ScriptedBroker, how: str) -> None:
    """Given another that waits for longer, the next that the broker is asked for is that one."""
    async with connected(broker) as client:
        left = asyncio.create_task(client.generate("a fox", request_id="left", wait_for_room=True))
        kept = asyncio.create_task(client.generate("a cat", request_id="kept", wait_for_room=True))
        for _ in (left, kept):
            name = (await broker.take(SubmitMsg)).request_id
            broker.say(ErrorMsg(Overloaded(1024, {"left": 0.2, "kept": 0.4}[name]).info(), name))
        await client.models()  # its answer comes after the errors
        if how == "cancel":
            client.cancel("left")
        else:
            left.cancel()
        await asyncio.wait([left])
        submit = await broker.take(SubmitMsg)
        assert submit.request_id == "kept"
        broker.say_done(submit)
        await kept


async def test_closing_the_client_ends_the_wait(broker: ScriptedBroker) -> None:
    """Like any other request's."""
    async with connected(broker) as client:
        asking = await waiting(broker, client)
    with pytest.raises(RequestCancelled):
        await asking


async def test_a_request_that_waits_for_room_is_not_asked_after(broker: ScriptedBroker) -> None:
    """The broker does not know it, and that is right so: PINGs go on, and do not bring it forward."""
    async with connected(broker, ping_interval_s=0.02) as client:
        asking = await waiting(broker, client)
        await broker.next_ping()
        assert ["mine" in (await broker.next_ping()).request_ids for _ in range(2)] == [False, False]
        client.cancel("mine")
        await asyncio.wait([asking])
        assert await broker.rest(client) == []


async def test_a_pong_that_crosses_the_refusal_does_not_bring_it_forward(broker: ScriptedBroker) -> None:
    """Given a PING that the refused request was named in."""
    broker.answers_pings = False
    async with connected(broker, ping_interval_s=0.02) as client:
        asking = asyncio.create_task(client.generate("a fox", request_id="mine", wait_for_room=True))
        await broker.take(SubmitMsg)
        ping = await broker.next_ping()
        broker.forget("mine")
        broker.say(ErrorMsg(Overloaded(1024, LATER).info(), "mine"))
        broker.say_pong(ping)
        await client.models()  # its answer comes after both
        client.cancel("mine")
        with pytest.raises(RequestCancelled):
            await asking
        assert await broker.rest(client) == []


async def test_a_request_that_was_cancelled_before_it_found_no_room_is_cancelled(broker: ScriptedBroker) -> None:
    """It does not wait any more."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox", request_id="mine", wait_for_room=True))
        await broker.take(SubmitMsg)
        client.cancel("mine")
        assert await broker.take(CancelMsg) == CancelMsg("mine")
        broker.say(ErrorMsg(Overloaded(1024, SOON).info(), "mine"))
        with pytest.raises(RequestCancelled):
            await asking
        assert await broker.rest(client) == []
