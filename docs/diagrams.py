"""Draws the request's states in `architecture.md` from the machine's own table: `python -m docs.diagrams`."""

from pathlib import Path

from triptych.broker.machine.transitions import LEGAL
from triptych.schemas.states import TERMINAL_STATES, RequestState

PAGE = Path(__file__).parent / "architecture.md"
BEGIN, END = "```mermaid\nstateDiagram-v2\n", "```\n"


def state_diagram() -> str:
    """Return the states and transitions as a Mermaid block; the early ends, possible everywhere, are drawn once."""
    lines = ["    [*] --> PENDING"]
    early = TERMINAL_STATES - {RequestState.DONE}
    steps = [(start, finish) for start in LEGAL for finish in RequestState if finish in LEGAL[start] - early]
    lines += [f"    {start} --> {finish}" for start, finish in steps]
    everywhere = set.intersection(*(set(finishes) for finishes in LEGAL.values() if finishes)) & early
    lines += [f"    any --> {finish}" for finish in RequestState if finish in everywhere]
    lines += ["    any: any of the states before DONE"]
    return BEGIN + "\n".join(lines) + "\n" + END


def with_diagram(page: str) -> str:
    """Return `page` with its diagram drawn anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + state_diagram() + after


if __name__ == "__main__":
    PAGE.write_text(with_diagram(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
