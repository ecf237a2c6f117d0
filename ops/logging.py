"""Logs to standard error: readable lines for people, JSON for machines. One configuration for structlog and logging."""

import logging
import os
import sys
from enum import StrEnum

import structlog
from structlog.typing import Processor


class LogFormat(StrEnum):
    """How a log event is written."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    """The least level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure_logging(log_format: LogFormat | None, level: LogLevel) -> None:
    """Write all logs of the process to standard error; without a format, as a terminal or a machine reads them."""
    terminal = sys.stderr.isatty()
    if log_format is None:
        log_format = LogFormat.CONSOLE if terminal else LogFormat.JSON
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso" if log_format is LogFormat.JSON else "%H:%M:%S", utc=False),
    ]
    renderers: dict[LogFormat, list[Processor]] = {
        LogFormat.JSON: [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        LogFormat.CONSOLE: [structlog.dev.ConsoleRenderer(colors=_wants_colours(terminal), pad_event_to=0)],
    }
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers[log_format]],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


def _wants_colours(terminal: bool) -> bool:
    """Follow the two variables that most programs follow: https://no-color.org, https://force-color.org."""
    return not os.environ.get("NO_COLOR") and (terminal or bool(os.environ.get("FORCE_COLOR")))
