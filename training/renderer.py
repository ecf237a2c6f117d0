"""Draws scenes as 64 x 64 pictures, with jitter in place, angle, scale and colour."""

import functools
import math
import random
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from .objects import COLOURS, EMOJI, Rgb, Scene, Thing

SIDE: Final = 64
#: Noto Color Emoji, SIL Open Font License 1.1, Debian package fonts-noto-color-emoji.
FONT: Final = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
#: Side of the master drawing of an object, in pixels.
SPRITE: Final = 136
#: Longest side of an object, in pixels.
SIZES: Final[dict[str, tuple[int, int]]] = {"small": (24, 28), "medium": (36, 42), "large": (50, 56)}
ANY_SIZE: Final = (38, 54)
PAIR_SIZES: Final[dict[str, tuple[int, int]]] = {"small": (18, 21), "medium": (24, 26), "large": (28, 30)}
ANY_PAIR_SIZE: Final = (25, 30)
MAX_ANGLE: Final = 10.0

Picture: TypeAlias = npt.NDArray[np.uint8]


def _polar(count: int, radii: tuple[float, ...], start: float) -> list[tuple[float, float]]:
    middle = SPRITE / 2
    points: list[tuple[float, float]] = []
    for i in range(count):
        angle = math.radians(start + 360 * i / count)
        radius = radii[i % len(radii)]
        points.append((middle + radius * math.cos(angle), middle + radius * math.sin(angle)))
    return points


def _heart() -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for i in range(120):
        t = 2 * math.pi * i / 120
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((SPRITE / 2 + 3.9 * x, SPRITE / 2 - 3.9 * (y + 2.5)))
    return points


def _shape(name: str) -> Image.Image:
    mask = Image.new("L", (SPRITE, SPRITE), 0)
    draw = ImageDraw.Draw(mask)
    near, far = 6, SPRITE - 7
    third = (far - near) / 3
    match name:
        case "circle":
            draw.ellipse((near, near, far, far), fill=255)
        case "square":
            draw.rectangle((near + 6, near + 6, far - 6, far - 6), fill=255)
        case "triangle":
            draw.polygon([(SPRITE / 2, near + 4), (far, far - 8), (near, far - 8)], fill=255)
        case "star":
            draw.polygon(_polar(10, (64, 27), -90), fill=255)
        case "heart":
            draw.polygon(_heart(), fill=255)
        case "ring":
            draw.ellipse((near, near, far, far), fill=255)
            draw.ellipse((near + 30, near + 30, far - 30, far - 30), fill=0)
        case _:
            draw.rectangle((near + third, near, far - third, far), fill=255)
            draw.rectangle((near, near + third, far, far - third), fill=255)
    sprite = Image.new("RGBA", (SPRITE, SPRITE), (255, 255, 255, 0))
    sprite.putalpha(mask)
    return sprite


@functools.cache
def sprite(name: str) -> Image.Image:
    """Return the master drawing of an object: RGBA, SPRITE x SPRITE, the object centred; a shape is white."""
    if name not in EMOJI:
        return _shape(name)
    font = ImageFont.truetype(str(FONT), 109)
    canvas = Image.new("RGBA", (220, 220), (0, 0, 0, 0))
    ImageDraw.Draw(canvas).text((20, 20), EMOJI[name], font=font, embedded_color=True)
    drawn = canvas.crop(canvas.getbbox())
    scale = SPRITE / max(drawn.size)
    drawn = drawn.resize((round(drawn.width * scale), round(drawn.height * scale)), Image.Resampling.BICUBIC)
    square = Image.new("RGBA", (SPRITE, SPRITE), (0, 0, 0, 0))
    square.paste(drawn, ((SPRITE - drawn.width) // 2, (SPRITE - drawn.height) // 2))
    return square


def _jittered(colour: Rgb, rng: random.Random, amount: int) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, channel + rng.randint(-amount, amount))) for channel in colour)
    return red, green, blue


def _place(picture: Image.Image, thing: Thing, side: int, middle: tuple[float, float], rng: random.Random) -> None:
    turned = sprite(thing.name).rotate(rng.uniform(-MAX_ANGLE, MAX_ANGLE), Image.Resampling.BICUBIC, expand=True)
    side = round(side * turned.width / SPRITE)
    small = turned.resize((side, side), Image.Resampling.BOX if side * 4 < SPRITE else Image.Resampling.HAMMING)
    corner = (round(middle[0] - side / 2), round(middle[1] - side / 2))
    if thing.colour is None:
        picture.paste(small, corner, small)
    else:
        ink = Image.new("RGB", small.size, _jittered(COLOURS[thing.colour], rng, 6))
        picture.paste(ink, corner, small)


def render(scene: Scene, rng: random.Random) -> Picture:
    """Draw a scene: uint8 [64, 64, 3]."""
    picture = Image.new("RGB", (SIDE, SIDE), _jittered(COLOURS[scene.background], rng, 6))
    pair = len(scene.things) == 2
    sizes, any_size = (PAIR_SIZES, ANY_PAIR_SIZE) if pair else (SIZES, ANY_SIZE)
    low, high = any_size if scene.size is None else sizes[scene.size]
    for i, thing in enumerate(scene.things):
        side = rng.randint(low, high)
        room = max(1.0, min(6.0, (SIDE - side) / 2)) if not pair else 1.5
        centre = SIDE * (1 + 2 * i) / 4 if pair else SIDE / 2
        middle = (centre + rng.uniform(-room, room), SIDE / 2 + rng.uniform(-room, room))
        _place(picture, thing, side, middle, rng)
    return np.asarray(picture)
