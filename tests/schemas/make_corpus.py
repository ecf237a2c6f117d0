"""Adds to corpus.json one message of each kind that is not in it yet: `python -m tests.schemas.make_corpus`.

What is in it stays: those are bytes that older peers send.
"""

import json
from pathlib import Path

import msgspec

from tests.schemas.test_wire import MESSAGES, UNIONS
from tests.support.strategies import structs

PATH = Path(__file__).parent / "corpus.json"


def main() -> None:
    """Write the file anew."""
    corpus = json.loads(PATH.read_text())
    for union, message in MESSAGES:
        if message.__name__ in corpus:
            continue
        value = max((structs(message).example() for _ in range(8)), key=lambda value: len(repr(value)))
        name = next(name for name, candidate in UNIONS.items() if candidate is union)
        corpus[message.__name__] = {
            "union": name,
            "fields": json.loads(msgspec.json.encode(value)),
            "bytes": msgspec.msgpack.encode(value).hex(),
        }
    PATH.write_text(json.dumps(corpus, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
