"""The transfer stream of a device with streams of its own, over torch's device-generic API."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch
from torch import Tensor

from ...schemas.errors import TransferError
from .events import StreamEvent

T = TypeVar("T")


class AcceleratorTransferStream:
    """Launches its jobs at once on a torch stream; one thread sleeps until the device has passed each of them."""

    launches = True

    def __init__(self, device: torch.device, compute: torch.Stream | None = None) -> None:
        self._device = device
        self._stream = torch.Stream(device)
        self._compute = compute or torch.accelerator.current_stream(device)
        self._launched: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waiter: Thread | None = None
        self._closed = False

    def submit(self, job: Callable[[], T], *, nbytes: int) -> StreamEvent[T]:
        """Launch the job; the event passes when the device has completed it."""
        del nbytes  # every launch is short
        if self._closed:
            raise TransferError("the stream is closed")
        event: StreamEvent[T] = StreamEvent()
        mark = torch.Event(self._device, blocking=True)
        with self._stream:
            event.run(job)
        mark.record(self._stream)
        self._watch(mark, job, event)
        return event

    def record(self) -> StreamEvent[None]:
        """Return an event that passes when everything submitted so far is complete."""
        return self.submit(_nothing, nbytes=0)

    def wait_for_compute(self) -> None:
        """Let the device start the jobs to come after what the compute stream has been given so far."""
        self._stream.wait_stream(self._compute)

    def hand_to_compute(self, tensor: Tensor) -> None:
        """Keep the memory of `tensor`, once freed, from being used again before the compute stream is done with it."""
        if tensor.device.type != "cpu":
            tensor.record_stream(self._compute)

    async def aclose(self) -> None:
        """Wait until the device has completed everything, then join the thread."""
        if self._closed:
            return
        last = self.record()
        self._closed = True
        try:
            await last.settle()
        finally:
            self._launched.put(None)
            if self._waiter is not None:
                self._waiter.join()

    def _watch(self, mark: torch.Event, job: Callable[[], T], event: StreamEvent[T]) -> None:
        keep = [job]  # and with it the tensors the device reads

        def wait() -> None:
            try:
                mark.synchronize()
            except RuntimeError as error:
                event.fail(error)
            keep.clear()
            event.finish()
            event.wake_from_thread()

        self._launched.put(wait)
        if self._waiter is None:
            self._waiter = Thread(target=self._wait, name="triptych-device-events", daemon=True)
            self._waiter.start()

    def _wait(self) -> None:
        while (wait := self._launched.get()) is not None:
            wait()
            del wait


def _nothing() -> None:
    """Launch nothing."""
