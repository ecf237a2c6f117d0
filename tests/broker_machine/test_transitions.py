"""The table of states: every pair of them, legal or not."""

from itertools import pairwise, product

import pytest

from triptych.broker.machine.commands import ReportTransition
from triptych.broker.machine.records import Request
from triptych.broker.machine.settings import DispatchSettings
from triptych.broker.machine.stages import STAGES
from triptych.broker.machine.tables import Tables, new_tables
from triptych.broker.machine.transitions import LEGAL, move
from triptych.schemas.errors import InvalidTransition
from triptych.schemas.roles import Role
from triptych.schemas.states import TERMINAL_STATES
from triptych.schemas.states import RequestState as S

from .kit import record_of

PATH = [
    S.PENDING,
    S.ENCODER_WAITING,
    S.ENCODER_RUNNING,
    S.ENCODER_DONE,
    S.DENOISING_WAITING,
    S.DENOISING_RUNNING,
    S.DENOISING_DONE,
    S.DECODER_WAITING,
    S.DECODER_RUNNING,
    S.DONE,
]
EARLY_ENDS = {S.FAILED, S.TIMED_OUT, S.CANCELLED}
STEPS = set(pairwise(PATH))
#: where an attempt fails
BACK = {
    (S.ENCODER_RUNNING, S.ENCODER_WAITING),
    (S.DENOISING_WAITING, S.ENCODER_WAITING),
    (S.DENOISING_RUNNING, S.DENOISING_WAITING),
    (S.DENOISING_RUNNING, S.ENCODER_WAITING),
    (S.DECODER_WAITING, S.ENCODER_WAITING),
    (S.DECODER_RUNNING, S.DECODER_WAITING),
    (S.DECODER_RUNNING, S.ENCODER_WAITING),
}
LEGAL_PAIRS = STEPS | BACK | {(state, end) for state in PATH[:-1] for end in EARLY_ENDS}


def given(state: S) -> tuple[Tables, Request]:
    t = new_tables(DispatchSettings(), "")
    t.now = 5.0
    return t, record_of("r1", state=state)


@pytest.mark.parametrize(("start", "finish"), sorted(LEGAL_PAIRS))
def test_a_legal_transition_is_made_and_reported(start: S, finish: S) -> None:
    """A transition of the table changes the state, and is reported and told in the story, with its cause."""
    t, request = given(start)
    move(t, request, finish, "because", "d1")
    assert (request.state, t.out) == (finish, [ReportTransition("r1", 1, start, finish, "because", "d1")])
    assert request.story.lines() == [f"5.000 {start} → {finish}: because (d1)"]


@pytest.mark.parametrize(("start", "finish"), sorted(set(product(S, S)) - LEGAL_PAIRS))
def test_any_other_transition_is_a_bug(start: S, finish: S) -> None:
    """A transition outside the table raises, with the request's story, and changes nothing."""
    t, request = given(start)
    request.story.add(1.0, "it began", "")
    with pytest.raises(InvalidTransition) as caught:
        move(t, request, finish, "because")
    assert vars(caught.value) == {
        "request_id": "r1",
        "start": start,
        "finish": finish,
        "story": ["1.000 it began"],
    }
    assert (request.state, t.out) == (start, [])


def test_a_request_that_is_taken_up_may_only_go_further() -> None:
    """While services register that knew a broker before this one, a request goes to any later state it can stand in."""
    places = [state for state in PATH if state not in {S.ENCODER_DONE, S.DENOISING_DONE, S.DONE}]
    for start, finish in product(places, places):
        t, request = given(start)
        request.unsettled = True
        if places.index(finish) > places.index(start) or (start, finish) in BACK:
            move(t, request, finish, "taken up")
            assert request.state is finish
        else:
            with pytest.raises(InvalidTransition):
                move(t, request, finish, "taken up")


def test_the_table_has_every_state() -> None:
    """Each state is in the table, and exactly the terminal ones lead nowhere."""
    assert set(LEGAL) == set(S)
    assert {state for state, finishes in LEGAL.items() if not finishes} == TERMINAL_STATES


def test_the_stages_follow_the_path() -> None:
    """The states of the three stages, one after the other, are the path that every request takes."""
    states = [state for role in Role for state in (STAGES[role].waiting, STAGES[role].running, STAGES[role].done)]
    assert states == PATH[1:]
    assert [STAGES[role].follower for role in Role] == [Role.DENOISER, Role.DECODER, None]
