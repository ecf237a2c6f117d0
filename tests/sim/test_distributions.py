"""Times are drawn as the plan says."""

from math import log
from random import Random
from statistics import fmean, quantiles, stdev

import msgspec
import pytest

from triptych.sim.distributions import Constant, Distribution, Empirical, Exponential, Lognormal, weighted

DRAWS = 40_000


def draws(distribution: Distribution, count: int = DRAWS) -> list[float]:
    draw = distribution.sampler(Random(1))
    return [draw() for _ in range(count)]


@pytest.mark.parametrize(
    "distribution",
    [
        Constant(2.0),
        Exponential(2.0),
        Lognormal(2.0, p99_s=5.0),
        Lognormal(2.0, sigma=0.7),
        Empirical((1.0, 1.0, 4.0)),
    ],
    ids=repr,
)
def test_draws_have_the_mean_that_was_asked_for(distribution: Distribution) -> None:
    """So an operator who measured a mean gets it."""
    assert fmean(draws(distribution)) == pytest.approx(2.0, rel=0.02)
    assert distribution.mean_s == pytest.approx(2.0)


def test_a_lognormal_has_the_percentile_that_was_asked_for() -> None:
    """One request in a hundred takes longer than `p99_s`."""
    assert quantiles(draws(Lognormal(2.0, p99_s=5.0)), n=100)[98] == pytest.approx(5.0, rel=0.03)


def test_a_lognormal_has_the_sigma_that_was_asked_for() -> None:
    """That of the logarithm."""
    assert stdev(map(log, draws(Lognormal(2.0, sigma=0.7)))) == pytest.approx(0.7, rel=0.02)


def test_a_lognormal_without_spread_is_a_constant() -> None:
    """Where the mean and the percentile are the same."""
    assert draws(Lognormal(2.0, p99_s=2.0), 3) == pytest.approx([2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"mean_s": 2.0}, "either p99_s or sigma beside mean_s"),
        ({"mean_s": 2.0, "p99_s": 3.0, "sigma": 1.0}, "either p99_s or sigma beside mean_s"),
        ({"mean_s": 2.0, "p99_s": 1.9}, "p99_s from mean_s, 2, to 29.94: no lognormal has another"),
        ({"mean_s": 2.0, "p99_s": 30.0}, "p99_s from mean_s, 2, to 29.94: no lognormal has another"),
    ],
)
def test_a_lognormal_that_cannot_be_is_refused(values: dict[str, float], complaint: str) -> None:
    """With what would be right."""
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.convert(values, Lognormal)


def test_measured_values_are_all_drawn_and_nothing_else() -> None:
    """Each about as often as the others."""
    found = draws(Empirical((1.0, 2.0, 4.0)), 3000)
    assert set(found) == {1.0, 2.0, 4.0}
    assert all(900 < found.count(value) < 1100 for value in (1.0, 2.0, 4.0))


def test_kinds_come_as_often_as_their_weights_say() -> None:
    """One of weight 3 comes three times as often as one of weight 1."""
    draw = weighted(("often", "seldom"), (3.0, 1.0), Random(1))
    found = [draw() for _ in range(DRAWS)]
    assert found.count("often") / DRAWS == pytest.approx(0.75, abs=0.01)


def test_the_same_seed_draws_the_same() -> None:
    """And another seed draws something else."""
    first, same, other = (Lognormal(2.0, sigma=1.0).sampler(Random(seed)) for seed in (1, 1, 2))
    assert first() == same() != other()
