"""Several pictures as one, each with its prompt below it. Needs Pillow."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

COLUMNS = 3
#: of one picture in the grid, in pixels
TILE = 256
CAPTION = 36
GAP = 16
_PAPER = (255, 255, 255)
_INK = (40, 40, 40)


def save_grid(pictures: Sequence[tuple[str, Image.Image]], path: Path) -> None:
    """Write the labelled pictures, three in a row, to `path`."""
    rows = -(-len(pictures) // COLUMNS)
    columns = min(COLUMNS, len(pictures))
    size = (GAP + columns * (TILE + GAP), GAP + rows * (TILE + CAPTION + GAP))
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=15)
    for index, (label, picture) in enumerate(pictures):
        row, column = divmod(index, COLUMNS)
        left, top = GAP + column * (TILE + GAP), GAP + row * (TILE + CAPTION + GAP)
        sheet.paste(picture.convert("RGB").resize((TILE, TILE), Image.Resampling.BICUBIC), (left, top))
        draw.text((left + TILE / 2, top + TILE + CAPTION / 2), label, _INK, font, anchor="mm")
    sheet.save(path)
