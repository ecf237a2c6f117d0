"""Statistics of a stream that need no more memory the longer it is."""

from math import ceil, exp, log

#: a quantile is off by at most this part of itself
RELATIVE_ERROR = 0.01

#: two values in one bucket differ by this factor at most
_GROWTH = ((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)) if RELATIVE_ERROR else 1.0
_PER_LOG = 1 / log(_GROWTH)


class Histogram:
    """Counts of values in buckets that grow geometrically; values of 0 have one of their own.

    Quantiles are right to `RELATIVE_ERROR`; count, mean and maximum are exact. From a nanosecond to thirty years it
    takes about 2,000 buckets, of which those exist that have been hit (Masson, Rim, Lee: DDSketch, 2019).
    """

    __slots__ = ("_buckets", "_zeros", "count", "largest", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._zeros = 0
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        """Count `value`, which is not negative."""
        self.count += 1
        if value <= 0:
            self._zeros += 1
            return
        self.total += value
        self.largest = max(self.largest, value)
        bucket = ceil(log(value) * _PER_LOG)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float:
        """The mean; 0 where nothing was counted."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, part: float) -> float:
        """Return the value that `part` of all do not exceed; 0 where nothing was counted."""
        rank = ceil(part * self.count)
        seen = self._zeros
        if rank <= seen:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                # the point of the bucket that is equally far from both its ends, in relation to each
                return min(self.largest, 2 * exp(bucket / _PER_LOG) / (_GROWTH + 1))
        return self.largest


class Level:
    """A number that goes up and down in time: its mean over time, and its peak."""

    __slots__ = ("_area", "_since", "now", "peak")

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._area = 0.0
        self._since = 0.0

    def change(self, by: int, when: float) -> None:
        """Note that it is `by` more from `when` on."""
        self._area += self.now * (when - self._since)
        self._since = when
        self.now += by
        self.peak = max(self.peak, self.now)

    def area(self, when: float) -> float:
        """Return its integral over time, up to `when`."""
        return self._area + self.now * (when - self._since)
