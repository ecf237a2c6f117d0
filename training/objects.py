"""What the reference model can draw: the list that renderer, prompts and judge share."""

from typing import Final, NamedTuple


class Rgb(NamedTuple):
    """A colour, 0 to 255 per channel."""

    red: int
    green: int
    blue: int


#: Emoji by the word the model knows them by.
EMOJI: Final[dict[str, str]] = {
    "fox": "🦊",
    "cat": "🐱",
    "dog": "🐶",
    "panda": "🐼",
    "frog": "🐸",
    "pig": "🐷",
    "rabbit": "🐰",
    "penguin": "🐧",
    "owl": "🦉",
    "fish": "🐠",
    "octopus": "🐙",
    "turtle": "🐢",
    "butterfly": "🦋",
    "ladybug": "🐞",
    "whale": "🐳",
    "apple": "🍎",
    "banana": "🍌",
    "strawberry": "🍓",
    "pineapple": "🍍",
    "carrot": "🥕",
    "mushroom": "🍄",
    "cactus": "🌵",
    "tree": "🌳",
    "sunflower": "🌻",
    "pizza": "🍕",
    "donut": "🍩",
    "car": "🚗",
    "boat": "⛵",
    "rocket": "🚀",
    "house": "🏠",
    "ghost": "👻",
    "robot": "🤖",
    "umbrella": "☂️",
    "balloon": "🎈",
}

#: Shapes are drawn in any of COLOURS.
SHAPES: Final[tuple[str, ...]] = ("circle", "square", "triangle", "star", "heart", "ring", "cross")

#: Colours of shapes and of backgrounds.
COLOURS: Final[dict[str, Rgb]] = {
    "red": Rgb(220, 38, 38),
    "orange": Rgb(245, 130, 25),
    "yellow": Rgb(250, 215, 50),
    "green": Rgb(40, 160, 70),
    "blue": Rgb(40, 95, 225),
    "purple": Rgb(130, 50, 185),
    "pink": Rgb(250, 150, 195),
    "white": Rgb(248, 248, 248),
    "black": Rgb(18, 18, 20),
}

OBJECTS: Final[tuple[str, ...]] = (*EMOJI, *SHAPES)
COLOUR_NAMES: Final[tuple[str, ...]] = tuple(COLOURS)


class Thing(NamedTuple):
    """One object in a scene; `colour` only for shapes."""

    name: str
    colour: str | None


class Scene(NamedTuple):
    """One or two things (left to right) of one size on a background. `size` None: not said, anything from medium up."""

    things: tuple[Thing, ...]
    background: str
    size: str | None


def held_out(thing: Thing, background: str) -> bool:
    """Whether this thing never meets this background in training: one background in nine for each thing."""
    row = OBJECTS.index(thing.name) * 4
    if thing.colour is not None:
        row += COLOUR_NAMES.index(thing.colour) * 2
    return (row + COLOUR_NAMES.index(background)) % len(COLOUR_NAMES) == 0
