"""What happened to each request, for people; of those that ended, the last ones."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import Request
    from .tables import Tables

#: lines kept of one request: the first ones, and as many of the last
LINES = 32

#: ended requests whose story is kept
REMEMBERED = 1000


class Story:
    """The life of one request, line by line. Should there be many, those in the middle are forgotten."""

    __slots__ = ("_count", "_first", "_last")

    def __init__(self) -> None:
        self._first: list[tuple[float, str, str]] = []
        self._last = deque[tuple[float, str, str]](maxlen=LINES)
        self._count = 0

    def add(self, now: float, what: str, instance_id: str) -> None:
        """Add a line."""
        self._count += 1
        lines = self._first if len(self._first) < LINES else self._last
        lines.append((now, what, instance_id))

    def lines(self) -> list[str]:
        """Return the story as text."""
        forgotten = self._count - len(self._first) - len(self._last)
        gap = [f"… {forgotten} more …"] if forgotten else []
        return [*map(_line, self._first), *gap, *map(_line, islice(self._last, LINES))]


class EndedStories:
    """The stories of the requests that ended last."""

    __slots__ = ("_stories",)

    def __init__(self) -> None:
        self._stories = OrderedDict[str, Story]()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._stories

    def __len__(self) -> int:
        return len(self._stories)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stories)

    def keep(self, request_id: str, story: Story) -> None:
        """Keep `story`, and forget the oldest."""
        self._stories[request_id] = story
        if len(self._stories) > REMEMBERED:
            self._stories.popitem(last=False)

    def lines(self, request_id: str) -> list[str]:
        """Return the story as text, empty where it is not known (any more)."""
        story = self._stories.get(request_id)
        return [] if story is None else story.lines()


def tell(t: "Tables", request: "Request", what: str, instance_id: str = "") -> None:
    """Add a line to the request's story."""
    request.story.add(t.now, what, instance_id)


def _line(entry: tuple[float, str, str]) -> str:
    now, what, instance_id = entry
    return f"{now:.3f} {what} ({instance_id})" if instance_id else f"{now:.3f} {what}"
