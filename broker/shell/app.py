"""The broker as a process runs it."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from importlib.metadata import version

from msgspec import Struct

from ...schemas.errors import ConfigError
from ...transport.link.channels import MAX_CLIENT_MESSAGE_BYTES, broker_to_clients, broker_to_services
from ...transport.link.codec import In, MessageCodec, Out
from ...transport.link.network import network_id
from ...transport.link.router import RouterLink
from ..machine.server import DiffusionServer
from .driver import Driver
from .intake import take_clients, take_services
from .reports import log
from .settings import BrokerSettings

#: a frame above this closes the connection; one between a message's limit and this is answered with an error
MAX_CLIENT_FRAME_BYTES = 16 * MAX_CLIENT_MESSAGE_BYTES
#: at least, for the same reason: no service of ours sends larger ones
MIN_SERVICE_FRAME_BYTES = 16 * 2**20


class BrokerEndpoints(Struct, frozen=True):
    """Where the broker listens, with the ports that were picked for port 0."""

    services: str
    clients: str


async def run_broker(settings: BrokerSettings, stop: asyncio.Event, ready: Callable[[BrokerEndpoints], None]) -> None:
    """Listen, call `ready`, and serve until `stop` is set. Raises `ConfigError` where an endpoint cannot be bound."""
    service_codec, client_codec = broker_to_services(settings.max_result_bytes), broker_to_clients()
    service_frames = max(settings.max_result_bytes, MIN_SERVICE_FRAME_BYTES)
    async with (
        aclosing(_listen("service_endpoint", settings.service_endpoint, service_codec, service_frames)) as services,
        aclosing(_listen("client_endpoint", settings.client_endpoint, client_codec, MAX_CLIENT_FRAME_BYTES)) as clients,
    ):
        server = DiffusionServer(settings.dispatch, version("triptych"), network_id())
        with closing(Driver(server, services, clients)) as driver:
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


def _listen(key: str, endpoint: str, codec: MessageCodec[In, Out], max_frame_bytes: int) -> RouterLink[In, Out]:
    """Listen at `endpoint`, the setting `key`. Raises `ConfigError` where it cannot be bound."""
    try:
        return RouterLink(codec, endpoint, max_frame_bytes)
    except ConfigError as error:
        raise ConfigError(key, endpoint, error.allowed) from error
