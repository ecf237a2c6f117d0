"""How a service leaves: told to stop, it goes when nobody needs it any more."""

import asyncio

from ..schemas.transfer import TransferDrainMsg
from .job import Send
from .results.data_link import ResultServer
from .worker import Worker


class Departure:
    """The way out of one incarnation.

    That the service is idle does not mean that it may go: work may be on its way. Only the broker, which has read DRAIN
    and gives no more, can tell that it has sent nothing that is not done, and it says so with DRAINED.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._drained = asyncio.Event()
        self._heard_at = self._loop.time()

    def heard(self) -> None:
        """Take note that the broker lives."""
        self._heard_at = self._loop.time()

    def begin(self, send: Send) -> None:
        """Ask the broker for no more work."""
        self._begun = True
        send(TransferDrainMsg())

    def say_again(self, send: Send) -> None:
        """Ask a broker that restarted, if the one before was asked."""
        self._drained.clear()
        if self._begun:
            send(TransferDrainMsg())

    def drained(self) -> None:
        """Take note that nothing which was sent here, or lies here, is needed any more."""
        self._drained.set()

    async def wait_drained(self, results: ResultServer | None) -> None:
        """Wait until the broker, the one that runs at the end, needs nothing more, and all `results` are fetched."""
        while True:
            await self._drained.wait()
            if results is not None:
                await results.wait_empty()
            if self._drained.is_set():
                return

    async def wait_alone(self, worker: Worker, results: ResultServer | None, lease_s: float) -> None:
        """Wait until nothing is held and the broker was silent for `lease_s`: there is nobody to wait for."""
        while True:
            await worker.wait_idle()
            if results is not None:
                await results.wait_empty()
            silent_s = self._loop.time() - self._heard_at
            if silent_s >= lease_s and worker.idle:
                return
            await asyncio.sleep(lease_s - silent_s)
