"""The small parts: heap, queue, policies, receive slots, pace, stories, deadlines."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.broker.machine.deadlines import Alarm, Deadlines
from triptych.broker.machine.free import FreeInstances
from triptych.broker.machine.heaps import SLACK, KeyedHeap
from triptych.broker.machine.pace import LONGEST_S, SHORTEST_S, Pace
from triptych.broker.machine.policies import POLICIES, Wish
from triptych.broker.machine.records import Instance, Lease, Phase
from triptych.broker.machine.settings import PolicyName
from triptych.broker.machine.slots import ReceiveSlots
from triptych.broker.machine.story import LINES, REMEMBERED, EndedStories, Story
from triptych.schemas.memory import Slot

from .kit import FIXED, peer_of, record_of, registration

#: of a request without an input
ANYWHERE = Wish()

keys = st.integers(0, 5)
changes = st.lists(st.tuples(keys, st.none() | st.integers(0, 20)), max_size=60)


@given(changes)
def test_a_heap_is_a_sorted_dict(changes: list[tuple[int, int | None]]) -> None:
    """After any puts, moves and removals the heap's first item is the one with the smallest key."""
    heap, model = KeyedHeap[int](), dict[int, int]()
    for item, key in changes:
        if key is None:
            heap.discard(item)
            model.pop(item, None)
        else:
            heap.put(item, (key,))
            model[item] = key
        first = heap.first()
        assert sorted(heap.items()) == sorted(model)
        assert (first is None) == (not model)
        if first is not None:
            assert heap.first_key() == heap.key_of(first) == (min(model.values()),) == (model[first],)


def test_a_heap_forgets_stale_entries() -> None:
    """However often items move, the heap holds at most about twice as many entries as items."""
    heap = KeyedHeap[int]()
    for number in range(10_000):
        heap.put(number % 10, (Random(number).random(),))
    assert len(heap._entries) <= 2 * 10 + SLACK


def instance_of(name: str, order: int, capacity: int = 2, slots: tuple[Slot, ...] = ()) -> Instance:
    return Instance(
        peer_of(name), registration(name, capacity=capacity, receive_slots=slots), order, ReceiveSlots(slots), 0.0
    )


def load(free: FreeInstances, instance: Instance, grant: int) -> None:
    """Let `instance` take one more request."""
    request = record_of(f"r{grant}", grant)
    key = (request.request_id, 1)
    instance.leases[key] = Lease(key, request, instance, Phase.RUNNING)
    instance.outstanding_s += 1.0
    instance.last_granted = grant
    free.refresh(instance)


#: policy: the instances that nine requests in a row go to; d1 takes 2 and has 1 slot, d2 4 and 2, d3 3 and none
PICKS = {
    PolicyName.ROUND_ROBIN: ["d1", "d2", "d3", "d1", "d2", "d3", "d2", "d3", "d2"],
    PolicyName.LEAST_LOADED: ["d1", "d2", "d3", "d1", "d2", "d3", "d2", "d3", "d2"],
    PolicyName.MAX_FREE_SLOTS: ["d2", "d2", "d2", "d2", "d1", "d1", "d3", "d3", "d3"],
}


@pytest.mark.parametrize("policy", PolicyName)
def test_a_policy_picks_in_its_order(policy: PolicyName) -> None:
    """Each policy spreads requests its own way and never picks a full instance."""
    free = FreeInstances(POLICIES[policy], "default")
    slots = (FIXED, Slot(1, 8192, 2048))
    instances = [instance_of("d1", 1, 2, slots[:1]), instance_of("d2", 2, 4, slots), instance_of("d3", 3, 3)]
    for instance in instances:
        free.refresh(instance)
    picks: list[str] = []
    while (picked := free.pick(ANYWHERE)) is not None:
        picks.append(picked.instance_id)
        load(free, picked, len(picks))
    assert picks == PICKS[policy]


def test_max_free_slots_follows_the_slots() -> None:
    """With equal leases the instance with more free receive slots is picked, as they are taken and given back."""
    free = FreeInstances(POLICIES[PolicyName.MAX_FREE_SLOTS], "default")
    first, second = instance_of("d1", 1, slots=(FIXED, Slot(1, 8192, 2048))), instance_of("d2", 2, slots=(FIXED,))
    for instance in (first, second):
        free.refresh(instance)
    assert free.pick(ANYWHERE) is first
    taken = [first.slots.take(1), first.slots.take(1)]
    free.refresh(first)
    assert free.pick(ANYWHERE) is second
    first.slots.give_back(taken[0])
    first.slots.give_back(taken[1])
    free.refresh(first)
    assert free.pick(ANYWHERE) is first


