"""Who imports what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import triptych

from .conftest import ROOT

NEAR_A_SOCKET = ("schemas", "transport", "broker", "client", "services", "ops")
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}


def imported(path: Path) -> set[str]:
    """Return the top-level names of all modules that the file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", NEAR_A_SOCKET)
def test_nothing_near_a_socket_can_unpickle(package: str) -> None:
    """Bytes from a peer become Structs or nothing."""
    files = list((ROOT / package).rglob("*.py"))
    assert files
    assert {str(path): found for path in files if (found := imported(path) & UNSAFE)} == {}


@pytest.mark.parametrize("package", NEAR_A_SOCKET)
def test_inside_the_package_imports_are_relative(package: str) -> None:
    """So that the checkout's folder may have any name."""
    assert [str(path) for path in (ROOT / package).rglob("*.py") if "triptych" in imported(path)] == []


def test_the_layers_are_kept() -> None:
    """The contracts of import-linter."""
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_public_names_exist() -> None:
    """Each is what it says, and a wrong one is an AttributeError."""
    for name in triptych.__all__:
        assert getattr(triptych, name) is not None
        assert name in dir(triptych)
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        _ = triptych.Cleint  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_triptych_imports_nothing_else() -> None:
    """The public face is lazy; not even ZeroMQ is imported before it is needed."""
    code = "import sys, triptych; print([name for name in sys.modules if name.startswith(('zmq', 'msgspec', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
