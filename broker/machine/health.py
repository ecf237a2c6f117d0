"""Instances that keep failing are passed over for a while, longer each time: one broken GPU must not eat the queue.

A circuit breaker (Nygard, Release It!, 2007) per instance: closed, open while it rests, then half open, when it is
given one request at a time until one succeeds.
"""

from .deadlines import Alarm
from .records import Instance
from .tables import Tables

#: the exponent of the longest back-off there is any use of
MOST_DOUBLINGS = 30


def note_failure(t: Tables, instance: Instance) -> None:
    """Note that an attempt failed on `instance`, alive or lost."""
    instance.failures += 1
    t.failures.note(instance.instance_id, instance.failures)
    if instance.alive:
        rest_if_failing(t, instance)


def note_success(t: Tables, instance: Instance) -> None:
    """Note that a stage was done on `instance`."""
    if instance.failures:
        instance.failures = 0
        instance.on_probation = False
        t.failures.note(instance.instance_id, 0)
        if instance.alive:
            t.refresh(instance)


def rest_if_failing(t: Tables, instance: Instance) -> None:
    """Pass `instance` over for a while if it has failed too often in a row."""
    excess = instance.failures - t.settings.failures_in_a_row
    if excess >= 0:
        instance.on_probation = True
        back_off_s = t.settings.back_off_s * 2.0 ** min(excess, MOST_DOUBLINGS)
        rest(t, instance, min(back_off_s, t.settings.longest_back_off_s))


def rest(t: Tables, instance: Instance, pause_s: float) -> None:
    """Pass `instance` over for so long, at least."""
    instance.resting = True
    t.refresh(instance)
    until = t.now + pause_s
    if until > t.deadlines.when(Alarm.REST, instance.peer):
        t.deadlines.arm(Alarm.REST, instance.peer, until)


def rested(t: Tables, instance: Instance) -> None:
    """Give `instance` work again."""
    instance.resting = False
    t.refresh(instance)
