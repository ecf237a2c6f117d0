"""What `pip install triptych` puts where."""

from pathlib import Path
from zipfile import ZipFile

from .conftest import ROOT, SOURCES


def test_the_wheel_holds_the_packages_of_the_tree_and_nothing_else(wheel: ZipFile) -> None:
    """No module is forgotten in the list of packages, and no test or script slips in."""
    packages = [ROOT / name for name in SOURCES if (ROOT / name).is_dir()]
    files = [path for package in packages for path in package.rglob("*") if _ships(path)]
    expected = {f"triptych/{path.relative_to(ROOT)}" for path in [*files, ROOT / "__init__.py", ROOT / "py.typed"]}
    info = {name for name in wheel.namelist() if ".dist-info/" in name}
    assert set(wheel.namelist()) - info == expected


def _ships(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


def test_only_triptych_comes_to_site_packages(wheel: ZipFile) -> None:
    """Beside its metadata."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"triptych"}


def test_the_wheel_is_typed_and_licensed(wheel: ZipFile) -> None:
    """Type checkers look for py.typed, lawyers for the licence."""
    names = wheel.namelist()
    assert "triptych/py.typed" in names
    (licence,) = [name for name in names if name.endswith("/LICENSE")]
    assert b"Apache License" in wheel.read(licence)[:200]


def test_the_root_holds_no_other_module() -> None:
    """The root is the package; a script there would be part of it."""
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]
