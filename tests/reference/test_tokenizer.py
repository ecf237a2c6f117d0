"""Any text has a reading."""

import pytest

from triptych.services.pipelines.reference.text_encoder import prompt_tokens
from triptych.services.pipelines.reference.tokenizer import MAX_TOKENS, START, VOCABULARY_SIZE, spell, tokenize
from triptych.services.pipelines.reference.vocabulary import ALIASES, WORDS

ODD = (
    "",
    " \t\n",
    "🦊🏽‍♀️ on 🔵",
    "ثعلب على خلفية زرقاء",
    "キツネ、青い背景",
    "a fox on blue " * 10_000,
    "x" * 100_000,
    "\ud800",
    "\x00\x01",
    "e\u0301" * 50,
    "½ ﬁ ²",
)


@pytest.mark.parametrize("prompt", ODD)
def test_any_text_is_read(prompt: str) -> None:
    """Odd text gives at most MAX_TOKENS known tokens, START first."""
    tokens = tokenize(prompt)

    assert tokens[0] == START
    assert len(tokens) <= MAX_TOKENS
    assert all(0 < token < VOCABULARY_SIZE for token in tokens)


def test_known_words_are_one_token_each() -> None:
    """A prompt of known words has one token per word after START, whatever its case and spaces."""
    assert len(tokenize("a  FOX on\tBlue")) == 5
    assert tokenize("a  FOX on\tBlue") == tokenize("a fox on blue")


def test_unknown_words_are_spelled() -> None:
    """A word without a token of its own is spelled in bytes."""
    assert tokenize("a zorro")[2:] == spell("zorro")


def test_only_the_beginning_of_a_long_unknown_word_is_spelled() -> None:
    """What follows a long unknown word is still read."""
    assert tokenize("pneumonoultramicroscopicsilicovolcanoconiosis on blue")[-1] == tokenize("blue")[-1]


def test_unknown_words_beside_a_known_thing_are_passed_over() -> None:
    """A prompt that names something drawable is read as its known words alone."""
    assert tokenize("a photorealistic fox wearing sunglasses on blue") == tokenize("a fox on blue")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("starwberry", "strawberry"), ("butterfy", "butterfly"), ("octopuss", "octopus"), ("bleu", "blue")],
)
def test_one_slip_of_the_finger_is_forgiven(typed: str, meant: str) -> None:
    """A swapped, doubled or lost letter gives the token of the word that was meant."""
    assert tokenize(typed) == tokenize(meant)


@pytest.mark.parametrize(
    ("said", "meant"), [("foxes", "fox"), ("🦊", "fox"), ("☂️", "umbrella"), ("kitten", "cat"), ("tiny", "small")]
)
def test_other_words_for_the_same(said: str, meant: str) -> None:
    """Plurals, emoji and synonyms are read as the word the model knows."""
    assert tokenize(said) == tokenize(meant)


def test_vocabulary_is_consistent() -> None:
    """No word stands twice, every alias leads to a word, and all tokens fit the embedding table."""
    assert len(set(WORDS)) == len(WORDS)
    assert set(ALIASES.values()) <= set(WORDS)
    assert max(tokenize(WORDS[-1])) < VOCABULARY_SIZE


def test_padding_is_masked() -> None:
    """A prompt becomes one row of MAX_TOKENS whose mask is true exactly on its tokens."""
    tokens, mask = prompt_tokens("a fox")

    assert tokens.shape == mask.shape == (1, MAX_TOKENS)
    assert mask[0].tolist() == [True] * 3 + [False] * (MAX_TOKENS - 3)
