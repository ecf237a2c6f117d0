"""The lines around the machine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, closing
from typing import Any

import pytest
from msgspec import Struct
from structlog.testing import capture_logs

from triptych.broker.machine.events import ClientSpoke
from triptych.broker.machine.server import DiffusionServer
from triptych.broker.machine.settings import DispatchSettings
from triptych.broker.shell.driver import Driver
from triptych.schemas.client import CancelMsg, ClientMsg, ClientReplyMsg, ErrorMsg, PingMsg, PongMsg, SubmitMsg
from triptych.schemas.sampling import SamplingParams
from triptych.transport.link.channels import broker_to_clients, broker_to_services, client_to_broker
from triptych.transport.link.dealer import DealerLink
from triptych.transport.link.router import RouterLink

Client = DealerLink[ClientReplyMsg, ClientMsg]
MAX_FRAME = 2**20
PEER = b"client-1"


class Unheard(Struct, frozen=True):
    """An event that no machine knows."""

    peer: bytes = b"stranger"


@pytest.fixture
async def client_and_driver() -> AsyncIterator[tuple[Client, Driver]]:
    """Return a client that the driver's link knows, and the driver."""
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(
            aclosing(RouterLink(broker_to_services(MAX_FRAME), "tcp://127.0.0.1:0", MAX_FRAME))
        )
        clients = await stack.enter_async_context(
            aclosing(RouterLink(broker_to_clients(), "tcp://127.0.0.1:0", MAX_FRAME))
        )
        client: Client = await stack.enter_async_context(
            aclosing(DealerLink(client_to_broker(MAX_FRAME), clients.endpoint, PEER, MAX_FRAME))
        )
        client.send_nowait(PingMsg())
        await clients.receive()
        yield (
            client,
            stack.enter_context(closing(Driver(DiffusionServer(DispatchSettings(take_up_s=0.0)), services, clients))),
        )


async def test_events_that_come_together_are_answered_in_order(client_and_driver: tuple[Client, Driver]) -> None:
    """Each gets its answer, as if it had come alone."""
    client, driver = client_and_driver
    driver.feed(*(ClientSpoke(PEER, PingMsg((name,))) for name in ("r1", "r2", "r3")))
    answers = [await client.receive() for _ in range(3)]
    assert answers == [(PongMsg((name,)), ()) for name in ("r1", "r2", "r3")]


async def test_a_bug_costs_the_event_that_met_it(client_and_driver: tuple[Client, Driver]) -> None:
    """It is logged with its traceback, and those before and after it are answered."""
    client, driver = client_and_driver
    unheard: Any = Unheard()
    with capture_logs() as logs:
        driver.feed(ClientSpoke(PEER, PingMsg(("r1",))), unheard, ClientSpoke(PEER, PingMsg(("r2",))))
    assert [await client.receive() for _ in range(2)] == [(PongMsg(("r1",)), ()), (PongMsg(("r2",)), ())]
    (entry,) = logs
    assert (entry["event"], entry["kind"], entry["peer"]) == ("message met a bug", "Unheard", "stranger")
    assert isinstance(entry["exc_info"], KeyError)


async def test_what_cannot_be_delivered_disturbs_nobody_in_its_batch(client_and_driver: tuple[Client, Driver]) -> None:
    """An answer to a client that is not there is counted, and the others get theirs."""
    client, driver = client_and_driver
    driver.feed(ClientSpoke(b"gone", PingMsg()), ClientSpoke(PEER, PingMsg()))
    assert await client.receive() == (PongMsg(), ())
    assert driver.counts.undeliverable == 1


async def test_an_earlier_deadline_sets_the_timer_anew(client_and_driver: tuple[Client, Driver]) -> None:
    """A request with ten minutes to live does not hide that of the next one, nor does a cancelled one."""
    client, driver = client_and_driver
    for request_id, timeout_s in (("long", 600.0), ("cancelled", 0.01), ("short", 0.02)):
        driver.feed(ClientSpoke(PEER, SubmitMsg(request_id, SamplingParams("a fox"), timeout_s)))
        await client.receive()
    driver.feed(ClientSpoke(PEER, CancelMsg("cancelled")))
    await client.receive()
    async with asyncio.timeout(10):
        ended, _ = await client.receive()
    assert isinstance(ended, ErrorMsg)
    assert (ended.request_id, ended.error.code) == ("short", "timed_out")
