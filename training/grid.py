"""Draws labelled grids with the shipped weights: python -m training.grid."""

import argparse
from pathlib import Path
from typing import Final

import torch
from PIL import Image, ImageDraw, ImageFont

from triptych.schemas.sampling import SamplingParams

from .generate import Generator

TARGET: Final = Path(__file__).parent.parent / "docs" / "images" / "reference-grid.png"
COLUMNS: Final = 6
SCALE: Final = 2
LABEL: Final = 30
GAP: Final = 8
PROMPTS: Final = (
    "a fox on blue",
    "a cat on a pink background",
    "a panda on orange",
    "a large frog, white background",
    "an owl on a purple background",
    "an octopus on black",
    "a turtle on a yellow background",
    "a butterfly on green",
    "a whale on a white background",
    "a small penguin on red",
    "a strawberry on blue",
    "a pineapple on a purple background",
    "a mushroom on a blue background",
    "a slice of pizza on green",
    "a cactus on pink",
    "a car on a white background",
    "a sailboat on orange",
    "a rocket on black",
    "a ghost on a purple background",
    "a robot on yellow",
    "a small red star on a white background",
    "a large pink heart on black",
    "a green circle on an orange background",
    "a dog and a rabbit on blue",
)


def _label(draw: ImageDraw.ImageDraw, text: str, left: int, top: int, width: int) -> None:
    font = ImageFont.load_default(size=11)
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if draw.textlength(longer, font=font) > width and line:
            lines.append(line)
            line = word
        else:
            line = longer
    for row, words in enumerate([*lines, line]):
        draw.text((left + width / 2, top + 13 * row), words, font=font, fill=(40, 40, 40), anchor="ma")


def grid(prompts: tuple[str, ...], seed: int, steps: int, guidance: float) -> Image.Image:
    """All prompts with one seed, COLUMNS in a row, the prompt under each picture."""
    generator = Generator()
    side = 64 * SCALE
    rows = -(-len(prompts) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (side + GAP) + GAP, rows * (side + LABEL + GAP) + GAP), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for i, prompt in enumerate(prompts):
        params = SamplingParams(prompt, seed=seed, num_inference_steps=steps, guidance_scale=guidance)
        picture = Image.fromarray(generator(params)[0].numpy()).resize((side, side), Image.Resampling.BICUBIC)
        left, top = GAP + i % COLUMNS * (side + GAP), GAP + i // COLUMNS * (side + LABEL + GAP)
        sheet.paste(picture, (left, top))
        _label(draw, prompt, left, top + side + 2, side)
    return sheet


def main() -> None:
    """Write the README's grid, or one of your own prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=SamplingParams("").guidance_scale)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    o.output.parent.mkdir(parents=True, exist_ok=True)
    grid(tuple(o.prompts), o.seed, o.steps, o.guidance).save(o.output, optimize=True)


if __name__ == "__main__":
    main()
