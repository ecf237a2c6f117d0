"""What people type for a scene, in many phrasings."""

import random
from typing import Final

from .objects import Scene, Thing

#: How a thing stands before its background; {o} the thing, {b} the background's colour.
_TEMPLATES: Final = (
    "{o} on a {b} background",
    "{o} on a {b} background",
    "{o} on {b}",
    "{o} on {b}",
    "{o} on {b} background",
    "{o}, {b} background",
    "{b} background, {o}",
    "{b} background with {o}",
    "{o} with a {b} background",
    "{o} over a {b} background",
    "{o} in front of a {b} background",
    "{o} against a {b} background",
    "{o} on a plain {b} background",
    "{o} on a solid {b} background",
    "{o}, {b}",
    "{o} in front of a {b} wall",
    "on a {b} background, {o}",
    "{o} on a {b} page",
    "{o}. the background is {b}",
)
_FRAMES: Final = ("a picture of {}", "an image of {}", "a drawing of {}", "draw {}", "show me {}", "an icon of {}")
_PAIRS: Final = ("{} and {}", "{} and {}", "{} next to {}", "{} beside {}", "{} with {}", "{}, {}")
_SIZE_WORDS: Final[dict[str, tuple[str, ...]]] = {"small": ("small",), "medium": ("medium",), "large": ("large",)}
_VOWELS: Final = "aeiou"


def _with_article(phrase: str, rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.25:
        return phrase
    if chance < 0.35:
        return f"the {phrase}"
    return f"{'an' if phrase[0] in _VOWELS else 'a'} {phrase}"


def _say_thing(thing: Thing, size: str | None, rng: random.Random, forget: float) -> str:
    words = [] if size is None else [rng.choice(_SIZE_WORDS[size])]
    if thing.colour is not None and rng.random() >= forget:
        words.append(thing.colour)
    return _with_article(" ".join([*words, thing.name]), rng)


def _say_things(scene: Scene, rng: random.Random, forget: float = 0.0) -> str:
    if len(scene.things) == 1:
        return _say_thing(scene.things[0], scene.size, rng, forget)
    first, second = (_say_thing(thing, scene.size, rng, forget) for thing in scene.things)
    return rng.choice(_PAIRS).format(first, second)


def _misspelled(prompt: str, rng: random.Random) -> str:
    """Misspell a word: one letter doubled, lost or swapped: it will be spelled in bytes."""
    words = prompt.split(" ")
    i = rng.randrange(len(words))
    word = words[i]
    if len(word) < 3:
        return prompt
    at = rng.randrange(1, len(word))
    changed = (
        word[:at] + word[at - 1 :],
        word[:at] + word[at + 1 :],
        word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :],
    )
    words[i] = rng.choice(changed)
    return " ".join(words)


def describe_fully(scene: Scene, rng: random.Random) -> str:
    """One way to ask for all of the scene, well spelled."""
    prompt = rng.choice(_TEMPLATES).format(o=_say_things(scene, rng), b=scene.background)
    return rng.choice(_FRAMES).format(prompt) if rng.random() < 0.1 else prompt


def describe(scene: Scene, rng: random.Random) -> str:
    """One way to ask for the scene; now and then it leaves out a colour or the background, or misspells a word."""
    prompt = _say_things(scene, rng, forget=0.2) if rng.random() < 0.03 else describe_fully(scene, rng)
    return _misspelled(prompt, rng) if rng.random() < 0.06 else prompt
