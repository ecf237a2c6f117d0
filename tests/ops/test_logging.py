"""Logs as a process writes them."""

import json
import os
import subprocess
import sys

import pytest

CODE = """
import logging
import structlog
from triptych.ops.logging import LogFormat, LogLevel, configure_logging

log = structlog.get_logger("triptych.test")
configure_logging({log_format}, LogLevel.INFO)
structlog.contextvars.bind_contextvars(instance_id="encoder-0")
log.debug("not said")
log.info("pool opened", nbytes=512)
logging.getLogger("asyncio").warning("slow %s", "callback")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
"""


def lines(log_format: str, **environment: str) -> list[str]:
    """Return what the process writes to standard error; nothing goes to standard output."""
    argv = [sys.executable, "-c", CODE.format(log_format=log_format)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.parametrize("log_format", ["LogFormat.JSON", "None"])
def test_machines_get_one_object_per_line(log_format: str) -> None:
    """With the context, and those of other libraries too; the default where no terminal reads."""
    opened, slow, failed = map(json.loads, lines(log_format))
    assert (opened["event"], opened["nbytes"], opened["instance_id"]) == ("pool opened", 512, "encoder-0")
    assert (opened["level"], opened["logger"]) == ("info", "triptych.test")
    assert (slow["event"], slow["level"], slow["logger"]) == ("slow callback", "warning", "asyncio")
    assert failed["exception"].endswith("ZeroDivisionError: division by zero")


def test_people_get_readable_lines() -> None:
    """Plain where no terminal reads them."""
    first = lines("LogFormat.CONSOLE")[0]
    assert first.endswith("[info     ] pool opened [triptych.test] instance_id=encoder-0 nbytes=512")


def test_the_launcher_can_ask_for_colours() -> None:
    """Its terminal shows what the child writes to a pipe."""
    assert "\x1b[" in lines("LogFormat.CONSOLE", FORCE_COLOR="1")[0]
    assert "\x1b[" not in lines("LogFormat.CONSOLE", FORCE_COLOR="1", NO_COLOR="1")[0]
