"""What happens to a request, as `Client.stream` yields it."""

from msgspec import Struct

from ..schemas.client import ProgressMsg, QueuedMsg, RetryingMsg, StageFinishedMsg, StageStartedMsg
from ..schemas.roles import Role
from ..schemas.timing import StageTiming
from .result import Result


class Queued(Struct, frozen=True):
    """The broker accepted the request; `position` requests wait before it. `missing_roles` have no instance now.

    It comes again when a broker that restarted has to be asked again.
    """

    request_id: str
    position: int
    missing_roles: tuple[Role, ...]


class StageStarted(Struct, frozen=True):
    """The instance `instance_id` computes the stage `role`: this one and those after it are to be done, again maybe."""

    request_id: str
    role: Role
    instance_id: str


class StepDone(Struct, frozen=True):
    """Step `step` of `steps` of the stage is done."""

    request_id: str
    role: Role
    step: int
    steps: int


class StageFinished(Struct, frozen=True):
    """The stage is computed; `timing` says what it took."""

    request_id: str
    timing: StageTiming


class Retrying(Struct, frozen=True):
    """An attempt failed for `reason`; the request goes on as `attempt`, from the stage of `role`."""

    request_id: str
    attempt: int
    role: Role
    reason: str


class Fetching(Struct, frozen=True):
    """The result is large and on its way: `fetched` of `size` bytes have come."""

    request_id: str
    fetched: int
    size: int


class Finished(Struct, frozen=True):
    """The pictures are here. Nothing comes after this."""

    request_id: str
    result: Result


Event = Queued | StageStarted | StepDone | StageFinished | Retrying | Fetching | Finished
EventMsg = QueuedMsg | StageStartedMsg | ProgressMsg | StageFinishedMsg | RetryingMsg


def event_from(message: EventMsg) -> Event:
    """Return `message` as the event a caller sees."""
    match message:
        case QueuedMsg():
            return Queued(message.request_id, message.position, message.missing_roles)
        case StageStartedMsg():
            return StageStarted(message.request_id, message.role, message.instance_id)
        case ProgressMsg():
            return StepDone(message.request_id, message.role, message.step, message.steps)
        case StageFinishedMsg():
            return StageFinished(message.request_id, message.timing)
        case RetryingMsg():
            return Retrying(message.request_id, message.attempt, message.role, message.reason)
