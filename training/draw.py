"""Draws the training pictures: python -m training.draw."""

import random

from .renderer import render
from .scenes import trained_scene
from .store import CAPACITY, COUNT, WORK, open_pictures, open_scenes, pack

SEED = 20261201


def main() -> None:
    """Fill the store, telling the trainers every 500 pictures how far it is."""
    WORK.mkdir(exist_ok=True)
    COUNT.write_text("0")
    pictures, scenes = open_pictures("w+"), open_scenes("w+")
    rng = random.Random(SEED)
    for i in range(CAPACITY):
        scene = trained_scene(rng)
        pictures[i] = render(scene, rng)
        scenes[i] = pack(scene)
        if (i + 1) % 500 == 0:
            part = COUNT.with_suffix(".part")
            part.write_text(str(i + 1))
            part.replace(COUNT)


if __name__ == "__main__":
    main()
