"""What is done when a deadline comes."""

from collections.abc import Callable, Mapping

from ...schemas.errors import RequestTimedOut
from ...schemas.states import RequestState
from .clients import client_silent
from .deadlines import Alarm
from .dispatch import give_up_early
from .endings import end_early, fail_attempt
from .events import TimePassed
from .feasibility import latest_start, unreachable
from .health import rested
from .hops import alloc_late
from .questions import overdue_question
from .records import Instance, Question, Request
from .registry import lose
from .results import expire_relays
from .stages import WAITING_FOR
from .tables import Tables

#: an alarm that was early and is not due yet comes again after this, in seconds
SOON_S = 0.01


def time_passed(t: Tables, _event: TimePassed) -> None:
    """Do what is due. Only here time has effects: what arrived before is handled before it is missed."""
    while (due := t.deadlines.pop_due(t.now)) is not None:
        alarm, subject = due
        if isinstance(subject, str):
            _OF_REQUESTS[alarm](t, t.requests[subject])
        elif alarm is Alarm.CLIENT:
            client_silent(t, subject)
        else:
            _OF_INSTANCES[alarm](t, t.by_peer[subject])
    expire_relays(t)


def _lease_out(t: Tables, instance: Instance) -> None:
    """Count a silent instance as lost. What it says only moves `expires_at`, so the alarm may be early."""
    if instance.expires_at > t.now:
        t.deadlines.arm(Alarm.LEASE, instance.peer, instance.expires_at)
    else:
        lose(t, instance, "lost", f"nothing was heard of it for {t.settings.lease_s:g} s")


def _answer_out(question: Question) -> Callable[[Tables, Instance], None]:
    """Return what counts an instance as lost that keeps an answer back: what it holds would be held for ever."""

    def lose_the_silent(t: Tables, instance: Instance) -> None:
        overdue = overdue_question(t, instance, question)
        if overdue is not None:
            lose(t, instance, "lost", f"it did not answer {overdue} in time")

    return lose_the_silent


def _time_out(t: Tables, request: Request) -> None:
    """End a request whose time is over, or will be before it can be done. It may be early for one that runs."""
    if t.now >= request.deadline:
        error = RequestTimedOut(request.timeout_s, request.state)
        end_early(t, request, RequestState.TIMED_OUT, error, f"not done after {request.timeout_s:g} s")
    elif request.state not in WAITING_FOR or request.lease is not None:
        t.deadlines.arm(Alarm.REQUEST, request.request_id, request.deadline)
    elif (needed_s := unreachable(request, t.now)) is not None:
        give_up_early(t, request, needed_s)
    else:
        t.deadlines.arm(Alarm.REQUEST, request.request_id, max(latest_start(request), t.now + SOON_S))


def _stage_late(t: Tables, request: Request) -> None:
    """Stop an attempt that takes too long, though its instance is alive, and make it elsewhere."""
    lease = request.lease
    if lease is not None:
        fail_attempt(t, request, f"{lease.instance}: not done with its stage in time", lease.instance)


def _settle(t: Tables, request: Request) -> None:
    """Let a request wait for its turn that was taken up with nobody computing it."""
    request.unsettled = False
    if request.lease is None:
        t.put(request.model.pools[WAITING_FOR[request.state]], request)


def _try_again(t: Tables, request: Request) -> None:
    t.put(request.model.pools[WAITING_FOR[request.state]], request)


_OF_INSTANCES: Mapping[Alarm, Callable[[Tables, Instance], None]] = {
    Alarm.LEASE: _lease_out,
    Alarm.PUSH: _answer_out(Question.PUSH),
    Alarm.ABORT: _answer_out(Question.ABORT),
    Alarm.REST: rested,
}

_OF_REQUESTS: Mapping[Alarm, Callable[[Tables, Request], None]] = {
    Alarm.REQUEST: _time_out,
    Alarm.ALLOC: alloc_late,
    Alarm.PARKED: _try_again,
    Alarm.STAGE: _stage_late,
    Alarm.SETTLE: _settle,
}