@pytest.mark.parametrize("reason", ["alive", "resting", "draining", "leaving"])
def test_who_can_take_nothing_is_not_picked(reason: str) -> None:
    """A lost, resting or draining instance is out until it can take work again."""
    free = FreeInstances(POLICIES[PolicyName.LEAST_LOADED], "default")
    instance = instance_of("d1", 1)
    setattr(instance, reason, reason != "alive")
    free.refresh(instance)
    assert (free.pick(ANYWHERE), len(free), instance in free) == (None, 0, False)


def test_slots_come_back_whole() -> None:
    """A pre-allocated slot is free, taken, free again, or retired; a dynamic one is taken, then unknown."""
    small, large, dynamic = Slot(0, 0, 512), Slot(1, 512, 1024), Slot(9, 4096, 100)
    slots = ReceiveSlots((large, small))
    assert [slots.take(size) for size in (600, 600, 0, 0)] == [large, None, small, None]
    assert slots.adoption_problem(dynamic, 100, 8192) is None
    slots.adopt(dynamic)
    assert slots.adoption_problem(Slot(10, 4195, 100), 100, 8192) == "slot 10 overlaps another receive slot"
    slots.give_back(dynamic)
    slots.give_back(large, retire=True)
    slots.give_back(small)
    assert (slots.taken, slots.retired, slots.free_ids(), slots.take(600)) == ({}, {1}, {0}, None)
    assert slots.adoption_problem(Slot(10, 600, 100), 100, 8192) == "slot 10 overlaps another receive slot"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8))
def test_an_overlap_is_found(ranges: list[tuple[int, int]]) -> None:
    """A dynamic slot is adopted if, and only if, it shares no byte with a slot that exists."""
    slots = ReceiveSlots(())
    known: list[Slot] = []
    for number, (offset, size) in enumerate(ranges):
        slot = Slot(number, offset, size)
        free = not any(max(offset, one.offset) < min(offset + size, one.offset + one.size) for one in known)
        assert (slots.adoption_problem(slot, 0, 100) is None) == free
        if free:
            slots.adopt(slot)
            known.append(slot)


def test_the_pace_is_that_of_the_ends_seen() -> None:
    """The time to ask again follows the time between ends while requests wait, within bounds."""
    pace = Pace()
    for second in range(0, 40, 4):
        pace.ended(float(second), others_wait=True)
    assert [pace.retry_after_s() for _ in range(3)] == [4.0, 8.0, 12.0]
    pace.ended(40.0, others_wait=False)
    pace.ended(1000.0, others_wait=True)
    assert pace.retry_after_s() == 4.0
    assert max(pace.retry_after_s() for _ in range(100)) == LONGEST_S
    for step in range(100):
        pace.ended(1000.0 + step * 1e-6, others_wait=True)
    assert pace.retry_after_s() == SHORTEST_S


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    """A story of many lines is cut in the middle, and says so."""
    story = Story()
    for number in range(1000):
        story.add(float(number), "again", "d1")
    lines = story.lines()
    assert len(lines) == 2 * LINES + 1
    assert (lines[0], lines[LINES], lines[-1]) == ("0.000 again (d1)", "… 936 more …", "999.000 again (d1)")


def test_only_so_many_stories_are_kept() -> None:
    """The oldest story is forgotten for the newest."""
    ended = EndedStories()
    for number in range(REMEMBERED + 1):
        ended.keep(f"r{number}", Story())
    assert (len(ended), "r0" in ended, "r1" in ended) == (REMEMBERED, False, True)


def test_deadlines_come_in_order() -> None:
    """The earliest alarm is due first, an alarm can be moved and dropped, and none comes early."""
    deadlines = Deadlines()
    deadlines.arm(Alarm.REQUEST, "r1", 3.0)
    deadlines.arm(Alarm.ALLOC, "r1", 1.0)
    deadlines.arm(Alarm.REQUEST, "r2", 2.0)
    deadlines.arm(Alarm.ALLOC, "r1", 5.0)
    deadlines.disarm(Alarm.REQUEST, "r2")
    assert (deadlines.earliest(), deadlines.pop_due(2.9)) == (3.0, None)
    assert [deadlines.pop_due(9.0) for _ in range(3)] == [(Alarm.REQUEST, "r1"), (Alarm.ALLOC, "r1"), None]
    assert deadlines.earliest() is None
