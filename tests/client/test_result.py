"""Pictures on the caller's side."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image as PILImage

from triptych.client import Image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """Return a picture of 2 × 1 pixels, red and blue."""
    picture = PILImage.new("RGB", (2, 1), (255, 0, 0))
    picture.putpixel((1, 0), (0, 0, 255))
    picture.save(tmp_path / "made.png")
    return Image((tmp_path / "made.png").read_bytes(), "image/png", 2, 1, seed=3)


def test_a_picture_becomes_a_pil_image(image: Image) -> None:
    """Pixels are those that were encoded."""
    picture = image.to_pil()
    assert (picture.size, picture.getpixel((1, 0))) == ((2, 1), (0, 0, 255))


def test_a_picture_becomes_an_array(image: Image) -> None:
    """Rows, columns, channels."""
    assert image.to_numpy().tolist() == [[[255, 0, 0], [0, 0, 255]]]


@pytest.mark.parametrize("name", ["fox.png", "fox", "fox.unknown"])
def test_save_writes_the_bytes_as_they_came(image: Image, tmp_path: Path, name: str) -> None:
    """Nothing is encoded twice."""
    image.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == image.data


def test_save_converts_where_the_name_asks_for_another_format(image: Image, tmp_path: Path) -> None:
    """A file called .jpg holds a JPEG."""
    image.save(str(tmp_path / "fox.jpg"))
    with PILImage.open(tmp_path / "fox.jpg") as picture:
        assert (picture.format, picture.size) == ("JPEG", (2, 1))


@pytest.mark.parametrize(("call", "library"), [("to_pil", "PIL"), ("to_numpy", "numpy")])
def test_without_the_extra_the_error_names_it(call: str, library: str) -> None:
    """In a process that lacks the library."""
    code = f"""
import sys
sys.modules["{library}"] = None
from triptych.client import Image
try:
    Image(b"", "image/png", 1, 1, 0).{call}()
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert " needs " in done.stdout
    assert "pip install '.[images]'" in done.stdout
