"""What an instance was asked and must answer: one that keeps an answer back for too long is as good as silent."""

from .deadlines import Alarm
from .records import Instance, LeaseKey, Question
from .tables import Tables


def ask(t: Tables, instance: Instance, question: Question, key: LeaseKey, timeout_s: float) -> None:
    """Note that `instance` was asked; without an answer after `timeout_s` it is lost."""
    when = t.now + timeout_s
    instance.questions[question, key] = when
    if not t.deadlines.armed(Alarm.ANSWER, instance.peer):
        t.deadlines.arm(Alarm.ANSWER, instance.peer, when)


def note_answer(instance: Instance, question: Question, key: LeaseKey) -> None:
    """Note that `instance` answered, or need not any more. The alarm stays set: it may be early."""
    instance.questions.pop((question, key), None)


def overdue_question(t: Tables, instance: Instance) -> str | None:
    """Return the question that is not answered in time; None, with the alarm set anew, where there is none."""
    if not instance.questions:
        return None
    (question, (request_id, _)), when = min(instance.questions.items(), key=lambda item: item[1])
    if when <= t.now:
        return f"{question} of {request_id}"
    t.deadlines.arm(Alarm.ANSWER, instance.peer, when)
    return None
