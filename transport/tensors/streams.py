"""Copies in order beside the event loop, and how the loop learns that they are complete."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ...schemas.errors import TransferError
from .events import StreamEvent

T = TypeVar("T")

#: host jobs up to this many bytes are done at once when nothing is ahead of them. Handing a job to the thread and back
#: costs 15 µs beside busy cores and up to 250 µs where both must wake up; copying this much, 0.7 ms at most
INLINE_BYTES = 9 * 2**20


class TransferStream(Protocol):
    """Runs the jobs given to it in order. Its methods are for the thread of one event loop."""

    #: whether jobs only launch their copies (`non_blocking=True`), which the device then does
    launches: bool

    def submit(self, job: Callable[[], T], *, nbytes: int) -> StreamEvent[T]:
        """Have `job`, which copies about `nbytes`, run after all jobs before it; the event passes when it is complete.

        What the job refers to stays alive until then.
        """
        ...

    def record(self) -> StreamEvent[None]:
        """Return an event that passes when everything submitted so far is complete."""
        ...

    def wait_for_compute(self) -> None:
        """Let the jobs to come start after what the compute stream has been given so far."""
        ...

    def hand_to_compute(self, tensor: Tensor) -> None:
        """Say that the compute stream will use `tensor`, which a job of this stream made."""
        ...

    async def aclose(self) -> None:
        """Finish what was submitted, then end."""
        ...


class HostTransferStream:
    """Runs its jobs on one worker thread, started when the first job comes that is not small; idle, it sleeps."""

    launches = False

    def __init__(self, name: str = "triptych-transfer") -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._worker: Thread | None = None
        #: jobs handed to the worker; counted by the loop
        self._handed = 0
        #: jobs the worker has completed; counted by the worker
        self._completed = 0
        self._closed = False

    def submit(self, job: Callable[[], T], *, nbytes: int) -> StreamEvent[T]:
        """Run the job, at once where it is small and nothing is ahead of it."""
        if self._closed:
            raise TransferError("the stream is closed")
        event: StreamEvent[T] = StreamEvent()
        if nbytes <= INLINE_BYTES and self._handed == self._completed:
            event.run(job)
            event.finish()
        else:
            self._hand(job, event)
        return event

    def record(self) -> StreamEvent[None]:
        """Return an event that passes when everything submitted so far is complete."""
        return self.submit(_nothing, nbytes=0)

    def wait_for_compute(self) -> None:
        """Do nothing: what the host has computed is complete."""

    def hand_to_compute(self, tensor: Tensor) -> None:
        """Do nothing: host memory belongs to no stream."""

    async def aclose(self) -> None:
        """Finish what was submitted, then join the thread."""
        if self._closed:
            return
        last = self.record()
        self._closed = True
        try:
            await last.settle()
        finally:
            if self._worker is not None:
                self._jobs.put(None)
                self._worker.join()

    def _hand(self, job: Callable[[], T], event: StreamEvent[T]) -> None:
        def run() -> None:
            event.run(job)
            event.finish()
            self._completed += 1
            event.wake_from_thread()

        self._handed += 1
        self._jobs.put(run)
        if self._worker is None:
            self._worker = Thread(target=self._work, name=self._name, daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # and with it the tensors it refers to


def open_transfer_stream(device: torch.device | str, compute: torch.Stream | None = None) -> TransferStream:
    """Return the stream for copies between the host and `device`; `compute` is where the device computes.

    Without `compute` that is the stream current on the calling thread.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return HostTransferStream()
    from .accelerator import AcceleratorTransferStream  # noqa: PLC0415

    return AcceleratorTransferStream(device, compute)


def _nothing() -> None:
    """Complete at once."""
