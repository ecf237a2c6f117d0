"""The drawn pictures on disk, with the scenes they show: memory-mapped, filled once by `training.draw`."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .objects import COLOUR_NAMES, OBJECTS, Scene, Thing

WORK: Final = Path(__file__).parent / "data"
PICTURES: Final = WORK / "pictures.u8"
SCENES: Final = WORK / "scenes.i8"
LATENTS: Final = WORK / "latents.f16"
COUNT: Final = WORK / "drawn.txt"
#: Pictures drawn in all.
CAPACITY: Final = 200_000
PICTURE_SHAPE: Final = (64, 64, 3)
LATENT_SHAPE: Final = (8, 8, 8)
#: first object, its colour, second object, its colour, background, size; -1: none.
SCENE_FIELDS: Final = 6
SIZE_NAMES: Final = ("small", "medium", "large")
#: Read, write what exists, or begin anew.
Mode: TypeAlias = Literal["r", "r+", "w+"]


def pack(scene: Scene) -> list[int]:
    """Return a scene as SCENE_FIELDS small integers."""
    row: list[int] = []
    for thing in scene.things:
        row += [OBJECTS.index(thing.name), -1 if thing.colour is None else COLOUR_NAMES.index(thing.colour)]
    row += [-1] * (4 - len(row))
    return [*row, COLOUR_NAMES.index(scene.background), -1 if scene.size is None else SIZE_NAMES.index(scene.size)]


def unpack(row: Sequence[int]) -> Scene:
    """Return the scene that `pack` packed."""
    pairs = [(row[0], row[1]), (row[2], row[3])]
    things = tuple(Thing(OBJECTS[name], None if ink < 0 else COLOUR_NAMES[ink]) for name, ink in pairs if name >= 0)
    return Scene(things, COLOUR_NAMES[row[4]], None if row[5] < 0 else SIZE_NAMES[row[5]])


def open_pictures(mode: Mode) -> npt.NDArray[np.uint8]:
    """uint8 [CAPACITY, 64, 64, 3]; only the first `drawn()` are there."""
    return np.memmap(PICTURES, np.uint8, mode, shape=(CAPACITY, *PICTURE_SHAPE))


def open_scenes(mode: Mode) -> npt.NDArray[np.int8]:
    """int8 [CAPACITY, SCENE_FIELDS]; only the first `drawn()` are there."""
    return np.memmap(SCENES, np.int8, mode, shape=(CAPACITY, SCENE_FIELDS))


def open_latents(mode: Mode) -> npt.NDArray[np.float16]:
    """float16 [CAPACITY, 8, 8, 8], normalised."""
    return np.memmap(LATENTS, np.float16, mode, shape=(CAPACITY, *LATENT_SHAPE))


def drawn() -> int:
    """How many pictures are on disk by now."""
    return int(COUNT.read_text()) if COUNT.exists() else 0


def some(rng: random.Random, count: int, available: int) -> list[int]:
    """Random places among the pictures that are there."""
    return rng.choices(range(available), k=count)
