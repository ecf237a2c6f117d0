"""Results that are said to be DONE, kept until the broker has answered: one that restarts hears of them again."""

from msgspec import Struct

from ..schemas.holdings import HeldJob
from ..schemas.transfer import TransferDoneMsg
from ..transport.link.codec import Frame
from .holdings import Given
from .job import JobKey, Send
from .results.data_link import ResultServer


class _Delivered(Struct, frozen=True):
    message: TransferDoneMsg
    attachments: tuple[Frame, ...]
    given: Given


class DeliveredResults:
    """The results of one incarnation that the broker has not answered yet."""

    def __init__(self, send: Send, results: ResultServer | None) -> None:
        self._send = send
        self._results = results
        self._delivered: dict[JobKey, _Delivered] = {}

    def __len__(self) -> int:
        """How many wait for an answer."""
        return len(self._delivered)

    def __contains__(self, key: JobKey) -> bool:
        """Whether what the attempt came to waits for an answer."""
        return key in self._delivered

    def keep(self, key: JobKey, message: TransferDoneMsg, attachments: tuple[Frame, ...], given: Given) -> None:
        """Keep what `key` came to, and say so."""
        self._delivered[key] = _Delivered(message, attachments, given)
        self._send(message, attachments)

    def answered(self, key: JobKey) -> None:
        """Keep it no longer: the broker has it, or a ticket for it."""
        self._delivered.pop(key, None)

    def withdraw(self, key: JobKey) -> None:
        """Drop it: nobody wants it. Nothing delivered is no harm."""
        delivered = self._delivered.pop(key, None)
        if delivered is not None and delivered.message.ticket is not None and self._results is not None:
            self._results.withdraw(key.request_id, delivered.message.ticket)

    def held(self, now: float) -> tuple[HeldJob, ...]:
        """Return them as the jobs that they were; they read nothing any more."""
        return tuple(
            HeldJob(key.request_id, key.attempt, delivered.given.context_at(now), started=True)
            for key, delivered in self._delivered.items()
        )

    def say_again(self) -> None:
        """Say DONE of each once more."""
        for delivered in self._delivered.values():
            self._send(delivered.message, delivered.attachments)
