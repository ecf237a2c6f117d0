"""The built wheel."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
#: of the checkout, what a build may read
SOURCES = (
    *("pyproject.toml", "README.md", "LICENSE", "__init__.py", "py.typed"),
    *("broker", "client", "ops", "schemas", "services", "sim", "transport"),
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """Return the wheel of the working tree, built from a copy so that the tree stays as it is."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return ZipFile(next(out.glob("*.whl")))
