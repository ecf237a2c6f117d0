"""The pages say what the code does."""

from docs.diagrams import PAGE, with_diagram


def test_the_state_diagram_is_the_machines_table() -> None:
    """Drawing it anew changes nothing; `python -m docs.diagrams` mends it."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_diagram(page) == page
