"""The door of the machine."""

from collections.abc import Callable, Mapping

from ...schemas.status import ServerStatus
from .admin import operator_spoke
from .alarms import time_passed
from .clients import client_spoke
from .commands import Command
from .dismissals import dismiss_the_quiet
from .dispatch import dispatch
from .events import ClientSpoke, ClientVanished, Event, OperatorSpoke, ServiceSpoke, ServiceVanished, TimePassed
from .invariants import check_tables
from .services import service_spoke, service_vanished
from .settings import DispatchSettings
from .status import status_of
from .tables import Tables, new_tables


class DiffusionServer:
    """Moves every request through the three pools. Pure: it is told what happened and when, and says what to do."""

    def __init__(
        self, settings: DispatchSettings | None = None, package_version: str = "", network_id: str = ""
    ) -> None:
        self._tables = new_tables(settings or DispatchSettings(), package_version, network_id)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take `event` in and return what to do, in order. `now` is monotonic, in seconds; going back is ignored.

        Whatever a peer says, nothing is raised; `InvalidTransition` is a bug of the machine.
        """
        t = self._tables
        t.now = max(t.now, now)
        if t.settled_at is None:
            t.settled_at = t.now + t.settings.take_up_s
        _HANDLERS[type(event)](t, event)
        dispatch(t)
        dismiss_the_quiet(t)
        commands, t.out, t.attachments = t.out, [], ()
        return commands

    def next_deadline(self) -> float | None:
        """Return when `TimePassed` must come at the latest. A little early does no harm: nothing happens then."""
        deadlines = (self._tables.deadlines.earliest(), self._tables.relays.earliest())
        return min((when for when in deadlines if when is not None), default=None)

    def check(self) -> None:
        """Raise `InvariantBroken` where the state contradicts itself. It looks at everything: for tests."""
        check_tables(self._tables)

    def story(self, request_id: str) -> list[str]:
        """Tell the life of a request, line by line; empty where it is not known (any more)."""
        request = self._tables.requests.get(request_id)
        return self._tables.ended.lines(request_id) if request is None else request.story.lines()

    def status(self) -> ServerStatus:
        """Return what is registered, held and waiting. It looks at everything: for people, now and then."""
        return status_of(self._tables)


def _client_vanished(_t: Tables, _event: ClientVanished) -> None:
    """Do nothing: requests survive a reconnect of their client."""


_HANDLERS: Mapping[type, Callable[..., None]] = {
    ServiceSpoke: service_spoke,
    ClientSpoke: client_spoke,
    OperatorSpoke: operator_spoke,
    ServiceVanished: service_vanished,
    ClientVanished: _client_vanished,
    TimePassed: time_passed,
}
