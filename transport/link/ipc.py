"""ipc endpoints: one listener each, and files that only their owner may open.

ZeroMQ takes the path of an ipc endpoint over, whatever is there: another listener, who then waits for ever, or
somebody's file, which is then gone. So whoever binds one claims it first.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import zmq

from ...schemas.errors import ConfigError

_SCHEME = "ipc://"
#: bytes of a path that a Unix socket can have
MAX_PATH_BYTES = zmq.IPC_PATH_MAX_LEN


def socket_path(endpoint: str) -> Path | None:
    """Return the file of an ipc endpoint, or None where it has none of its own: TCP, abstract sockets, `ipc://*`."""
    address = endpoint.removeprefix(_SCHEME)
    if not endpoint.startswith(_SCHEME) or not address or address[0] in "@*":
        return None
    return Path(address)


@contextmanager
def claimed(endpoint: str) -> Generator[None]:
    """Hold `endpoint` for as long as the context lasts: nobody else who claims it gets it. A no-op unless it is a file.

    What a dead listener left behind is taken over. Raises `ConfigError` where somebody listens there, or where the
    path is something else than a socket.
    """
    path = socket_path(endpoint)
    if path is None:
        yield
        return
    lock = Path(f"{path}.lock")
    descriptor = _lock(endpoint, lock)
    try:
        _check_stale(endpoint, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # ZeroMQ leaves it
    finally:
        lock.unlink(missing_ok=True)  # while it is held: who has opened it already will find that it is gone
        os.close(descriptor)


@contextmanager
def private_files() -> Generator[None]:
    """Let nobody but this user open the files that are made. It is the process's umask: only for a moment."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def listens(path: Path) -> bool:
    """Say whether somebody listens at the Unix socket `path`. Raises `PermissionError` where that may not be asked."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        status = probe.connect_ex(os.fspath(path))
    if status in {errno.EACCES, errno.EPERM}:
        raise PermissionError(status, os.strerror(status), os.fspath(path))
    return status in {0, errno.EAGAIN}  # EAGAIN: it has a long queue of others


def _lock(endpoint: str, lock: Path) -> int:
    """Return the descriptor of the locked file; the lock ends with the process, however that ends."""
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError("endpoint", endpoint, f"one that can be bound ({error.strerror}: {lock})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise _taken(endpoint) from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        os.close(descriptor)  # its last holder has removed it meanwhile


def _check_stale(endpoint: str, path: Path) -> None:
    """Raise `ConfigError` unless `path` is free, or the socket of a listener that is dead."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        allowed = "a path that is free, or a socket at which nobody listens; this is something else, and stays"
        raise ConfigError("endpoint", endpoint, allowed)
    try:
        taken = listens(path)
    except PermissionError as error:
        raise ConfigError("endpoint", endpoint, f"one of your own ({error.strerror})") from error
    if taken:
        raise _taken(endpoint)


def _taken(endpoint: str) -> ConfigError:
    return ConfigError("endpoint", endpoint, "one at which nobody listens; here somebody does")
