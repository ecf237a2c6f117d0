"""Prompts to token ids: a word is one token, and any text has a reading.

A word with one slip of the finger is read as the word that was meant. A word that is still unknown is spelled in UTF-8
bytes if the prompt names nothing that can be drawn; beside a known thing it is passed over, for it would only confuse.
"""

import re
import unicodedata
from collections.abc import Iterator
from string import ascii_lowercase
from typing import Final

from .vocabulary import ALIASES, THINGS, WORDS

#: Tokens the text encoder reads; what is beyond is cut off.
MAX_TOKENS: Final = 32
PAD: Final = 0
START: Final = 1
#: Stands before the bytes of a spelled word.
SPELL: Final = 2
_FIRST_BYTE: Final = 3
_FIRST_WORD: Final = _FIRST_BYTE + 256
VOCABULARY_SIZE: Final = 512
#: Bytes of a spelled word that are read, so that one strange word does not push the rest of the prompt out.
_MAX_SPELLED: Final = 7
#: Only this many characters are looked at, so that a prompt of any length costs the same.
_MAX_CHARACTERS: Final = 1024

#: Longer words than this, in letters, are not looked at for slips.
_LONGEST_CORRECTED: Final = 16

_WORD_IDS: Final[dict[str, int]] = {word: _FIRST_WORD + i for i, word in enumerate(WORDS)}
_PIECES: Final = re.compile(r"medium-sized|mid-sized|[^\W\d_]+|\d|[^\s\w]|_")
#: Variation selectors and joiners: they change how a character looks, not what it says.
_INVISIBLE: Final = re.compile("[\ufe00-\ufe0f\u200b-\u200f\u2060\U0001f3fb-\U0001f3ff]")


def _meant(word: str) -> str | None:
    for form in (word, word.removesuffix("s"), word.removesuffix("es")):
        found = ALIASES.get(form, form)
        if found in _WORD_IDS:
            return found
    return None


def _slips(word: str) -> Iterator[str]:
    """Undo one swapped, one superfluous or one lost letter."""
    for i in range(1, len(word)):
        yield word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :]
    for i in range(1, len(word)):
        yield word[:i] + word[i + 1 :]
    for i in range(1, len(word) + 1):
        for letter in ascii_lowercase:
            yield word[:i] + letter + word[i:]


def _read(piece: str) -> str | None:
    """Return the known word that a piece of text stands for, if any."""
    found = _meant(piece)
    if found is None and 4 <= len(piece) <= _LONGEST_CORRECTED:
        found = next((slip for slip in _slips(piece) if len(slip) >= 4 and slip in _WORD_IDS), None)
    return found


def spell(word: str) -> list[int]:
    """Return the tokens of a word that has none of its own."""
    return [SPELL, *(_FIRST_BYTE + byte for byte in word.encode("utf-8", "surrogatepass")[:_MAX_SPELLED])]


def tokenize(prompt: str) -> list[int]:
    """Return the token ids of a prompt, START first, at most MAX_TOKENS, without padding."""
    text = unicodedata.normalize("NFKC", prompt[:_MAX_CHARACTERS]).casefold()
    pieces: list[str] = _PIECES.findall(_INVISIBLE.sub("", text))
    words = [_read(piece) for piece in pieces]
    names_a_thing = not THINGS.isdisjoint(words)
    tokens = [START]
    for piece, word in zip(pieces, words, strict=True):
        if word is not None:
            tokens.append(_WORD_IDS[word])
        elif not names_a_thing:
            tokens.extend(spell(piece))
    return tokens[:MAX_TOKENS]
