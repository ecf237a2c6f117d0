"""What an instance was asked and must answer: one that keeps an answer back for too long is as good as silent.

All of one kind have the same time to be answered, so the first that was asked is the first that is overdue.
"""

from collections.abc import Mapping

from .deadlines import Alarm
from .records import Instance, LeaseKey, Question
from .tables import Tables

ALARM_OF: Mapping[Question, Alarm] = {Question.PUSH: Alarm.PUSH, Question.ABORT: Alarm.ABORT}


def ask(t: Tables, instance: Instance, question: Question, key: LeaseKey, timeout_s: float) -> None:
    """Note that `instance` was asked; without an answer after `timeout_s` it is lost."""
    when = t.now + timeout_s
    instance.questions[question][key] = when
    if not t.deadlines.armed(ALARM_OF[question], instance.peer):
        t.deadlines.arm(ALARM_OF[question], instance.peer, when)


def note_answer(instance: Instance, question: Question, key: LeaseKey) -> None:
    """Note that `instance` answered, or need not any more. The alarm stays set: it may be early."""
    instance.questions[question].pop(key, None)


def overdue_question(t: Tables, instance: Instance, question: Question) -> str | None:
    """Return what is not answered in time; None, with the alarm set anew, where there is nothing."""
    first = next(iter(instance.questions[question].items()), None)
    if first is None:
        return None
    (request_id, _), when = first
    if when <= t.now:
        return f"{question} of {request_id}"
    t.deadlines.arm(ALARM_OF[question], instance.peer, when)
    return None
