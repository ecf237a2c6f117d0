"""POSIX shared-memory segments that cannot outlive their owner unnoticed.

A segment is made without a name, locked, and only then linked under its name; its owner holds the lock for life, and
the kernel drops it however the owner dies. So a segment that can be seen and locked is a dead owner's: it may be swept.
"""

import fcntl
import mmap
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOMEM, ENOSPC
from pathlib import Path

from ...schemas.errors import ConfigError, TransferError, shortened

DIRECTORY = "/dev/shm"  # noqa: S108  # this is where Linux keeps POSIX shared memory
#: of Linux, which Python's mmap does not name: a private mapping takes no room until it is written to
MAP_NORESERVE = 0x4000
NAME = re.compile(r"triptych-[A-Za-z0-9._:@-]{1,128}-[0-9a-f]{1,16}\Z")


def segment_name(instance_id: str, incarnation: int) -> str:
    """Return the name of the segment of one incarnation of an instance."""
    return f"triptych-{re.sub(r'[^A-Za-z0-9._:@-]', '_', instance_id)[:128]}-{incarnation:x}"


def host_id() -> str:
    """Return what is equal for exactly those processes that can map each other's segments.

    That is: the same boot of the same kernel, the same mounted /dev/shm (containers may have their own), the same user.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}-{Path(DIRECTORY).stat().st_dev:x}-{os.geteuid()}"


class Segment:
    """A mapped segment.

    Closing takes the name away (the owner's part), and gives up the lock and this reference to the memory. The memory
    itself is unmapped when the last tensor (or other view) over it goes: never under somebody who still reads it.
    """

    def __init__(self, name: str, fd: int, size: int, *, owned: bool) -> None:
        self.name = name
        #: bytes
        self.size = size
        self._fd = fd
        self._owned = owned
        self._closed = False
        #: the owner's is made at once with all its page tables, so that no write waits for one
        self._mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE) if owned else None

    @property
    def mapping(self) -> mmap.mmap:
        """Return all bytes, shared. Never close this, but drop it, as `torch.frombuffer` does with its last tensor."""
        self._expect_open()
        if self._mapping is None:
            self._mapping = mmap.mmap(self._fd, self.size)
        return self._mapping

    def map_private(self, offset: int, nbytes: int) -> tuple[mmap.mmap, int]:
        """Map `nbytes` from `offset` on by themselves, and return with the mapping where in it they begin.

        What is written into the mapping nobody else sees.
        """
        self._expect_open()
        skipped = offset % mmap.ALLOCATIONGRANULARITY
        flags, protection = mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(self._fd, skipped + nbytes, flags, protection, offset=offset - skipped), skipped

    def owner_lives(self) -> bool:
        """Return whether the segment still has its name and its owner."""
        named = os.fstat(self._fd).st_nlink > 0
        if self._owned or not named:
            return named
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Let the segment go; the owner's closing ends it for those who are not attached yet."""
        if self._closed:
            return
        self._closed = True
        self._mapping = None
        if self._owned:
            with _directory() as directory, suppress(FileNotFoundError):
                os.unlink(self.name, dir_fd=directory)
        os.close(self._fd)

    def _expect_open(self) -> None:
        if self._closed:
            raise TransferError(f"the segment {self.name} is closed")


def create(name: str, size: int) -> Segment:
    """Make a segment that this process owns; its pages are reserved, so that no later write fails for want of room."""
    _check_name(name)
    fd = os.open(DIRECTORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with _closed_on_error(fd):
        _reserve(fd, size)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        segment = Segment(name, fd, size, owned=True)
        _link(fd, name)
    return segment


def attach(name: str) -> Segment:
    """Map the segment of another process; raise TransferError where that cannot be."""
    _check_name(name)
    try:
        with _directory() as directory:
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise TransferError(f"the segment {name} cannot be opened: {error.strerror}") from error
    with _closed_on_error(fd):
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size == 0:
            raise TransferError(f"the segment {name} is not a shared-memory segment of this user")
        return Segment(name, fd, found.st_size, owned=False)


def sweep_dead_segments() -> tuple[str, ...]:
    """Unlink the segments whose owners are dead, and return their names."""
    with _directory() as directory:
        names = sorted(os.listdir(directory))  # noqa: PTH208  # a Path has no descriptor to list
        return tuple(name for name in names if NAME.match(name) and _swept(name, directory))


def _swept(name: str, directory: int) -> bool:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return False  # gone already, or somebody else's
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            os.unlink(name, dir_fd=directory)
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return False  # its owner lives; or another sweep was faster
    finally:
        os.close(fd)
    return True


def _check_name(name: str) -> None:
    if not NAME.match(name):
        raise TransferError(f"{shortened(name)} is not the name of a segment")


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in {ENOSPC, ENOMEM, EDQUOT}:
            raise
        room = os.fstatvfs(fd)
        free = f"{room.f_bavail * room.f_frsize} bytes are free in {DIRECTORY}"
        remedy = "make it larger: mount -o remount,size=…, or docker run --shm-size=…"
        raise ConfigError("pool_bytes", size, f"{free}; {remedy}") from error


def _link(fd: int, name: str) -> None:
    try:
        with _directory() as directory:
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError as error:
        raise TransferError(f"the segment {name} exists already; sweep it, or end its owner") from error


@contextmanager
def _directory() -> Generator[int, None, None]:
    fd = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _closed_on_error(fd: int) -> Generator[None, None, None]:
    try:
        yield
    except BaseException:
        os.close(fd)
        raise
