"""Entering and leaving a client."""

import asyncio
from typing import Any

import pytest

from triptych.client import Client
from triptych.schemas.client import ErrorMsg, HelloMsg, WelcomeMsg
from triptych.schemas.errors import BrokerUnreachable, ConfigError, VersionMismatch
from triptych.schemas.transfer import PROTOCOL_VERSION

from .scripted import ScriptedBroker, connected


async def test_nobody_there_is_said_with_the_way_out() -> None:
    """The error names the endpoint and how long it waited."""
    with pytest.raises(BrokerUnreachable, match=r"no broker answers at tcp://127.0.0.1:9 \(waited 0.1 s\); start one"):
        async with Client("tcp://127.0.0.1:9", connect_timeout_s=0.1):
            pass


async def test_an_endpoint_that_is_none_is_said() -> None:
    """What cannot be an endpoint is refused before anything is sent."""
    with pytest.raises(ConfigError, match="endpoint is 'nonsense'"):
        async with Client("nonsense"):
            pass


async def test_a_broker_of_another_version_refuses(broker: ScriptedBroker) -> None:
    """The broker's error comes out of entering, as its own type."""
    entering = asyncio.create_task(Client(broker.endpoint).__aenter__())
    hello = await broker.take(HelloMsg)
    assert hello.protocol_version == PROTOCOL_VERSION
    broker.say(ErrorMsg(VersionMismatch(7, PROTOCOL_VERSION).info()))
    with pytest.raises(VersionMismatch, match="upgrade the peer") as caught:
        await entering
    assert caught.value.broker_version == 7


async def test_a_welcome_of_another_version_is_refused(broker: ScriptedBroker) -> None:
    """The client checks for itself, too."""
    entering = asyncio.create_task(Client(broker.endpoint).__aenter__())
    await broker.take(HelloMsg)
    broker.say(WelcomeMsg(PROTOCOL_VERSION + 1, "9.0"))
    with pytest.raises(VersionMismatch):
        await entering


async def test_entering_can_be_cancelled(broker: ScriptedBroker) -> None:
    """A cancelled wait for WELCOME leaves nothing behind."""
    client = Client(broker.endpoint)
    entering = asyncio.create_task(client.__aenter__())
    await broker.take(HelloMsg)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert len(asyncio.all_tasks()) == 2  # this one, and the scripted broker's


async def test_outside_its_context_a_client_says_how_it_is_used() -> None:
    """Forgetting the context is the first mistake everybody makes."""
    with pytest.raises(RuntimeError, match="async with Client"):
        await Client().generate("a fox")


async def test_entering_twice_is_a_mistake(broker: ScriptedBroker) -> None:
    """The second context would close the first one's link."""
    async with connected(broker) as client:
        with pytest.raises(RuntimeError, match="entered already"):
            await client.__aenter__()


async def test_a_client_can_be_entered_again_later(broker: ScriptedBroker) -> None:
    """Leaving gives everything back."""
    client = Client(broker.endpoint)
    for _ in range(2):
        entering = asyncio.create_task(client.__aenter__())
        await broker.take(HelloMsg)
        broker.say(WelcomeMsg(PROTOCOL_VERSION, "0.1.0"))
        await entering
        await client.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"endpoint": None}, "endpoint is None; allowed: a string such as tcp://127.0.0.1:7701"),
        ({"endpoint": b"tcp://127.0.0.1:7701"}, "endpoint is b'tcp"),
        ({"max_result_bytes": 0}, "max_result_bytes is 0; allowed: a whole number of bytes from 1 to "),
        ({"max_result_bytes": True}, "max_result_bytes is True"),
        ({"max_result_bytes": 1.5}, "max_result_bytes is 1.5"),
        ({"max_result_bytes": 2**80}, "max_result_bytes is 1208"),
        ({"ping_interval_s": 0}, "ping_interval_s is 0; allowed: a number of seconds above 0, at most 604800"),
        ({"ping_interval_s": "often"}, "ping_interval_s is 'often'"),
        ({"connect_timeout_s": -1}, "connect_timeout_s is -1"),
        ({"connect_timeout_s": None}, "connect_timeout_s is None"),
        ({"connect_timeout_s": float("nan")}, "connect_timeout_s is nan"),
        ({"fetch_settings": 3}, "fetch_settings is 3; allowed: a FetchSettings, or None"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings: dict[str, Any], complaint: str) -> None:
    """Given a value of a wrong type or size, making the client raises, naming the field."""
    with pytest.raises(ConfigError, match=complaint):
        Client(**settings)
