"""Judges the shipped weights: python -m training.judge.

A small classifier, trained on rendered pictures, says which object it sees; the background is the palette colour
nearest to the picture's border. Figures go to training/judge.json.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from triptych.schemas.sampling import SamplingParams

from .generate import Generator
from .objects import COLOURS, EMOJI, OBJECTS, Scene
from .prompts import describe_fully
from .renderer import render
from .scenes import SIZE_NAMES, held_out_scenes, trained_scene
from .store import CAPACITY, SCENE_FIELDS, open_pictures, open_scenes
from .tensors import channels_last, checkpoint, read, write
from .train_vae import to_float

SEED: Final = 20261201
RESULT: Final = Path(__file__).parent / "judge.json"
CLASSIFIER: Final = checkpoint("classifier")


class Classifier(nn.Module):
    """Says which of OBJECTS is in a picture."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.PixelUnshuffle(2)]
        for before, after in ((12, 32), (32, 64), (64, 128), (128, 128)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(128 * 4, len(OBJECTS)))

    def forward(self, images: Tensor) -> Tensor:
        """Float [N, 3, 64, 64] in -1 to 1 to logits [N, len(OBJECTS)]."""
        out: Tensor = self.body(images)
        return out


def _softened(images: Tensor, rng: random.Random) -> Tensor:
    """Half of the batches a little blurred, so that the judge looks at what is drawn and not at how sharp it is."""
    if rng.random() < 0.5:
        return images
    small = functional.interpolate(images, size=rng.choice((32, 40, 48)), mode="bilinear", antialias=True)
    return functional.interpolate(small, size=64, mode="bilinear")


def train_classifier(steps: int, batch: int = 128) -> Classifier:
    """Train on the stored pictures of one thing."""
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    pictures, scenes = open_pictures("r"), torch.from_numpy(open_scenes("r")[:])
    assert scenes.shape == (CAPACITY, SCENE_FIELDS)
    single = cast("list[int]", (scenes[:, 2] < 0).nonzero().flatten().tolist())
    model = channels_last(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        places = rng.choices(single, k=batch)
        images = _softened(to_float(torch.from_numpy(pictures[places])), rng)
        loss = functional.cross_entropy(model(images), scenes[places, 0].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    write(CLASSIFIER, model.state_dict())
    return model.eval()


@torch.no_grad()
def accuracy_on_renders(model: Classifier, count: int = 2000) -> float:
    """Measure the classifier's accuracy on freshly drawn pictures."""
    rng = random.Random(SEED + 1)
    scenes = [scene for scene in (trained_scene(rng) for _ in range(2 * count)) if len(scene.things) == 1][:count]
    images = to_float(torch.stack([torch.from_numpy(render(scene, rng).copy()) for scene in scenes]))
    wanted = torch.tensor([OBJECTS.index(scene.things[0].name) for scene in scenes])
    seen: Tensor = torch.cat([model(images[i : i + 250]) for i in range(0, len(images), 250)]).argmax(dim=1)
    return float((seen == wanted).float().mean())


def nearest_colour(pixels: Tensor) -> str:
    """Return the palette's name for the median of uint8 pixels [n, 3]."""
    palette = torch.tensor(list(COLOURS.values()), dtype=torch.float32)
    middle = pixels.float().median(dim=0).values
    return list(COLOURS)[int((palette - middle).square().sum(dim=1).argmin())]


def background_of(picture: Tensor) -> str:
    """Return the colour of the border of uint8 [H, W, 3]."""
    edges = (
        picture[:2].flatten(0, 1),
        picture[-2:].flatten(0, 1),
        picture[:, :2].flatten(0, 1),
        picture[:, -2:].flatten(0, 1),
    )
    return nearest_colour(torch.cat(edges))


def _shape_colour(picture: Tensor, background: str) -> str:
    palette = torch.tensor(list(COLOURS.values()), dtype=torch.float32)
    ground = palette[list(COLOURS).index(background)]
    pixels = picture.reshape(-1, 3).float()
    far = (pixels - ground).square().sum(dim=1).sqrt() > 60
    return nearest_colour(pixels[far]) if bool(far.any()) else background


def _asked(count: int) -> list[tuple[Scene, str]]:
    rng = random.Random(SEED + 2)
    scenes = held_out_scenes()
    emoji = [scene for scene in scenes if scene.things[0].name in EMOJI]
    shapes = [scene for scene in scenes if scene.things[0].name not in EMOJI]
    asked: list[tuple[Scene, str]] = []
    for i in range(count):
        scene = rng.choice(shapes) if i % 10 < 3 else emoji[i % len(emoji)]
        scene = scene._replace(size=rng.choice((None, None, None, *SIZE_NAMES)))
        asked.append((scene, describe_fully(scene, rng)))
    return asked


def judge(model: Classifier, count: int, steps: int, guidance: float) -> dict[str, object]:
    """Draw `count` held-out prompts and look at them."""
    generator = Generator()
    objects = backgrounds = inks = shapes = 0
    misses: list[str] = []
    for i, (scene, prompt) in enumerate(_asked(count)):
        params = SamplingParams(prompt, seed=i, num_inference_steps=steps, guidance_scale=guidance)
        picture = generator(params)[0]
        with torch.no_grad():
            seen = OBJECTS[int(model(to_float(picture[None])).argmax())]
        thing, ground = scene.things[0], background_of(picture)
        objects += seen == thing.name
        backgrounds += ground == scene.background
        if thing.colour is not None:
            shapes += 1
            inks += _shape_colour(picture, scene.background) == thing.colour
        if (seen, ground) != (thing.name, scene.background):
            misses.append(f"{prompt!r} (seed {i}): {seen} on {ground}")
    return {
        "prompts": count,
        "steps": steps,
        "guidance": guidance,
        "object_right": objects / count,
        "background_right": backgrounds / count,
        "shape_colour_right": inks / max(1, shapes),
        "misses": misses,
    }


def main() -> None:
    """Train the classifier unless it is there, then judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=SamplingParams("").guidance_scale)
    parser.add_argument("--classifier-steps", type=int, default=2500)
    parser.add_argument("--threads", type=int, default=1)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    if CLASSIFIER.exists():
        model = Classifier()
        model.load_state_dict(read(CLASSIFIER))
        model.eval()
    else:
        model = train_classifier(o.classifier_steps)
    figures: dict[str, object] = {"classifier_accuracy_on_renders": accuracy_on_renders(model)}
    figures |= judge(model, o.count, o.steps, o.guidance)
    RESULT.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(figures, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
