"""The words the reference model was trained on, and other words for the same things.

The order of WORDS is part of the weights: append, never reorder.
"""

from typing import Final

_THING_TEXT: Final = """
fox cat dog panda frog pig rabbit penguin owl fish octopus turtle butterfly ladybug whale
apple banana strawberry pineapple carrot mushroom cactus tree sunflower pizza donut
car boat rocket house ghost robot umbrella balloon
circle square triangle star heart ring cross
"""
_COLOURS_AND_SIZES: Final = "red orange yellow green blue purple pink white black colored small medium large"
_GLUE: Final = """
a an the one two single on in at of with over and before against front behind to next beside near by
left right side together background backdrop surface plain solid flat color wall page is it its has
picture photo drawing image icon emoji sticker painting illustration sketch art
draw show me paint make give please i want would like some sized simple nice cute , . : - ! ?
"""

#: What can be drawn.
THINGS: Final[frozenset[str]] = frozenset(_THING_TEXT.split())

#: Words with an embedding of their own; everything else is spelled in bytes.
WORDS: Final[tuple[str, ...]] = tuple(f"{_THING_TEXT} {_COLOURS_AND_SIZES} {_GLUE}".split())

#: Other spellings, read as if the word on the right had been typed.
ALIASES: Final[dict[str, str]] = {
    **dict.fromkeys(("vixen", "🦊"), "fox"),
    **dict.fromkeys(("kitty", "kitten", "🐱", "🐈"), "cat"),
    **dict.fromkeys(("puppy", "doggy", "🐶", "🐕"), "dog"),
    "🐼": "panda",
    **dict.fromkeys(("toad", "🐸"), "frog"),
    **dict.fromkeys(("piglet", "piggy", "🐷", "🐖"), "pig"),
    **dict.fromkeys(("bunny", "hare", "🐰", "🐇"), "rabbit"),
    "🐧": "penguin",
    "🦉": "owl",
    **dict.fromkeys(("🐠", "🐟"), "fish"),
    **dict.fromkeys(("squid", "🐙"), "octopus"),
    **dict.fromkeys(("tortoise", "🐢"), "turtle"),
    "🦋": "butterfly",
    **dict.fromkeys(("ladybird", "beetle", "🐞"), "ladybug"),
    **dict.fromkeys(("🐳", "🐋"), "whale"),
    "🍎": "apple",
    "🍌": "banana",
    "🍓": "strawberry",
    "🍍": "pineapple",
    "🥕": "carrot",
    **dict.fromkeys(("toadstool", "🍄"), "mushroom"),
    **dict.fromkeys(("cacti", "🌵"), "cactus"),
    "🌳": "tree",
    **dict.fromkeys(("flower", "🌻"), "sunflower"),
    "🍕": "pizza",
    **dict.fromkeys(("doughnut", "🍩"), "donut"),
    **dict.fromkeys(("automobile", "🚗", "🚘"), "car"),
    **dict.fromkeys(("sailboat", "ship", "yacht", "⛵"), "boat"),
    **dict.fromkeys(("spaceship", "🚀"), "rocket"),
    **dict.fromkeys(("home", "cottage", "🏠", "🏡"), "house"),
    "👻": "ghost",
    "🤖": "robot",
    **dict.fromkeys(("parasol", "☂", "☔"), "umbrella"),
    "🎈": "balloon",
    **dict.fromkeys(("disc", "disk", "dot", "ball"), "circle"),
    **dict.fromkeys(("box",), "square"),
    "⭐": "star",
    **dict.fromkeys(("❤", "♥"), "heart"),
    **dict.fromkeys(("plus",), "cross"),
    **dict.fromkeys(("crimson", "scarlet"), "red"),
    **dict.fromkeys(("gold", "golden"), "yellow"),
    **dict.fromkeys(("navy", "azure"), "blue"),
    **dict.fromkeys(("violet",), "purple"),
    **dict.fromkeys(("magenta",), "pink"),
    **dict.fromkeys(("dark",), "black"),
    **dict.fromkeys(("coloured",), "colored"),
    **dict.fromkeys(("colour",), "color"),
    **dict.fromkeys(("tiny", "little", "mini"), "small"),
    **dict.fromkeys(("big", "huge", "giant"), "large"),
    **dict.fromkeys(("medium-sized", "mid-sized"), "medium"),
}
