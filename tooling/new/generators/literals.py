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
    """Literals that Python joins to the text, broken after line ends and where a piece would be too long."""
    pieces, piece, width = [], "", 0
    for letter in text:
        size = len(ascii(letter)) - 2
        if piece and (width + size > WIDTH - 2 or piece.endswith("\n")):
            pieces.append(ascii(piece))
            piece, width = "", 0
        piece += letter
        width += size
    return [*pieces, ascii(piece)]


def _items(pairs: Iterator[tuple[str, Any]]) -> Iterator[str]:
    for key, item in pairs:
        lines = source_lines(item)
        lines[0] = key + lines[0]
        lines[-1] += ","
        yield from (f"    {line}" for line in lines)
