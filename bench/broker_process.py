"""A broker as `triptych broker` runs it, of settings in JSON: what `bench.broker` measures."""

import sys

import msgspec

from triptych.broker.shell.app import run_broker
from triptych.broker.shell.settings import BrokerSettings
from triptych.ops.cli.running import run_until_signal
from triptych.ops.logging import LogLevel, configure_logging

from .forwarder import Bound, say


def main() -> None:
    """Read settings, say where it listens, and serve until a signal stops it."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=BrokerSettings)
    configure_logging(None, LogLevel.INFO)
    run_until_signal(lambda stop: run_broker(settings, stop, lambda at: say(Bound(at.services, at.clients))))


if __name__ == "__main__":
    main()
