"""How long things take: distributions as a plan gives them, each with its mean and a way to draw from it."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist, fmean
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")

Draw = Callable[[], float]

Time = Annotated[float, Meta(ge=0, le=1e9)]
SomeTime = Annotated[float, Meta(gt=0, le=1e9)]

#: standard deviations from the median of a normal distribution to its 99th percentile
_Z99 = NormalDist().inv_cdf(0.99)


class Constant(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """Always the same."""

    #: in seconds
    value_s: Time

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.value_s

    def sampler(self, _random: Random) -> Draw:
        """Return what draws one."""
        return lambda: self.value_s


class Exponential(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="exponential"):
    """Without memory: the one of the queueing theory of textbooks."""

    #: in seconds
    mean_s: SomeTime

    def sampler(self, random: Random) -> Draw:
        """Return what draws one."""
        rate, draw = 1.0 / self.mean_s, random.expovariate
        return lambda: draw(rate)


class Lognormal(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lognormal"):
    """What measured stage times mostly look like: given by its mean, and either its 99th percentile or its sigma."""

    #: in seconds
    mean_s: SomeTime
    #: in seconds; more than the mean, and not more than 14 times that, which no lognormal reaches
    p99_s: SomeTime | None = None
    #: standard deviation of the logarithm
    sigma: Annotated[float, Meta(ge=0, le=10)] | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` where it is not given by exactly one of the two, or by what no lognormal has."""
        if (self.p99_s is None) == (self.sigma is None):
            raise ValueError("either p99_s or sigma beside mean_s")
        if self.p99_s is not None and not 0 <= log(self.p99_s / self.mean_s) <= _Z99**2 / 2:
            most = exp(_Z99**2 / 2) * self.mean_s
            raise ValueError(f"p99_s from mean_s, {self.mean_s:g}, to {most:.4g}: no lognormal has another")

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithm: the smaller root of `sigma²/2 - z·sigma + ln(p99/mean) = 0`."""
        if self.sigma is not None:
            return self.sigma
        p99_s = self.mean_s if self.p99_s is None else self.p99_s
        return _Z99 - sqrt(max(0.0, _Z99**2 - 2 * log(p99_s / self.mean_s)))

    def sampler(self, random: Random) -> Draw:
        """Return what draws one."""
        sigma, draw = self.spread, random.lognormvariate
        mu = log(self.mean_s) - sigma**2 / 2
        return lambda: draw(mu, sigma)


class Empirical(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="empirical"):
    """One of the values that somebody measured, each as likely as the others."""

    #: in seconds
    values_s: Annotated[tuple[Time, ...], Meta(min_length=1)]

    @property
    def mean_s(self) -> float:
        """The mean."""
        return fmean(self.values_s)

    def sampler(self, random: Random) -> Draw:
        """Return what draws one."""
        values, count, draw = self.values_s, len(self.values_s), random.random
        return lambda: values[int(draw() * count)]


Distribution = Constant | Exponential | Lognormal | Empirical


def weighted(items: tuple[T, ...], weights: tuple[float, ...], random: Random) -> Callable[[], T]:
    """Return what draws one of `items`, each as often as its weight says."""
    if len(items) == 1:
        return lambda: items[0]
    bounds = list(accumulate(weights))
    draw, last = random.random, len(items) - 1
    return lambda: items[min(bisect_right(bounds, draw() * bounds[-1]), last)]
