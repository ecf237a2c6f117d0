"""`triptych broker|encoder|denoiser|decoder`: what systemd and the launcher run."""

import asyncio
from pathlib import Path

import structlog

from ...broker.shell.settings import BrokerSettings
from ...schemas.roles import Role
from ...services.settings import ServiceSettings
from ..config import broker_settings_from, load_document, service_settings
from ..launcher.parent import end_with_parent
from ..launcher.ready import ReadyLine, report_ready
from ..logging import LogFormat, LogLevel, configure_logging
from .running import run_until_signal
from .settings_options import those_given


def serve_broker(config: Path | None, given: dict[str, object], log_format: LogFormat | None, level: LogLevel) -> None:
    """Run a broker until a signal stops it."""
    end_with_parent()
    settings = broker_settings_from(load_document(config), those_given(given))
    configure_logging(log_format, level)
    run_until_signal(lambda stop: _broker(settings, stop))


def serve_role(
    role: Role, config: Path | None, given: dict[str, object], log_format: LogFormat | None, level: LogLevel
) -> None:
    """Run a service until a signal stops it and what runs has finished."""
    end_with_parent()
    settings = service_settings(load_document(config), role, those_given(given))
    configure_logging(log_format, level)
    structlog.contextvars.bind_contextvars(instance_id=settings.instance_id)
    run_until_signal(lambda stop: _service(settings, stop))


async def _broker(settings: BrokerSettings, stop: asyncio.Event) -> None:
    from ...broker.shell.app import run_broker  # noqa: PLC0415

    await run_broker(settings, stop, lambda at: report_ready(ReadyLine(at.services, at.clients, at.admin)))


async def _service(settings: ServiceSettings, stop: asyncio.Event) -> None:
    from ...services.app import run_service  # noqa: PLC0415  (imports torch)

    await run_service(settings, stop, lambda: report_ready(ReadyLine()))
