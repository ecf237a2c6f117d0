"""The examples and the README say what is true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_readme_shows_the_example_that_is_tested() -> None:
    """Word for word, from its imports on."""
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    tested = (ROOT / "examples" / "generate.py").read_text()
    assert shown == tested[tested.index("import asyncio") :]


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:)([^)#]+)\)", README))
def test_what_the_readme_links_to_exists(target: str) -> None:
    """Files and pictures."""
    assert (ROOT / target).is_file()


@pytest.mark.parametrize("folder", re.findall(r"^\| `([a-z]+/)` \|", README, re.MULTILINE))
def test_the_folders_of_the_readme_exist(folder: str) -> None:
    """The table follows the tree."""
    assert (ROOT / folder).is_dir()
