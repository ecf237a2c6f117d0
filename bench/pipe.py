"""A pipe to another process."""

from typing import Protocol


class Pipe(Protocol):
    """What the benchmarks need of a `multiprocessing` connection, whichever kind it is."""

    def send_bytes(self, buf: bytes) -> None:
        """Send a message."""
        ...

    def recv_bytes(self) -> bytes:
        """Wait for a message; raises EOFError when the other side has hung up."""
        ...

    def poll(self) -> bool:
        """Return whether there is a message."""
        ...
