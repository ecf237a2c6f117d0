"""The ZeroMQ options that both ends share."""

import zmq

from ...schemas.errors import ConfigError

#: messages that wait for one peer; a peer that lets more pile up is lost
HIGH_WATER_MARK = 10_000
#: between ZMTP heartbeats, which find dead connections, in milliseconds
ZMTP_HEARTBEAT_MS = 5_000
ZMTP_TIMEOUT_MS = 20_000
RECONNECT_MS = 100
RECONNECT_MAX_MS = 2_000
#: how long a closing socket may still send what is queued, in milliseconds
LINGER_MS = 500
ALLOWED_ENDPOINT = "one such as tcp://127.0.0.1:7701 or ipc:///run/triptych/admin"


def configure(socket: "zmq.Socket[bytes]", max_frame_bytes: int, max_queued: int = HIGH_WATER_MARK) -> None:
    """Set what every link needs. A frame above `max_frame_bytes` closes the connection it came on."""
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, max_queued)
    socket.setsockopt(zmq.RCVHWM, max_queued)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, ZMTP_HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, ZMTP_TIMEOUT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)


def check_endpoint(endpoint: str) -> None:
    """Raise `ConfigError` for what is no endpoint. ZeroMQ itself takes port 99999 for another one."""
    scheme, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    tcp = scheme == "tcp" and host and port.isascii() and port.isdecimal() and int(port) < 2**16
    if not (tcp or (scheme == "ipc" and address)):
        raise ConfigError("endpoint", endpoint, ALLOWED_ENDPOINT)


def bind(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Bind and return the endpoint as it came out (port 0 picks a free one). Raises `ConfigError`."""
    check_endpoint(endpoint)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError("endpoint", endpoint, f"one that can be bound ({error.strerror})") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    """Connect, now or as soon as somebody listens there. Raises `ConfigError` where `endpoint` is none."""
    check_endpoint(endpoint)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError("endpoint", endpoint, f"{ALLOWED_ENDPOINT} ({error.strerror})") from error
