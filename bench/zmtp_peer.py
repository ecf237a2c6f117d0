"""One DEALER on a plain TCP connection: as little as a load generator can spend on a message.

Speaks ZMTP 3.1 without security (https://rfc.zeromq.org/spec/37). To the ROUTER at the other end it is a DEALER like
any other; but it has no thread of its own, what it sends is encoded before, and whatever has come is read in one go.
"""

import socket
from collections.abc import Sequence

_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_PING, _PONG = b"\x04PING", b"\x04PONG"
#: bytes of a PING before its context: its name and how long to wait for another
_PING_HEAD = len(_PING) + 2
_READ_BYTES = 2**18


class ZmtpPeer:
    """A connection to a ROUTER at `tcp://host:port`, which knows this end as `identity`."""

    def __init__(self, endpoint: str, identity: bytes) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.identity = identity
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._frames: list[bytes] = []
        self._shake_hands()

    def fileno(self) -> int:
        """Return what epoll watches."""
        return self._socket.fileno()

    def send(self, encoded: bytes) -> None:
        """Send messages that `encode` made."""
        self._socket.sendall(encoded)

    def receive(self) -> list[list[bytes]]:
        """Return the frames of each message that is there, or wait for some."""
        return self._split(self._read())

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _shake_hands(self) -> None:
        self._socket.sendall(_GREETING)
        while len(self._unread) < len(_GREETING):
            self._unread = self._read()
        self._unread = self._unread[len(_GREETING) :]
        ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", self.identity)
        self._socket.sendall(_frame(_COMMAND, ready))

    def _read(self) -> bytes:
        """Return what is unread together with what comes."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError(f"the connection of {self.identity!r} was closed")
        return self._unread + data if self._unread else data

    def _split(self, data: bytes) -> list[list[bytes]]:
        messages: list[list[bytes]] = []
        at, end = 0, len(data)
        while end - at >= 2:
            flags = data[at]
            begin = at + (9 if flags & _LONG else 2)
            size = int.from_bytes(data[at + 1 : at + 9]) if flags & _LONG else data[at + 1]
            if begin + size > end:
                break
            at = begin + size
            if flags & _COMMAND:
                self._obey(data[begin:at])
                continue
            self._frames.append(data[begin:at])
            if not flags & _MORE:
                messages.append(self._frames)
                self._frames = []
        self._unread = data[at:]
        return messages

    def _obey(self, command: bytes) -> None:
        if command.startswith(_PING):
            self._socket.sendall(_frame(_COMMAND, _PONG + command[_PING_HEAD:]))
        elif command.startswith(b"\x05ERROR"):
            raise ConnectionError(f"the connection of {self.identity!r} was refused: {command!r}")


def encode(frames: Sequence[bytes]) -> bytes:
    """Return one message as it goes over the connection."""
    *others, last = frames
    return b"".join([*(_frame(_MORE, frame) for frame in others), _frame(0, last)])


def _frame(flags: int, body: bytes) -> bytes:
    if len(body) < 2**8:
        return bytes((flags, len(body))) + body
    return bytes((flags | _LONG,)) + len(body).to_bytes(8) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4) + value
