"""What every engine can do."""

from collections.abc import Callable, Hashable
from typing import Protocol

from torch import Tensor

from ....schemas.memory import EngineName, PoolAddress, Slot


class Engine(Protocol):
    """Writes bytes of this service's pool into slots of other pools. For the thread of one event loop."""

    #: as the addresses of pools name it
    name: EngineName

    def reaches(self, address: PoolAddress) -> bool:
        """Return whether this engine can write to that pool."""
        ...

    async def write(
        self, source: Tensor, address: PoolAddress, target: Slot, *, timeout_s: float, on_quiet: Callable[[], None]
    ) -> float:
        """Write all bytes of `source` (uint8) to the start of `target`, and return how many seconds that took.

        Raise TransferError where it cannot, and WriteOverdue after `timeout_s`. Cancelled, it ends as soon as the write
        has come to an end, or is overdue. `on_quiet` is called once, when nothing of this write is read or written any
        more: before this ends, however it ends, except where the write is overdue and the engine cannot stop it.
        """
        ...

    def expect(self, key: Hashable, address: PoolAddress) -> None:
        """Help along what the owner of that pool writes to this one, until `expected_over`."""
        ...

    def expected_over(self, key: Hashable) -> None:
        """Look once more for what comes, then help no longer; unknown keys are no harm."""
        ...

    def forget(self, address: PoolAddress) -> None:
        """Drop what is kept of that pool, once writes to it are over: its service is gone."""
        ...

    async def aclose(self) -> None:
        """End the writes that run, with an error, then let everything go."""
        ...
