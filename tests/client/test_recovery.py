"""Requests that the broker does not know any more, because it restarted."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from triptych.client import Client, Event, Finished, Queued, StageStarted
from triptych.client.keepalive import MAX_PING_IDS, Pings
from triptych.client.requests import MAX_RECOVERIES
from triptych.schemas.client import CancelMsg, ErrorMsg, PongMsg, QueuedMsg, StageStartedMsg, SubmitMsg
from triptych.schemas.errors import InvalidRequest, Overloaded, RequestCancelled, RequestFailed, RequestLost
from triptych.schemas.roles import Role
from triptych.schemas.states import RequestState

from .scripted import ScriptedBroker, connected, scripted_broker

SOON_S = 0.02


async def asked(broker: ScriptedBroker, client: Client, **options: Any) -> tuple[asyncio.Task[list[Event]], SubmitMsg]:
    """Return the events of a request to come, and the request as the broker takes it."""

    async def collect() -> list[Event]:
        return [event async for event in client.stream("a fox", **options)]

    collecting = asyncio.create_task(collect())
    return collecting, await broker.take(SubmitMsg)


async def test_a_forgotten_request_is_submitted_again_with_what_is_left_of_its_time(broker: ScriptedBroker) -> None:
    """The same in all else, its id and its seed among it; another request is not touched."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        fox, submit = await asked(broker, client, timeout_s=30.0, tenant="team-a", priority="low")
        cat, other = await asked(broker, client)
        broker.forget(submit.request_id)
        again = await broker.take(SubmitMsg)
        assert replace(again, timeout_s=30.0) == submit
        assert again.timeout_s is not None
        assert 0 < again.timeout_s < 30.0
        broker.say_done(again)
        broker.say_done(other)
        assert [type(event) for event in (*await fox, *await cat)] == [Finished, Finished]
        assert await broker.rest(client) == []


async def test_a_request_without_a_timeout_of_its_own_gets_the_brokers_again(broker: ScriptedBroker) -> None:
    """The client does not know what the broker's is."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, submit = await asked(broker, client)
        broker.forget(submit.request_id)
        assert await broker.take(SubmitMsg) == submit
        broker.say_done(submit)
        await asking


async def test_what_happens_again_is_told_again_and_the_end_once(broker: ScriptedBroker) -> None:
    """Events follow the broker's word, also back to the beginning."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, submit = await asked(broker, client)
        name = submit.request_id
        broker.say(QueuedMsg(name, 3))
        broker.say(StageStartedMsg(name, Role.ENCODER, "encoder-0"))
        broker.forget(name)
        await broker.take(SubmitMsg)
        broker.say(QueuedMsg(name, 0))
        broker.say(StageStartedMsg(name, Role.ENCODER, "encoder-1"))
        broker.say_done(submit)
        broker.say_done(submit)
        broker.say(ErrorMsg(RequestFailed(["late"]).info(), name, RequestState.FAILED))
        *events, end = await asking
    assert isinstance(end, Finished)
    assert events == [
        Queued(name, 3, ()),
        StageStarted(name, Role.ENCODER, "encoder-0"),
        Queued(name, 0, ()),
        StageStarted(name, Role.ENCODER, "encoder-1"),
    ]


async def test_a_new_broker_is_asked_for_what_only_the_old_one_knew() -> None:
    """SIGKILL for the broker, a new one on the same port: the caller sees nothing but the picture."""
    async with scripted_broker() as first, connected(first, ping_interval_s=10 * SOON_S) as client:
        asking, submit = await asked(first, client)
        endpoint = first.endpoint
        await first.link.aclose()
        async with scripted_broker(endpoint) as second:
            assert await second.take(SubmitMsg) == submit
            second.say_done(submit)
            assert [type(event) for event in await asking] == [Finished]


async def test_what_a_new_broker_took_up_goes_on() -> None:
    """A service held the request: the new broker knows it from there, and nothing is submitted again."""
    async with scripted_broker() as first, connected(first, ping_interval_s=10 * SOON_S) as client:
        asking, submit = await asked(first, client)
        endpoint = first.endpoint
        await first.link.aclose()
        async with scripted_broker(endpoint) as second:
            second.known.add(submit.request_id)
            await second.next_ping()
            second.say(StageStartedMsg(submit.request_id, Role.DECODER, "decoder-0"))
            second.say_done(submit)
            assert [type(event) for event in await asking] == [StageStarted, Finished]
            assert await second.rest(client) == []


