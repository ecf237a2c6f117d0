"""The thread that calls NIXL: asleep while nothing is under way, awake while something is.

A post over shared memory copies inside the call, for tens of milliseconds; so it must not be the loop that makes it.
But a small write to a peer that is connected is posted by whoever starts it, while the thread sleeps: waking it takes
longer. NIXL is called by one thread at a time, whichever it is.
"""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter, sleep
from typing import NamedTuple

from torch import Tensor

from ....schemas.errors import TransferError, TriptychError, WriteOverdue, shortened
from ....schemas.memory import NixlAddress
from .nixl_agent import Handle, NixlAgent, Region

#: after something began or ended: look again at once for this long, then at intervals of a share of the time since
SPIN_S = 0.0002
SHARE = 1 / 8
#: the longest interval while bytes may still move, when they have been silent for long, and for overdue writes alone
INTERVAL_S = 0.001
SILENT_AFTER_S = 10.0
SILENT_INTERVAL_S = 0.02
OVERDUE_INTERVAL_S = 0.05
#: writes up to this many bytes are posted at once where they can be, in 0.7 ms at most; waking the thread costs 0.2 ms
AT_ONCE_BYTES = 5 * 2**20
#: how long closing waits for writes to end by themselves
CLOSE_S = 1.0


class Outcome(NamedTuple):
    """What became of a write: seconds, or why it failed; `quiet` when nothing of it touches memory any more."""

    seconds: float
    error: TriptychError | None
    quiet: bool


class Flight:
    """One write. `tell` is called with up to two outcomes, by the pump's thread or within `start`."""

    def __init__(
        self, source: Tensor, target: Region, address: NixlAddress, timeout_s: float, tell: Callable[[Outcome], None]
    ) -> None:
        #: kept alive until the flight is over
        self.source = source
        self.target = target
        self.address = address
        self.tell = tell
        self.timeout_s = timeout_s
        self.begun = perf_counter()
        self.overdue = False
        self.handle: Handle | None = None


