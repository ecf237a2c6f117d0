"""How a child tells its launcher that it serves: one line of JSON through a pipe it inherited."""

import os

import msgspec
from msgspec import Struct

#: names the pipe's file descriptor
READY_FD = "TRIPTYCH_READY_FD"


class ReadyLine(Struct, frozen=True, omit_defaults=True):
    """The child serves. A broker says where, with the ports that were picked for port 0."""

    service_endpoint: str = ""
    client_endpoint: str = ""
    admin_endpoint: str = ""


def report_ready(line: ReadyLine) -> None:
    """Tell the launcher, where there is one. The second call does nothing."""
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with open(int(descriptor), "wb") as pipe:  # noqa: PTH123  (a descriptor, not a path)
            pipe.write(msgspec.json.encode(line) + b"\n")


def parse_ready(line: bytes) -> ReadyLine | None:
    """Return what the child told, or None where the pipe closed before it told anything."""
    return msgspec.json.decode(line, type=ReadyLine) if line.endswith(b"\n") else None
