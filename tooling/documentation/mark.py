"""The record at the end of a translated page: which sections of its source it follows, and what it was like then.

<!-- areal-docs follows docs/concepts.md; written by `areal-docs zh-mark`, not by hand
0123456789abcdef fedcba9876543210 ## versions
-->

One line per section, in the order of the page: hash of the source's section, hash of the translated one, level and
anchor of the source's heading. No commit is named, so that a mark survives rebases and copies of the folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.documentation.markdown.records import Section

_OPENING: Final = "<!-- areal-docs follows "
_NOTE: Final = "; written by `areal-docs zh-mark`, not by hand"
_MARK: Final = re.compile(
    rf"\n*^{re.escape(_OPENING)}(?P<source>[^\n]*?)(?:{re.escape(_NOTE)})?\n(?P<rows>.*?)^-->[ \t]*\n*\Z",
    re.DOTALL | re.MULTILINE,
)
_ROW: Final = re.compile(
    r"(?P<source>[0-9a-f]{16}) (?P<translation>[0-9a-f]{16}) (?P<level>-|0|#{1,6})(?: (?P<slug>\S+))?"
)
_LEVELS: Final = {-1: "-", 0: "0"}


@dataclass(frozen=True, slots=True)
class Row:
    """One section at the time of the mark."""

    source: str
    """Digest of the source's section."""
    translation: str
    """Digest of the translated section."""
    level: int
    slug: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A whole record."""

    source: str
    """Path of the source page."""
    rows: tuple[Row, ...]
    broken: int = 0
    """Lines that are no rows: somebody edited the record, or a merge left its marks."""


def take_mark(text: str) -> tuple[Mark | None, str]:
    """The mark of a page, None without one, and the page without it."""
    text = text.replace("\r\n", "\n")
    found = _MARK.search(text)
    if found is None:
        return None, text
    rows, broken = list[Row](), 0
    for line in found["rows"].splitlines():
        row = _ROW.fullmatch(line.strip())
        if row is None:
            broken += bool(line.strip())
            continue
        level = {"-": -1, "0": 0}.get(row["level"], len(row["level"]))
        rows.append(Row(row["source"], row["translation"], level, row["slug"] or ""))
    return Mark(found["source"].strip(), tuple(rows), broken), text[: found.start()].rstrip("\n") + "\n"


def marked(text: str, source: str, pairs: Sequence[tuple[Section, Section]]) -> str:
    """The page with a new mark in place of its old one; `pairs` are (section of the source, translation)."""
    _, plain = take_mark(text)
    lines = [f"{_OPENING}{source}{_NOTE}"]
    for original, translated in pairs:
        level = _LEVELS.get(original.level, "#" * original.level)
        lines.append(f"{original.digest} {translated.digest} {level} {original.slug}".rstrip())
    return plain.rstrip("\n") + "\n\n" + "\n".join([*lines, "-->"]) + "\n"
