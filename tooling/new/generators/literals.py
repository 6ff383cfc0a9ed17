"""Values as Python source that fits a line: for templates, which cannot quote or break texts themselves.

    source_lines("a" * 200)      # ["(", "    'aaaa...'", "    'aaaa...'", ")"]
    source_lines({"answer": 72}) # ["{'answer': 72}"]

The source is ASCII, so that neither encoding nor look-alike letters matter; `ruff format` gives it its final quotes.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDTH: Final = 84
"""Characters of one piece; the rest of the line is for indentation and punctuation."""


def source_lines(value: Any) -> list[str]:
    """Lines of an expression for a JSON value; broken up where it would be longer than `WIDTH`."""
    whole = ascii(value)
    if len(whole) <= WIDTH:
        return [whole]
    if isinstance(value, str):
        return ["(", *(f"    {piece}" for piece in text_pieces(value)), ")"]
    if isinstance(value, dict):
        return ["{", *_items((f"{key!a}: ", item) for key, item in value.items()), "}"]
    if isinstance(value, list):
        return ["[", *_items(("", item) for item in value), "]"]
    return [whole]


def from_source(lines: Sequence[str]) -> Any:
    """The value that `source_lines` was given. Raises ValueError or SyntaxError for anything but literals."""
    return ast.literal_eval("\n".join(lines))


def text_pieces(text: str) -> list[str]:
    """Literals that Python joins to the text, broken after line ends, else between words, else where it has to be."""
    pieces: list[str] = []
    rest = text
    while rest:
        size = _fitting(rest)
        pieces.append(ascii(rest[:size]))
        rest = rest[size:]
    return pieces or ["''"]


def _fitting(text: str) -> int:
    """How many characters go into one piece."""
    width = 0
    for size, letter in enumerate(text):
        width += len(ascii(letter)) - 2
        if width > WIDTH - 2:
            between_words = text.rfind(" ", size // 2, size) + 1
            return between_words or size
        if letter == "\n":
            return size + 1
    return len(text)


def _items(pairs: Iterator[tuple[str, Any]]) -> Iterator[str]:
    for key, item in pairs:
        lines = source_lines(item)
        lines[0] = key + lines[0]
        lines[-1] += ","
        yield from (f"    {line}" for line in lines)
