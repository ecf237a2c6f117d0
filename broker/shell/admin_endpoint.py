"""Where operators find a broker: the setting `admin_endpoint`, and what "auto" stands for.

Each user has a folder of sockets that nobody else can enter, and each broker a socket in it that is named for where its
clients connect. So a command line without any option finds the one broker that runs, and several do not get in each
other's way.
"""

import os
import re
import stat
import zlib
from pathlib import Path

from ...schemas.errors import ConfigError
from ...transport.link.ipc import MAX_PATH_BYTES, listens

#: a socket in this user's folder
AUTO = "auto"
_SUFFIX = ".sock"


def admin_folder() -> Path:
    """Return the folder of this user's sockets, which may not exist: in the user's runtime directory, if there is one.

    It is the same in a shell that lacks XDG_RUNTIME_DIR, and in one that has another user's (`sudo -E`).
    """
    user = os.getuid()
    for runtime in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}"):
        if runtime and _is_owned(Path(runtime)):
            return Path(runtime) / "triptych"
    return Path(f"/tmp/triptych-{user}")  # noqa: S108  (`make_admin_folder` looks whose it is)


def make_admin_folder() -> Path:
    """Return the folder, made where it is missing. Raises `ConfigError` where others could enter it."""
    folder = admin_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _unusable(f"{folder} cannot be made ({error.strerror})") from error
    if not _is_private(folder):
        raise _unusable(f"{folder} is not a folder that this user alone may enter")
    return folder


def auto_endpoint(folder: Path, client_endpoint: str) -> str:
    """Return the endpoint in `folder` of the broker whose clients connect to `client_endpoint`."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", client_endpoint).strip("-")
    if len(os.fsencode(folder / f"{name}{_SUFFIX}")) > MAX_PATH_BYTES:
        name = f"{zlib.crc32(client_endpoint.encode()):08x}"
    return f"ipc://{folder / name}{_SUFFIX}"


def running_brokers() -> list[str]:
    """Return the endpoints of this user's brokers that listen in the folder."""
    folder = admin_folder()
    sockets = sorted(folder.glob(f"*{_SUFFIX}")) if _is_private(folder) else []
    return [f"ipc://{path}" for path in sockets if _listens(path)]


def _is_owned(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _is_private(folder: Path) -> bool:
    """Say whether it is a folder, and of this user alone: in /tmp anybody could have made it before."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _listens(path: Path) -> bool:
    try:
        return listens(path)
    except PermissionError:
        return False


def _unusable(reason: str) -> ConfigError:
    return ConfigError("admin_endpoint", AUTO, f"ipc:// with a path of your own, or empty for none; {reason}")
