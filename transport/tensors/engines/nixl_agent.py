"""The only file that knows how NIXL is called: an agent over one pool, in integers and bytes.

Imports `nixl` when an agent is opened, not before. Descriptor lists are built here from integers, and never leave the
process (their serialised form is a pickle).
"""

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from msgspec import Struct

from ....schemas.errors import ConfigError, TransferError, shortened

#: read when the libraries are loaded. What goes wrong is raised as an error here; they need not print it as well
LOG_LEVELS = {"NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_LEVEL": "fatal"}


class Handle(Protocol):
    """A transfer as NIXL knows it."""


class _Agent(Protocol):
    def register_memory(self, regions: list[tuple[int, int, int, str]], mem_type: str) -> object: ...

    def deregister_memory(self, registered: object) -> None: ...

    def get_agent_metadata(self) -> bytes: ...

    def add_remote_agent(self, metadata: bytes) -> bytes | str: ...

    def remove_remote_agent(self, agent: str) -> None: ...

    def get_xfer_descs(self, regions: list[tuple[int, int, int]], mem_type: str) -> object: ...

    def initialize_xfer(self, operation: str, local: object, remote: object, agent: str) -> Handle: ...

    def transfer(self, handle: Handle) -> str: ...

    def check_xfer_state(self, handle: Handle) -> str: ...

    def release_xfer_handle(self, handle: Handle) -> None: ...

    def get_new_notifs(self) -> dict[str, list[bytes]]: ...


class _Package(Protocol):
    def nixl_agent_config(self, *, enable_prog_thread: bool, backends: list[str]) -> object: ...

    def nixl_agent(self, name: str, config: object) -> _Agent: ...


class Region(Struct, frozen=True):
    """A piece of memory. `device` is the index of the device it is on, None for the host."""

    address: int
    #: bytes
    size: int
    device: int | None = None

    @property
    def kind(self) -> str:
        """Return what NIXL calls this sort of memory."""
        return "DRAM" if self.device is None else "VRAM"


def nixl_installed() -> bool:
    """Return whether there is a `nixl` to import, without importing it."""
    return find_spec("nixl") is not None


class NixlAgent:
    """One NIXL agent with one pool registered. All its methods are for one thread; none waits for a peer."""

    def __init__(self, name: str, pool: Region) -> None:
        self.name = name
        self._pool = pool
        package = _import()
        try:
            config = package.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
            self._agent: _Agent | None = package.nixl_agent(name, config)
            self._registered = self._agent.register_memory([(pool.address, pool.size, pool.device or 0, "")], pool.kind)
            self.metadata = self._agent.get_agent_metadata()
        except Exception as error:
            raise ConfigError("engine", "nixl", f"shm; NIXL does not start here ({_said(error)})") from error

    def add_peer(self, metadata: bytes) -> str:
        """Introduce another agent, and return its name; raise TransferError for what is no metadata."""
        try:
            name = self._open().add_remote_agent(metadata)
        except Exception as error:
            raise TransferError(f"what a peer sent is no NIXL metadata: {_said(error)}") from error
        return name.decode(errors="replace") if isinstance(name, bytes) else name

    def remove_peer(self, name: str) -> None:
        """Drop another agent. No transfer to it may be under way: NIXL would lose track of it."""
        try:
            self._open().remove_remote_agent(name)
        except Exception as error:
            raise TransferError(f"NIXL cannot drop {shortened(name)}: {_said(error)}") from error

    def post(self, source: int, target: Region, peer: str) -> Handle:
        """Begin to write `target.size` bytes from the address `source`. May block while it copies."""
        agent = self._open()
        handle: Handle | None = None
        try:
            local = agent.get_xfer_descs([(source, target.size, self._pool.device or 0)], self._pool.kind)
            remote = agent.get_xfer_descs([(target.address, target.size, target.device or 0)], target.kind)
            handle = agent.initialize_xfer("WRITE", local, remote, peer)
            status = agent.transfer(handle)
        except Exception as error:
            if handle is not None:
                self.release(handle)
            raise TransferError(f"NIXL does not write to {shortened(peer)}: {_said(error)}") from error
        if status == "ERR":
            self.release(handle)
            raise TransferError(f"NIXL does not write to {shortened(peer)}")
        return handle

    def passed(self, handle: Handle) -> bool:
        """Let all transfers move on; return whether this one is complete. Raise TransferError where it failed."""
        try:
            status = self._open().check_xfer_state(handle)
        except Exception as error:
            raise TransferError(f"NIXL gave up in the middle of a write: {_said(error)}") from error
        if status == "ERR":
            raise TransferError("NIXL gave up in the middle of a write")
        return status == "DONE"

    def release(self, handle: Handle) -> None:
        """Give a handle back. Its transfer must be over: NIXL takes back one that is not, and goes on with it."""
        try:
            self._open().release_xfer_handle(handle)
        except Exception:  # noqa: BLE001  # the handle of a failed transfer; the agent keeps it until it goes itself
            return

    def progress(self) -> None:
        """Let all transfers move on, those that others write here too."""
        self._open().get_new_notifs()

    def close(self) -> None:
        """End everything, transfers under way too: afterwards nothing touches the pool."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        try:
            agent.deregister_memory(self._registered)
        except Exception as error:
            raise TransferError(f"NIXL does not let go of the pool: {_said(error)}") from error

    def _open(self) -> _Agent:
        if self._agent is None:
            raise TransferError("the NIXL agent is closed")
        return self._agent


def _import() -> _Package:
    """Import the package and undo what it does to everybody's logging."""
    if not nixl_installed():
        raise ConfigError("engine", "nixl", "auto or shm; nixl comes with the extra serve: pip install '.[serve]'")
    for variable, level in LOG_LEVELS.items():
        os.environ.setdefault(variable, level)
    raising = logging.raiseExceptions
    package = cast("_Package", import_module("nixl"))
    logging.raiseExceptions = raising
    return package


def _said(error: Exception) -> str:
    return shortened(str(error) or type(error).__name__, 200)
