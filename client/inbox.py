"""What the broker says of one request, in order."""

import asyncio

from ..schemas.errors import TriptychError
from .events import Event, Finished


class Inbox:
    """Events of one request until its end, which is `Finished` or an error; what comes after the end is dropped."""

    def __init__(self, request_id: str, seed: int) -> None:
        self.request_id = request_id
        self.seed = seed
        self._ended = False
        self._arrived: asyncio.Queue[Event | TriptychError] = asyncio.Queue()

    def put(self, arrived: Event | TriptychError) -> None:
        """Add an event, or the error that ends the request."""
        if self._ended:
            return
        self._ended = isinstance(arrived, Finished | TriptychError)
        self._arrived.put_nowait(arrived)

    async def get(self) -> Event:
        """Wait for the next event, or raise the error that ended the request."""
        arrived = await self._arrived.get()
        if isinstance(arrived, TriptychError):
            raise arrived
        return arrived