async def test_a_request_that_is_forgotten_time_and_again_is_lost(broker: ScriptedBroker) -> None:
    """One that takes each broker down with it must stop some time."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, submit = await asked(broker, client, request_id="mine")
        for _ in range(MAX_RECOVERIES):
            broker.forget("mine")
            assert await broker.take(SubmitMsg) == submit
        broker.forget("mine")
        with pytest.raises(RequestLost, match="does not know request mine any more; submit it again"):
            await asking
        assert await broker.rest(client) == []


async def test_a_request_whose_time_is_over_is_lost(broker: ScriptedBroker) -> None:
    """It would only time out."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, submit = await asked(broker, client, timeout_s=SOON_S / 10)
        broker.forget(submit.request_id)
        with pytest.raises(RequestLost):
            await asking
        assert await broker.rest(client) == []


async def test_a_request_that_the_broker_remembers_as_ended_is_lost(broker: ScriptedBroker) -> None:
    """Its end did not arrive and cannot be told again: not an id that the caller chose badly."""
    used = InvalidRequest("request_id", "mine", "an id that was not used before")
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, _ = await asked(broker, client, request_id="mine")
        broker.forget("mine")
        await broker.take(SubmitMsg)
        broker.say(ErrorMsg(used.info(), "mine"))
        with pytest.raises(RequestLost):
            await asking


async def test_an_id_that_the_caller_chose_badly_is_said(broker: ScriptedBroker) -> None:
    """The broker knows the id from another request: that is the caller's to correct."""
    used = InvalidRequest("request_id", "mine", "an id that was not used before")
    async with connected(broker) as client:
        asking, _ = await asked(broker, client, request_id="mine")
        broker.say(ErrorMsg(used.info(), "mine"))
        with pytest.raises(InvalidRequest, match=r"request_id is .*; allowed: an id that was not used before"):
            await asking


async def test_a_broker_without_room_for_what_it_forgot_says_so(broker: ScriptedBroker) -> None:
    """The caller may ask again later, as for any request."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, submit = await asked(broker, client)
        broker.forget(submit.request_id)
        await broker.take(SubmitMsg)
        broker.say(ErrorMsg(Overloaded(7, 2.5).info(), submit.request_id))
        with pytest.raises(Overloaded):
            await asking


# ------------------------------------------------------------------------------------------ old answers


async def test_an_old_pong_says_nothing_of_what_was_submitted_since(broker: ScriptedBroker) -> None:
    """Given two PINGs that a forgetful broker answers late, the request is submitted again once."""
    broker.answers_pings = False
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, submit = await asked(broker, client)
        broker.forget(submit.request_id)
        first, second = await broker.next_ping(), await broker.next_ping()
        broker.say_pong(first)
        assert await broker.take(SubmitMsg) == submit
        broker.forget(submit.request_id)
        broker.say_pong(second)  # sent before the request was submitted again
        broker.known.add(submit.request_id)
        broker.say_pong(await broker.next_ping())
        broker.say_done(submit)
        await asking
        assert await broker.rest(client) == []


async def test_an_old_pong_says_nothing_of_the_next_request_of_that_name(broker: ScriptedBroker) -> None:
    """Given a PING about a request that ended meanwhile, its id may be in use again."""
    broker.answers_pings = False
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, submit = await asked(broker, client, request_id="mine")
        ping = await broker.next_ping()
        broker.say_done(submit)
        await asking
        again, submit = await asked(broker, client, request_id="mine")
        broker.forget("mine")
        broker.say_pong(ping)
        broker.say_done(submit)
        await again
        assert await broker.rest(client) == []


async def test_a_pong_that_answers_no_ping_ends_nothing(broker: ScriptedBroker) -> None:
    """Nor does one with a strange number."""
    async with connected(broker) as client:
        asking, submit = await asked(broker, client)
        broker.say(PongMsg((submit.request_id,)))
        broker.say(PongMsg((submit.request_id, "ping/7")))
        broker.say_done(submit)
        await asking
        assert await broker.rest(client) == []


@pytest.mark.parametrize("count", [0, 1, MAX_PING_IDS - 1, MAX_PING_IDS, 3 * MAX_PING_IDS])
def test_pings_name_every_request_once_and_can_be_told_apart(count: int) -> None:
    """However many there are; each PONG finds its PING."""
    names = [str(number) for number in range(count)]
    pings = Pings()
    made = list(pings.make(names))
    assert [name for ping in made for name in ping.request_ids[1:]] == names
    assert max(len(ping.request_ids) for ping in made) <= MAX_PING_IDS
    assert [pings.number_of(PongMsg(ping.request_ids)) for ping in made] == list(range(1, len(made) + 1))
    assert [Pings().number_of(PongMsg(ping.request_ids)) for ping in made] == [0] * len(made)


# ------------------------------------------------------------------------------------------ cancelled meanwhile


async def test_what_was_cancelled_and_forgotten_is_cancelled(broker: ScriptedBroker) -> None:
    """A broker that restarted does not know what to cancel: nothing is submitted again for that."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, _ = await asked(broker, client, request_id="mine")
        broker.forget("mine")
        client.cancel("mine")
        with pytest.raises(RequestCancelled):
            await asking
        assert set(await broker.rest(client)) == {CancelMsg("mine")}


