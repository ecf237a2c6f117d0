"""How fast requests end, as far as it was seen: when to ask again after a refusal."""

#: seconds between two ends, before anything was seen
DEFAULT_INTERVAL_S = 1.0

#: seconds
SHORTEST_S, LONGEST_S = 0.1, 60.0

#: the weight of the newest interval
WEIGHT = 0.2


class Pace:
    """A moving average of the time between two ends while requests wait; idle times do not count."""

    __slots__ = ("_busy_since", "_interval_s", "_refused")

    def __init__(self) -> None:
        self._interval_s: float | None = None
        #: the last end, if requests waited then
        self._busy_since: float | None = None
        #: since the last end
        self._refused = 0

    def ended(self, now: float, *, others_wait: bool) -> None:
        """Note that a request ended."""
        if self._busy_since is not None:
            seen = now - self._busy_since
            known = self._interval_s
            self._interval_s = seen if known is None else known + WEIGHT * (seen - known)
        self._busy_since = now if others_wait else None
        self._refused = 0

    def retry_after_s(self) -> float:
        """Return when to ask again: the n-th refused since the last end, after n more ends."""
        self._refused += 1
        interval = DEFAULT_INTERVAL_S if self._interval_s is None else self._interval_s
        return min(max(interval * self._refused, SHORTEST_S), LONGEST_S)
