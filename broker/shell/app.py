"""The broker as a process runs it."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from importlib.metadata import version

from msgspec import Struct

from ...transport.link.channels import MAX_CLIENT_MESSAGE_BYTES, broker_to_clients, broker_to_services
from ...transport.link.router import RouterLink
from ..machine.server import DiffusionServer
from .driver import Driver
from .intake import take_clients, take_services
from .reports import log
from .settings import BrokerSettings

#: a frame above this closes the connection; one between a message's limit and this is answered with an error
MAX_CLIENT_FRAME_BYTES = 16 * MAX_CLIENT_MESSAGE_BYTES


class BrokerEndpoints(Struct, frozen=True):
    """Where the broker listens, with the ports that were picked for port 0."""

    services: str
    clients: str


async def run_broker(settings: BrokerSettings, stop: asyncio.Event, ready: Callable[[BrokerEndpoints], None]) -> None:
    """Listen, call `ready`, and serve until `stop` is set. Raises `ConfigError` where an endpoint cannot be bound."""
    service_codec = broker_to_services(settings.max_result_bytes)
    async with (
        aclosing(RouterLink(service_codec, settings.service_endpoint, settings.max_result_bytes)) as services,
        aclosing(RouterLink(broker_to_clients(), settings.client_endpoint, MAX_CLIENT_FRAME_BYTES)) as clients,
    ):
        with closing(Driver(DiffusionServer(settings.dispatch, version("triptych")), services, clients)) as driver:
            async with asyncio.TaskGroup() as tasks:
                pumps = [
                    tasks.create_task(take_services(services, driver)),
                    tasks.create_task(take_clients(clients, driver)),
                ]
                log.info("broker listens", services=services.endpoint, clients=clients.endpoint)
                ready(BrokerEndpoints(services.endpoint, clients.endpoint))
                await stop.wait()
                for pump in pumps:
                    pump.cancel()
    log.info("broker stopped")
