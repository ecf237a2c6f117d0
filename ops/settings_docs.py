"""What each setting means, read from the `#:` comments above the fields of its Struct."""

import inspect
import re

from msgspec import Struct

_FIELD = re.compile(r"^\s{4}(?P<name>[a-z_]+):")
_COMMENT = re.compile(r"^\s{4}#: (?P<text>.*)$")


def field_docs(kind: type[Struct]) -> dict[str, str]:
    """Return the comment above each field of `kind`, by the field's name."""
    docs: dict[str, str] = {}
    lines: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if comment := _COMMENT.match(line):
            lines.append(comment["text"])
            continue
        if (field := _FIELD.match(line)) and lines:
            docs[field["name"]] = " ".join(lines)
        lines = []
    return docs
