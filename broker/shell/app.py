"""The broker as a process runs it."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, closing, nullcontext
from importlib.metadata import version

from msgspec.structs import asdict

from ...schemas.admin import AdminMsg, AdminReplyMsg
from ...schemas.errors import ConfigError
from ...schemas.status import BrokerEndpoints, BrokerStatus, LoopLagStatus
from ...schemas.transfer import PROTOCOL_VERSION
from ...transport.link.channels import (
    MAX_ADMIN_MESSAGE_BYTES,
    MAX_CLIENT_MESSAGE_BYTES,
    broker_to_clients,
    broker_to_operators,
    broker_to_services,
)
from ...transport.link.codec import In, MessageCodec, Out
from ...transport.link.ipc import claimed, private_files
from ...transport.link.network import network_id
from ...transport.link.router import RouterLink
from ..machine.server import DiffusionServer
from .admin_endpoint import AUTO, auto_endpoint, make_admin_folder
from .driver import Driver
from .intake import take_clients, take_services
from .loop_lag import LoopLag
from .operators import Operators
from .reports import log
from .settings import BrokerSettings

#: a frame above this closes the connection; one between a message's limit and this is answered with an error
MAX_CLIENT_FRAME_BYTES = 16 * MAX_CLIENT_MESSAGE_BYTES
MAX_ADMIN_FRAME_BYTES = 16 * MAX_ADMIN_MESSAGE_BYTES
#: at least, for the same reason: no service of ours sends larger ones
MIN_SERVICE_FRAME_BYTES = 16 * 2**20


async def run_broker(settings: BrokerSettings, stop: asyncio.Event, ready: Callable[[BrokerEndpoints], None]) -> None:
    """Listen, call `ready`, and serve until `stop` is set. Raises `ConfigError` where an endpoint cannot be bound."""
    service_codec, client_codec = broker_to_services(settings.max_result_bytes), broker_to_clients()
    service_frames = max(settings.max_result_bytes, MIN_SERVICE_FRAME_BYTES)
    async with (
        _listening("service_endpoint", settings.service_endpoint, service_codec, service_frames) as services,
        _listening("client_endpoint", settings.client_endpoint, client_codec, MAX_CLIENT_FRAME_BYTES) as clients,
        _listening_to_operators(settings.admin_endpoint, clients.endpoint) as operators,
    ):
        endpoints = BrokerEndpoints(services.endpoint, clients.endpoint, operators.endpoint if operators else "")
        server = DiffusionServer(settings.dispatch, version("triptych"), network_id())
        with closing(Driver(server, services, clients)) as driver, closing(LoopLag(asyncio.get_running_loop())) as lag:
            pumps = [take_services(services, driver), take_clients(clients, driver)]
            if operators is not None:
                admin = Operators(operators, _describer(driver, lag, endpoints))
                driver.on_answer(admin.tell)
                pumps.append(admin.take(driver))
            async with asyncio.TaskGroup() as tasks:
                pumping = [tasks.create_task(pump) for pump in pumps]
                log.info("broker listens", **asdict(endpoints))
                ready(endpoints)
                await stop.wait()
                for task in pumping:
                    task.cancel()
    log.info("broker stopped")


@asynccontextmanager
async def _listening(
    key: str, endpoint: str, codec: MessageCodec[In, Out], max_frame_bytes: int, *, private: bool = False
) -> AsyncGenerator[RouterLink[In, Out]]:
    """Listen at `endpoint`, the setting `key`. Raises `ConfigError` where it cannot be bound, or another listens there.

    The file of a `private` one can be opened by this user alone.
    """
    with ExitStack() as claim:
        try:
            claim.enter_context(claimed(endpoint))
            with private_files() if private else nullcontext():
                link = RouterLink(codec, endpoint, max_frame_bytes)
        except ConfigError as error:
            raise ConfigError(key, endpoint, error.allowed) from error
        async with aclosing(link):
            yield link


@asynccontextmanager
async def _listening_to_operators(
    setting: str, client_endpoint: str
) -> AsyncGenerator[RouterLink[AdminMsg, AdminReplyMsg] | None]:
    """Listen at the admin endpoint, if there is to be one."""
    async with AsyncExitStack() as stack:
        link = None
        if setting:
            endpoint = auto_endpoint(make_admin_folder(), client_endpoint) if setting == AUTO else setting
            listening = _listening(
                "admin_endpoint", endpoint, broker_to_operators(), MAX_ADMIN_FRAME_BYTES, private=True
            )
            link = await stack.enter_async_context(listening)
        yield link


def _describer(driver: Driver, lag: LoopLag, endpoints: BrokerEndpoints) -> Callable[[], BrokerStatus]:
    """Return what says how this process is; it started now."""
    loop = asyncio.get_running_loop()
    started = loop.time()

    def describe() -> BrokerStatus:
        seen = lag.statistics()
        return BrokerStatus(
            package_version=version("triptych"),
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            uptime_s=loop.time() - started,
            endpoints=endpoints,
            loop_lag=LoopLagStatus(seen.last_s, seen.mean_s, seen.max_s),
            messages=driver.counts.statistics(),
        )

    return describe
