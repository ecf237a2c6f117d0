"""The machine is pure: what it imports, and how its files are built."""

import ast
from pathlib import Path

import triptych.broker.machine

FOLDER = Path(triptych.broker.machine.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))

#: what a pure machine may use besides the schemas
ALLOWED = {
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "difflib",
    "enum",
    "heapq",
    "ipaddress",
    "itertools",
    "math",
    "typing",
}
ALLOWED |= {"msgspec", "msgspec.structs"}


def imports(path: Path) -> set[str]:
    """Return what a file imports; relative imports with their dots."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def test_nothing_ambient_is_imported() -> None:
    """No clock, randomness, socket, thread or log: only the schemas, itself, and pure parts of the standard library."""
    strangers = {
        name
        for path in FILES
        for name in imports(path)
        if name not in ALLOWED and not name.startswith("...schemas") and not (name.startswith(".") and name[1:2] != ".")
    }
    assert strangers == set()


def test_functions_and_files_stay_small() -> None:
    """No function has more than 40 lines, and no file more than 400."""
    lengths = {
        f"{path.name}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert max(lengths.values()) <= 40
    assert max(len(path.read_text().splitlines()) for path in FILES) <= 400
