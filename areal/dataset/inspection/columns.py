"""What one column holds: types with the first place of each, gaps, lengths, examples, and marks found in its texts.

Counts only; what a column is for is decided in `areal.dataset.inspection.roles`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from areal.dataset.chats import SPEAKERS, is_turn
from areal.dataset.images import is_image

MAX_EXAMPLE: Final = 80
_NUM_EXAMPLES: Final = 3
_IMAGE_STARTS: Final = ("data:image/", "iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
"""How base64 of a PNG, JPEG, GIF or WebP file begins."""
_IMAGE_SUFFIXES: Final = (".gif", ".jpeg", ".jpg", ".png", ".webp")
_MAX_IMAGE_NAME: Final = 300

HASH_MARK: Final = "####"
BOX_MARK: Final = "\\boxed{"
TRANSCRIPT_MARK: Final = "\n\nAssistant:"


class Column:
    """Statistics of one column, fed value by value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: dict[str, str] = {}
        """Type to the place where it was first seen."""
        self.types: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        """Mark ("hash", "boxed", "transcript", "image", "answered") to the number of values that have it."""
        self.num_present = 0
        self.num_empty = 0
        self.examples: list[str] = []
        self._shortest: int | None = None
        self._longest = 0
        self._total_length = 0
        self._num_measured = 0

    def add(self, value: Any, place: str) -> None:
        """Count one value; place: where it stands, for messages."""
        kind = type_of(value)
        self.num_present += 1
        self.types[kind] = self.types.get(kind, 0) + 1
        self.first.setdefault(kind, place)
        for mark in _marks(value, kind):
            self.marks[mark] = self.marks.get(mark, 0) + 1
        if isinstance(value, str | bytes | list):
            length = len(value)
            self._shortest = length if self._shortest is None else min(self._shortest, length)
            self._longest = max(self._longest, length)
            self._total_length += length
            self._num_measured += 1
            self.num_empty += not (value.strip() if isinstance(value, str | bytes) else value)
        if value is not None and len(self.examples) < _NUM_EXAMPLES:
            self.examples.append(example(value))

    @property
    def filled_types(self) -> list[str]:
        """Types that occur, the most frequent first; without "null"."""
        return sorted((kind for kind in self.types if kind != "null"), key=lambda kind: (-self.types[kind], kind))

    @property
    def main_type(self) -> str:
        """The most frequent type; "null" when nothing else occurs."""
        return next(iter(self.filled_types), "null")

    def share(self, mark: str) -> float:
        """Part of the values that are not null and have the mark, 0 .. 1."""
        filled = self.num_present - self.types.get("null", 0)
        return self.marks.get(mark, 0) / filled if filled else 0.0

    def as_data(self, num_rows: int) -> dict[str, Any]:
        """For the report (JSON)."""
        length = None
        if self._num_measured:
            mean = round(self._total_length / self._num_measured, 1)
            length = {"min": self._shortest, "mean": mean, "max": self._longest}
        return {
            "name": self.name,
            "types": dict(sorted(self.types.items())),
            "missing": num_rows - self.num_present,
            "null": self.types.get("null", 0),
            "empty": self.num_empty,
            "length": length,
            "examples": self.examples,
        }


def type_of(value: Any) -> str:
    """ "null", "boolean", "number", "text", "image", "bytes", "chat", "list", "object", or the name of its class."""
    if isinstance(value, bytes):
        return "image" if is_image(value) else "bytes"
    if isinstance(value, list):
        return "chat" if value and all(map(is_turn, value)) else "list"
    if isinstance(value, dict):
        return "image" if value and set(value) <= {"bytes", "path"} else "object"
    for classes, name in _SCALARS:
        if isinstance(value, classes):
            return name
    return type(value).__name__


_SCALARS: Final[tuple[tuple[Any, str], ...]] = (
    (type(None), "null"),
    (bool, "boolean"),
    ((int, float), "number"),
    (str, "text"),
)


def example(value: Any) -> str:
    """Return a value as one short line."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        return f"{len(value['bytes'])} bytes, path {value.get('path')!r}"
    # Cut before encoding: a value may be megabytes long.
    text = value[:MAX_EXAMPLE] if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    line = " ".join(text.split())
    cut = len(line) > MAX_EXAMPLE or (isinstance(value, str) and len(value) > MAX_EXAMPLE)
    return f"{line[: MAX_EXAMPLE - 1]}…" if cut else line


def _marks(value: Any, kind: str) -> list[str]:
    if kind == "chat":
        speaker = value[-1].get("role", value[-1].get("from"))
        return ["answered"] if isinstance(speaker, str) and SPEAKERS.get(speaker) == "assistant" else []
    if kind == "list" and value and all(type_of(item) == "image" or looks_like_image(item) for item in value):
        return ["image"]
    if kind != "text":
        return []
    found = [("hash", HASH_MARK in value), ("boxed", BOX_MARK in value), ("transcript", TRANSCRIPT_MARK in value)]
    return [name for name, present in [*found, ("image", looks_like_image(value))] if present]


def looks_like_image(value: Any) -> bool:
    """Return whether a text is base64 of an image or the name of an image file."""
    if not isinstance(value, str):
        return False
    if value.startswith(_IMAGE_STARTS):
        return len(value) > len(_IMAGE_STARTS[1])
    return len(value) <= _MAX_IMAGE_NAME and "\n" not in value and value.lower().endswith(_IMAGE_SUFFIXES)
