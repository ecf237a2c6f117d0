"""The legal transitions of a request, and the one function that makes them.

A request moves along its stages. Where an attempt fails it goes back: to wait for the same stage, whose input still
exists, or for the first. From any state but a terminal one it may end early. A broker that restarted takes a request up
where the services that hold it stand.
"""

from collections.abc import Mapping

from ...schemas.errors import InvalidTransition
from ...schemas.states import RequestState as S
from .commands import ReportTransition
from .records import Request
from .stages import STAGES
from .story import tell
from .tables import Tables

_EARLY_ENDS = frozenset({S.FAILED, S.TIMED_OUT, S.CANCELLED})

#: from a state to those it may become
LEGAL: Mapping[S, frozenset[S]] = {
    S.PENDING: frozenset({S.ENCODER_WAITING}) | _EARLY_ENDS,
    S.ENCODER_WAITING: frozenset({S.ENCODER_RUNNING}) | _EARLY_ENDS,
    S.ENCODER_RUNNING: frozenset({S.ENCODER_DONE, S.ENCODER_WAITING}) | _EARLY_ENDS,
    S.ENCODER_DONE: frozenset({S.DENOISING_WAITING}) | _EARLY_ENDS,
    S.DENOISING_WAITING: frozenset({S.DENOISING_RUNNING, S.ENCODER_WAITING}) | _EARLY_ENDS,
    S.DENOISING_RUNNING: frozenset({S.DENOISING_DONE, S.DENOISING_WAITING, S.ENCODER_WAITING}) | _EARLY_ENDS,
    S.DENOISING_DONE: frozenset({S.DECODER_WAITING}) | _EARLY_ENDS,
    S.DECODER_WAITING: frozenset({S.DECODER_RUNNING, S.ENCODER_WAITING}) | _EARLY_ENDS,
    S.DECODER_RUNNING: frozenset({S.DONE, S.DECODER_WAITING, S.ENCODER_WAITING}) | _EARLY_ENDS,
    S.DONE: frozenset(),
    S.FAILED: frozenset(),
    S.TIMED_OUT: frozenset(),
    S.CANCELLED: frozenset(),
}


#: the further ones that hold while services register which a broker before this one knew
_TAKEN_UP = [S.PENDING, *(state for stage in STAGES.values() for state in (stage.waiting, stage.running))]
TAKE_UP: Mapping[S, frozenset[S]] = {state: frozenset(_TAKEN_UP[place + 1 :]) for place, state in enumerate(_TAKEN_UP)}


def move(t: Tables, request: Request, finish: S, cause: str, instance_id: str = "") -> None:
    """Move `request` to `finish` because of `cause`; a transition outside the table is a bug and raises."""
    start = request.state
    if finish not in LEGAL[start] and not (request.unsettled and finish in TAKE_UP.get(start, ())):
        raise InvalidTransition(request.request_id, start, finish, request.story.lines())
    request.state = finish
    tell(t, request, f"{start} → {finish}: {cause}", instance_id)
    t.out.append(ReportTransition(request.request_id, request.attempt, start, finish, cause, instance_id))
