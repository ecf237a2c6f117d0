"""What every engine can do."""

from typing import Protocol

from torch import Tensor

from ....schemas.transfer import PoolAddress, Slot


class Engine(Protocol):
    """Writes bytes of this service's pool into slots of other pools. For the thread of one event loop."""

    #: as the settings name it
    name: str

    def reaches(self, address: PoolAddress) -> bool:
        """Return whether this engine can write to that pool."""
        ...

    async def write(self, source: Tensor, address: PoolAddress, target: Slot) -> float:
        """Write all bytes of `source` (uint8) to the start of `target`, and return how many seconds that took.

        Raise TransferError where it cannot. However this ends, cancelled too, nothing is read or written afterwards.
        """
        ...

    def forget(self, address: PoolAddress) -> None:
        """Drop what is kept of that pool: its service is gone."""
        ...

    async def aclose(self) -> None:
        """Finish the writes that run, then let everything go."""
        ...
