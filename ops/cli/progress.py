"""A bar for each stage, over one request or several."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...client.events import Event, Fetching, Finished, Queued, Retrying, StageFinished, StageStarted, StepDone
from ...client.result import Result
from ...schemas.errors import RequestLost
from ...schemas.roles import Role


class StageBars:
    """Shows events of `requests` requests as they come. Without a terminal it shows nothing."""

    def __init__(self, console: Console, requests: int) -> None:
        self._requests = requests
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[note]:<28}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars: dict[Role, TaskID] = {}
        #: how much of each request's stage is done, from 0 to 1
        self._done: dict[Role, dict[str, float]] = {role: {} for role in Role}

    def __enter__(self) -> Self:
        """Draw the empty bars."""
        self._progress.start()
        for role in Role:
            self._bars[role] = self._progress.add_task(role, total=self._requests, start=False, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bars as they stand."""
        self._progress.stop()

    async def follow(self, events: AsyncGenerator[Event, None]) -> Result:
        """Show the events of one request until its result. Left early, the request is cancelled."""
        async with aclosing(events):
            async for event in events:
                self.show(event)
                if isinstance(event, Finished):
                    return event.result
        raise RequestLost("that ended without a result")

    def show(self, event: Event) -> None:
        """Show what `event` changes."""
        match event:
            case Queued():
                self._show_queued(event)
            case StageStarted():
                self._go_back(event.role, event.request_id, "")
                self._progress.start_task(self._bars[event.role])
            case Retrying():
                self._go_back(event.role, event.request_id, f"attempt {event.attempt}")
                self._say(f"attempt {event.attempt}, from the {event.role} on: {event.reason}")
            case StepDone():
                self._advance(
                    event.role, event.request_id, event.step / max(event.steps, 1), f"step {event.step}/{event.steps}"
                )
            case StageFinished():
                role = event.timing.role
                self._advance(role, event.request_id, 1.0, f"{event.timing.compute_s * 1e3:.0f} ms")
            case Fetching():
                role, share = Role.DECODER, event.fetched / max(event.size, 1)
                self._advance(role, event.request_id, share, f"fetching, {share:.0%} of {event.size / 1e6:.0f} MB")
            case Finished():
                pass

    def _show_queued(self, event: Queued) -> None:
        if event.missing_roles:
            for role in event.missing_roles:
                self._progress.update(self._bars[role], note=f"no {role} is running")
        elif event.position and self._requests == 1:
            self._progress.update(self._bars[Role.ENCODER], note=f"{event.position} before it")

    def _go_back(self, role: Role, request_id: str, note: str) -> None:
        """Show that this stage and those after it are to be done, maybe again."""
        roles = list(Role)
        for each in roles[roles.index(role) :]:
            if self._done[each].pop(request_id, None) is not None or each is role:
                self._update(each, note if each is role else "")

    def _advance(self, role: Role, request_id: str, fraction: float, note: str) -> None:
        self._done[role][request_id] = fraction
        self._update(role, note)

    def _update(self, role: Role, note: str) -> None:
        done = self._done[role].values()
        if self._requests > 1:
            note = f"{sum(1 for each in done if each == 1)}/{self._requests} requests"
        self._progress.update(self._bars[role], completed=sum(done), note=note)

    def _say(self, line: str) -> None:
        """Print a line above the bars."""
        if not self._progress.disable:
            self._progress.console.print(line, markup=False, highlight=False)