async def test_cancelling_is_said_again_until_it_is_answered() -> None:
    """The broker dies with the CANCEL unread; the new one took the request up, and is told, too."""
    async with scripted_broker() as first, connected(first, ping_interval_s=10 * SOON_S) as client:
        asking, _ = await asked(first, client, request_id="mine")
        endpoint = first.endpoint
        client.cancel("mine")
        await first.take(CancelMsg)
        await first.link.aclose()
        async with scripted_broker(endpoint) as second:
            second.known.add("mine")
            await second.take(CancelMsg)
            second.say(ErrorMsg(RequestCancelled("client").info(), "mine", RequestState.CANCELLED))
            with pytest.raises(RequestCancelled):
                await asking


async def test_leaving_is_said_again_until_it_is_answered() -> None:
    """Nobody waits any more, so nobody shall compute, whichever broker is there."""
    async with scripted_broker() as first, connected(first, ping_interval_s=10 * SOON_S) as client:
        asking, _ = await asked(first, client, request_id="mine")
        endpoint = first.endpoint
        asking.cancel()
        await first.take(CancelMsg)
        await first.link.aclose()
        async with scripted_broker(endpoint) as second:
            second.known.add("mine")
            await second.take(CancelMsg)
            assert asking.cancelled()


async def test_a_left_request_that_the_broker_forgot_gives_its_id_back(broker: ScriptedBroker) -> None:
    """PONG tells that nothing will come any more."""
    broker.answers_pings = False
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, _ = await asked(broker, client, request_id="mine")
        asking.cancel()
        await broker.take(CancelMsg)
        broker.forget("mine")
        broker.say_pong(await broker.next_ping())
        await client.models()  # its answer comes after the PONG
        broker.answers_pings = True
        again = asyncio.create_task(client.generate("a cat", request_id="mine"))
        while not isinstance(submit := await broker.take((SubmitMsg, CancelMsg)), SubmitMsg):
            pass
        broker.say_done(submit)
        await again


@pytest.mark.parametrize("error", [Overloaded(7, 2.5), InvalidRequest("request_id", "mine", "a new one")])
async def test_a_cancelled_request_that_is_not_taken_again_is_cancelled(broker: ScriptedBroker, error: Any) -> None:
    """Whatever the broker has against it."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking, _ = await asked(broker, client, request_id="mine")
        broker.forget("mine")
        await broker.take(SubmitMsg)
        client.cancel("mine")
        broker.say(ErrorMsg(error.info(), "mine"))
        with pytest.raises(RequestCancelled):
            await asking


async def test_cancelling_what_is_not_in_flight_does_nothing(broker: ScriptedBroker) -> None:
    """Given a request that is over, or never was, the broker is not troubled."""
    async with connected(broker) as client:
        async with aclosing(client.stream("a fox", request_id="mine")) as events:
            ending = asyncio.create_task(anext(events))
            broker.say_done(await broker.take(SubmitMsg))
            await ending
            client.cancel("mine")
        client.cancel("never")
        assert await broker.rest(client) == []
