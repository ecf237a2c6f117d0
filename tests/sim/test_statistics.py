"""What a run is told by: quantiles in little memory, levels over time, fairness, and the order of events."""

from random import Random

import pytest

from triptych.sim.agenda import Agenda
from triptych.sim.histogram import RELATIVE_ERROR, Histogram, Level
from triptych.sim.report import jain


@pytest.mark.parametrize("part", [0.01, 0.5, 0.9, 0.99, 0.999, 1.0])
def test_quantiles_are_right_to_one_part_in_a_hundred(part: float) -> None:
    """Over nine orders of magnitude, in a few hundred buckets."""
    random, histogram = Random(3), Histogram()
    values = sorted(10 ** random.uniform(-6, 3) for _ in range(5000))
    for value in values:
        histogram.add(value)
    exact = values[max(0, round(part * len(values)) - 1)]
    assert histogram.quantile(part) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001)
    assert (histogram.count, histogram.largest) == (5000, values[-1])
    assert histogram.mean == pytest.approx(sum(values) / 5000)
    assert len(histogram._buckets) < 1100


def test_zeros_count_as_zeros() -> None:
    """Most requests do not wait at all."""
    histogram = Histogram()
    for value in (0.0, 0.0, 0.0, 8.0):
        histogram.add(value)
    assert (histogram.quantile(0.75), histogram.mean) == (0.0, 2.0)
    assert histogram.quantile(0.76) == pytest.approx(8.0, rel=RELATIVE_ERROR)


def test_a_histogram_of_nothing_is_all_zeros() -> None:
    """It is no error that nothing waited for a role."""
    empty = Histogram()
    assert (empty.count, empty.mean, empty.quantile(0.99), empty.largest) == (0, 0.0, 0.0, 0.0)


def test_a_level_has_a_peak_and_an_area() -> None:
    """2 from 1 s to 4 s, then 1: by 6 s that is 2 × 3 + 1 × 2."""
    level = Level()
    level.change(2, 1.0)
    level.change(-1, 4.0)
    assert (level.now, level.peak, level.area(6.0)) == (1, 2, 8.0)


def test_fairness_is_one_where_all_are_alike_and_one_of_n_where_one_has_all() -> None:
    """Jain's index, which is not defined where nobody has anything."""
    assert jain([3.0, 3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([0.0, 0.0]) is None


def test_deeds_of_one_moment_are_done_in_the_order_they_were_entered_in() -> None:
    """So messages between two processes do not overtake one another; and time never goes back."""
    agenda, done = Agenda(), list[tuple[float, str]]()

    def note(what: str) -> None:
        done.append((agenda.now, what))

    for delay_s, what in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (2.0, "d")):
        agenda.after(delay_s, note, what)
    agenda.standing(9.0, note, "never waited for")
    while agenda.passing:
        agenda.do_next()
    assert done == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]
    agenda.wait_until(4.0)
    agenda.wait_until(3.0)
    assert (agenda.now, agenda.next_time()) == (4.0, 9.0)
