"""Random scenes: what to draw. Held-out combinations never come out of `trained_scene`."""

import random
from typing import Final

from .objects import COLOUR_NAMES, EMOJI, SHAPES, Scene, Thing, held_out

PAIR_SHARE: Final = 0.12
SIZE_NAMES: Final = ("small", "medium", "large")


def _thing(rng: random.Random) -> Thing:
    if rng.random() < 0.7:
        return Thing(rng.choice(tuple(EMOJI)), None)
    return Thing(rng.choice(SHAPES), rng.choice(COLOUR_NAMES))


def trained_scene(rng: random.Random) -> Scene:
    """Draw a scene for training: one thing mostly, two sometimes, said size half of the time."""
    while True:
        count = 2 if rng.random() < PAIR_SHARE else 1
        things = tuple(_thing(rng) for _ in range(count))
        background = rng.choice(COLOUR_NAMES)
        if any(held_out(thing, background) or thing.colour == background for thing in things):
            continue
        size = rng.choice(SIZE_NAMES) if rng.random() < 0.5 else None
        return Scene(things, background, size)


def held_out_scenes() -> list[Scene]:
    """Return every single-thing scene that training never shows, without a size."""
    things = [Thing(name, None) for name in EMOJI]
    things += [Thing(shape, colour) for shape in SHAPES for colour in COLOUR_NAMES]
    return [
        Scene((thing,), background, None)
        for thing in things
        for background in COLOUR_NAMES
        if held_out(thing, background) and thing.colour != background
    ]
