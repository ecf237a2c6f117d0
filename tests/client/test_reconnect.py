"""A broker that falls silent, talks nonsense, or comes back."""

import asyncio
import logging

import pytest

from triptych.schemas.client import CancelMsg, SubmitMsg
from triptych.schemas.errors import BrokerUnreachable

from .scripted import ScriptedBroker, connected, scripted_broker

SOON_S = 0.02


async def test_a_silent_broker_is_unreachable_for_all_in_flight(broker: ScriptedBroker) -> None:
    """Nobody waits for ever, and the work is taken back for when the broker wakes up."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        broker.answers_pings = False
        asking = [asyncio.create_task(client.generate("a fox")) for _ in range(3)]
        submits = [await broker.take(SubmitMsg) for _ in asking]
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(result) for result in results] == [BrokerUnreachable] * 3
        cancels = [await broker.take(CancelMsg) for _ in asking]
        assert {cancel.request_id for cancel in cancels} == {submit.request_id for submit in submits}
        assert len(broker.pings) == 5


async def test_the_next_request_after_a_silence_works(broker: ScriptedBroker) -> None:
    """The client itself is not broken by a silence."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        broker.answers_pings = False
        with pytest.raises(BrokerUnreachable):
            await client.generate("a fox")
        await broker.take(SubmitMsg)
        await broker.take(CancelMsg)
        broker.answers_pings = True
        asking = asyncio.create_task(client.generate("a fox"))
        broker.say_done(await broker.take(SubmitMsg))
        await asking


async def test_a_request_survives_a_broker_that_comes_back() -> None:
    """The link reconnects under the same identity; a broker that still knows the request answers it."""
    async with scripted_broker() as first, connected(first, ping_interval_s=10 * SOON_S) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        submit = await first.take(SubmitMsg)
        peer, endpoint = first.peer, first.endpoint
        await first.link.aclose()
        async with scripted_broker(endpoint) as second:
            second.known.add(submit.request_id)
            await second.next_ping()
            assert second.peer == peer
            second.say_done(submit)
            await asking


async def test_garbage_from_the_broker_is_dropped_with_a_word(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame that is no message ends nothing."""
    async with connected(broker) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        submit = await broker.take(SubmitMsg)
        with caplog.at_level(logging.WARNING, "triptych.client"):
            broker.link._socket.send_nowait([broker.peer, b"__client__", b"\xc1"])
            broker.say_done(submit)
            await asking
    assert "dropped what the broker at" in caplog.text


async def test_an_idle_client_says_nothing(broker: ScriptedBroker) -> None:
    """Without a request in flight there is no PING."""
    async with connected(broker, ping_interval_s=SOON_S) as client:
        asking = asyncio.create_task(client.generate("a fox"))
        broker.say_done(await broker.take(SubmitMsg))
        await asking
        await asyncio.sleep(4 * SOON_S)  # the thing itself: so long nothing is to happen
        assert len(broker.pings) <= 1
