"""Where pictures go: checked before they are asked for."""

import os
from importlib.util import find_spec
from pathlib import Path

from ...client.result import Image
from ...schemas.errors import ConfigError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def check_output(path: Path, flag: str = "--output") -> None:
    """Raise `ConfigError` where no picture can be written to `path`."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(flag, str(path), f"a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix.lower() != ".png" and find_spec("PIL") is None:
        raise ConfigError(flag, str(path), "a file that ends in .png; other formats need Pillow (the extra images)")
    if path.is_dir():
        raise ConfigError(flag, str(path), "a file; this is a directory")
    if not path.parent.is_dir():
        raise ConfigError(flag, str(path), f"a file in a directory that exists; make {path.parent} first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(flag, str(path), "a file that you may write")


def numbered(path: Path, count: int) -> list[Path]:
    """Return the files for `count` pictures: for one `path` itself; otherwise fox-0.png, fox-1.png, … for fox.png."""
    if count == 1:
        return [path]
    return [path.with_stem(f"{path.stem}-{index}") for index in range(count)]


def save_images(images: tuple[Image, ...], path: Path) -> list[Path]:
    """Write the pictures and return the files."""
    files = numbered(path, len(images))
    for image, file in zip(images, files, strict=True):
        image.save(file)
    return files