class NixlPump:
    """The thread, its agent, the peers it knows and the writes under way."""

    def __init__(self, open_agent: Callable[[], NixlAgent]) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        #: whoever calls NIXL holds it
        self._calling = Lock()
        self._agent: NixlAgent
        self._flights: list[Flight] = []
        #: the metadata of each peer NIXL knows
        self._peers: dict[str, bytes] = {}
        #: peers to drop as soon as no write to them is under way
        self._leaving: set[str] = set()
        self._expected: set[Hashable] = set()
        self._stirred = 0.0
        self._running = True
        #: what the agent's peers must know, once the thread is up
        self.opened: Future[bytes] = Future()
        self.closed: Future[None] = Future()
        self.thread = Thread(target=self._run, args=(open_agent,), name="triptych-nixl", daemon=True)
        self.thread.start()

    def start(self, flight: Flight) -> None:
        """Have `flight` written. From the thread of the loop, as the methods below."""
        if not self._started_at_once(flight):
            self._jobs.put(lambda: self._start(flight))

    def _started_at_once(self, flight: Flight) -> bool:
        """Post a small write right here, if the thread is not at work and has nothing to do before it."""
        if flight.target.size > AT_ONCE_BYTES or flight.target.device is not None:
            return False
        if not self._calling.acquire(blocking=False):
            return False
        try:
            connected = self._peers.get(flight.address.agent) == flight.address.metadata
            if not connected or self._flights or self._leaving or not self._jobs.empty():
                return False
            self._start(flight)
            if self._flights:
                self._look_at(flight)
            if self._flights:
                self._jobs.put(_nothing)  # the thread looks after it
        finally:
            self._calling.release()
        return True

    def expect(self, key: Hashable) -> None:
        """Help along what others write here."""
        self._jobs.put(lambda: self._expected.add(key))

    def expected_over(self, key: Hashable) -> None:
        """Look once more, then help no longer."""
        self._jobs.put(lambda: self._expect_no_longer(key))

    def forget(self, agent: str) -> None:
        """Drop a peer once no write to it is under way."""
        self._jobs.put(lambda: self._leaving.add(agent))

    def close(self) -> None:
        """Fail the writes under way, end them and the agent, then the thread."""
        self._jobs.put(self._stop)

    def _run(self, open_agent: Callable[[], NixlAgent]) -> None:
        try:
            self._agent = open_agent()
        except BaseException as error:  # noqa: BLE001  # raised where the pump was opened
            self.opened.set_exception(error)
            return
        self.opened.set_result(self._agent.metadata)
        while self._running:
            job = self._wait_job(self._interval())
            with self._calling:
                self._take_jobs(job)
                self._look()
        with self._calling:
            self._shut()

    def _interval(self) -> float | None:
        """Return how long to sleep unless a job comes: None for as long as it takes."""
        if not self._flights and not self._expected:
            return None
        since = perf_counter() - self._stirred
        if since < SPIN_S:
            return 0.0
        if not self._expected and all(flight.overdue for flight in self._flights):
            return OVERDUE_INTERVAL_S
        return min(since * SHARE, INTERVAL_S if since < SILENT_AFTER_S else SILENT_INTERVAL_S)

    def _wait_job(self, interval: float | None) -> Callable[[], None] | None:
        """Wait up to `interval` for something to do."""
        try:
            return self._jobs.get(timeout=interval) if interval != 0 else self._jobs.get_nowait()
        except Empty:
            if interval == 0:
                sleep(0)  # let the other threads have the interpreter
            return None

    def _take_jobs(self, job: Callable[[], None] | None) -> None:
        """Do all that was asked for."""
        while job is not None:
            job()
            self._stirred = perf_counter()
            try:
                job = self._jobs.get_nowait()
            except Empty:
                job = None

    def _start(self, flight: Flight) -> None:
        try:
            flight.handle = self._post(flight)
        except TransferError as error:
            self._end(flight, error)
        else:
            self._flights.append(flight)

    def _post(self, flight: Flight) -> Handle:
        """Post the write; where a connection of long ago broke meanwhile, once more over a new one."""
        peer, known = flight.address.agent, flight.address.agent in self._peers
        source = flight.source.data_ptr()
        try:
            self._introduce(flight.address)
            return self._agent.post(source, flight.target, peer)
        except TransferError:
            self._leaving.add(peer)
            if not known or self._busy(peer):
                raise
        self._drop_leaving()
        self._introduce(flight.address)
        return self._agent.post(source, flight.target, peer)

    def _introduce(self, address: NixlAddress) -> None:
        """Make the peer known to NIXL, in place of a former one of the same name."""
        known = self._peers.get(address.agent)
        if known is not None and known != address.metadata:
            if self._busy(address.agent):
                raise TransferError(f"writes to a former {shortened(address.agent)} are still under way")
            self._leaving.add(address.agent)
            self._drop_leaving()
            known = None
        if known is None:
            self._add_peer(address)
        self._leaving.discard(address.agent)

    def _add_peer(self, address: NixlAddress) -> None:
        name = self._agent.add_peer(address.metadata)
        if name != address.agent:
            if name not in self._peers and name != self._agent.name:
                self._agent.remove_peer(name)
            raise TransferError(f"the metadata of {shortened(address.agent)} is of {shortened(name)}")
        self._peers[address.agent] = address.metadata

    def _busy(self, peer: str) -> bool:
        return any(flight.address.agent == peer for flight in self._flights)

    def _drop_leaving(self) -> None:
        for peer in [peer for peer in self._leaving if not self._busy(peer)]:
            self._leaving.discard(peer)
            if self._peers.pop(peer, None) is not None:
                self._agent.remove_peer(peer)

    def _look(self) -> None:
        """Let everything move on, and see what ended or is overdue."""
        for flight in tuple(self._flights):
            self._look_at(flight)
        if self._expected:
            self._agent.progress()
        if self._leaving:
            self._drop_leaving()

    def _look_at(self, flight: Flight) -> None:
        seconds = perf_counter() - flight.begun
        if not flight.overdue and seconds > flight.timeout_s:
            flight.overdue = True
            reason = f"{flight.target.size} bytes to {shortened(flight.address.agent)} did not move"
            flight.tell(Outcome(seconds, WriteOverdue(reason, flight.timeout_s), quiet=False))
        try:
            passed = flight.handle is None or self._agent.passed(flight.handle)
        except TransferError as error:
            self._leaving.add(flight.address.agent)
            self._end(flight, error)
        else:
            if passed:
                self._end(flight, None)

    def _end(self, flight: Flight, error: TransferError | None) -> None:
        if flight in self._flights:
            self._flights.remove(flight)
        if flight.handle is not None:
            self._agent.release(flight.handle)
        self._stirred = perf_counter()
        flight.tell(Outcome(self._stirred - flight.begun, error, quiet=True))

    def _expect_no_longer(self, key: Hashable) -> None:
        self._agent.progress()
        self._expected.discard(key)

    def _stop(self) -> None:
        self._running = False

    def _shut(self) -> None:
        """Give the writes a moment to end, then end the agent under them: after that nothing moves any more."""
        for flight in self._flights:
            flight.tell(Outcome(0.0, TransferError("the service closed its engine"), quiet=False))
        deadline = perf_counter() + CLOSE_S
        try:
            while self._flights and perf_counter() < deadline:
                self._look()
                sleep(INTERVAL_S)
            for flight in self._flights:
                if flight.handle is not None:
                    self._agent.release(flight.handle)
                flight.handle = None
            self._agent.close()
        except BaseException as error:  # noqa: BLE001  # raised where the pump is closed; the writes stay under way
            self.closed.set_exception(error)
            return
        while self._flights:
            self._end(self._flights[0], None)
        self.closed.set_result(None)


def _nothing() -> None:
    """Have the thread look."""
