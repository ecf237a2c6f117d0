"""What goes to the broker, and what waits while the broker does not know the service."""

from collections import deque

from ..schemas.transfer import ServiceMsg, TransferRegisterMsg
from ..transport.link.codec import Frame
from .job import Send


class Outgoing:
    """Holds everything back, in order, from a registration until it is acknowledged.

    A registration says what is held at one moment. Whatever comes after that moment follows it, so the broker misses
    nothing, however long the acknowledgement takes, and whether it is told the same registration once or again.
    """

    def __init__(self, send: Send) -> None:
        #: says something at once: what does not depend on being registered
        self.send_now = send
        self._waiting: deque[tuple[ServiceMsg, tuple[Frame, ...]]] | None = deque()

    @property
    def registered(self) -> bool:
        """Whether the broker has acknowledged the last registration."""
        return self._waiting is None

    def send(self, message: ServiceMsg, attachments: tuple[Frame, ...] = ()) -> None:
        """Say `message`, now or once registered."""
        if self._waiting is None:
            self.send_now(message, attachments)
        else:
            self._waiting.append((message, attachments))

    def register(self, registration: TransferRegisterMsg) -> None:
        """Say `registration`; all else waits behind it."""
        if self._waiting is None:
            self._waiting = deque()
        self.send_now(registration)

    def acknowledged(self) -> None:
        """Say all that waited."""
        waiting, self._waiting = self._waiting, None
        for message, attachments in waiting or ():
            self.send_now(message, attachments)
