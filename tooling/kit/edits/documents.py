"""Adds a line per unit to a document, between two markers and sorted by key; bytes in, bytes out.

    <!-- areal-new:rewards -->
    | name | what it does |
    | --- | --- |
    | `exact` | compares the text after the last marker |
    <!-- /areal-new:rewards -->

The key of a line is its first word in backticks. Lines above and including a table's `| --- |` line stay on top; lines
without a key (prose, blank lines) stay where they are. Outside the markers nothing is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.edits.splice import TABLE_ORDERS, place
from tooling.kit.edits.text import SourceEdit, refusal

if TYPE_CHECKING:
    from tooling.kit.kind import DocumentEntry

_KEY = re.compile(r"`([^`]+)`")
_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_SECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MARKER = re.compile(r"<!--\s*(/?)areal-new:(\S+)\s*-->")


class _Row(NamedTuple):
    number: int
    """0-based line of the document."""
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class _Region:
    lines: list[bytes]
    """Of the whole document, with their endings."""
    first: int
    """0-based first line between the markers, below the head of a table."""
    last: int
    """The line of the closing marker."""
    rows: tuple[_Row, ...]
    newline: bytes


@dataclass(frozen=True, slots=True)
class DocumentStrategy:
    """Adds lines to the section of a document and removes them."""

    def paste(self, entry: DocumentEntry) -> str:
        """Return the line itself."""
        return entry.line

    def keys(self, source: bytes, entry: DocumentEntry) -> list[str]:
        """Return the keys of the section, in the order of the document."""
        return [row.key for row in _region(source, entry).rows]

    def find(self, source: bytes, entry: DocumentEntry) -> tuple[str, int] | None:
        """Return the line of the key with its number; None when the section has none."""
        rows = [row for row in _region(source, entry).rows if row.key == entry.key]
        same = [row for row in rows if row.text == entry.line]
        return next(((row.text, row.number + 1) for row in (*same, *rows)), None)

    def add(self, source: bytes, entry: DocumentEntry) -> SourceEdit:
        """Put the line in its sorted place; unchanged when it is there already.

        Raises ConflictError when the key has another line, RegistryShapeError when the markers are missing, doubled or
        nested, UsageError when the text is not one line whose first word in backticks is the key.
        """
        _check_line(entry)
        region = _region(source, entry)
        present = _own_row(region, entry)
        if present is not None:
            return SourceEdit(source, changed=False, line=present.number + 1)
        index, ordered = place([row.key for row in region.rows], entry.key, TABLE_ORDERS)
        if index < len(region.rows):
            at = region.rows[index].number
        else:  # below the last line that is not blank; below the first blank line of a section that is empty
            filled = [number for number in range(region.first, region.last) if region.lines[number].strip()]
            at = filled[-1] + 1 if filled else min(region.first + 1, region.last)
        lines = [*region.lines[:at], entry.line.encode("utf-8") + region.newline, *region.lines[at:]]
        note = "" if ordered else f"the lines of {entry.section} are not sorted: added behind them"
        return SourceEdit(b"".join(lines), changed=True, line=at + 1, note=note)

    def remove(self, source: bytes, entry: DocumentEntry) -> SourceEdit:
        """Invert `add`, down to the byte; unchanged when the key is absent. Raises as it does."""
        _check_line(entry)
        region = _region(source, entry)
        present = _own_row(region, entry)
        if present is None:
            return SourceEdit(source, changed=False, line=0)
        lines = [*region.lines[: present.number], *region.lines[present.number + 1 :]]
        return SourceEdit(b"".join(lines), changed=True, line=present.number + 1)


def _check_line(entry: DocumentEntry) -> None:
    line, found = entry.line, _KEY.search(entry.line)
    if "\n" in line or "\r" in line or found is None or found.group(1) != entry.key:
        raise UsageError(f"{line!r} is not one line with `{entry.key}` as its first word in backticks")
    if _MARKER.search(line):
        raise UsageError(f"{line!r} holds a marker")
    if any("\ud800" <= letter <= "\udfff" for letter in line):
        raise UsageError(f"{line!r} is not valid Unicode")


def _region(source: bytes, entry: DocumentEntry) -> _Region:
    """Locate the lines between the markers of a section."""
    file, section = entry.file, entry.section
    if not _SECTION.fullmatch(section):
        raise UsageError(f"{section!r} cannot name a section", fix="use letters, digits, '.', '_' and '-'")
    try:
        source.decode("utf-8")
    except UnicodeDecodeError as error:
        where = source.count(b"\n", 0, error.start) + 1
        raise refusal(file, where, "the document is not UTF-8", f"paste this line: {entry.line}") from error
    lines = source.splitlines(keepends=True) if b"\r" not in source else re.findall(rb"[^\n]*\n|[^\n]+", source)
    start, end = _markers(lines, file, section, entry.line)
    rules = [n for n in range(start, end) if b"|" in lines[n] and _RULE.fullmatch(lines[n].decode().rstrip("\r\n"))]
    first = 1 + max(rules, default=start)
    rows = []
    for number in range(first, end):
        text = lines[number].decode("utf-8").rstrip("\r\n")
        key = _KEY.search(text)
        if key:
            rows.append(_Row(number, key.group(1), text))
    ending = lines[start][len(lines[start].rstrip(b"\r\n")) :]
    return _Region(lines, first, end, tuple(rows), ending)


def _markers(lines: list[bytes], file: str, section: str, line: str) -> tuple[int, int]:
    """Return the 0-based lines of the opening and the closing marker."""
    marks = []
    for number, text in enumerate(lines):
        match = _MARKER.fullmatch(text.decode("utf-8").strip())
        if match:
            marks.append((number, match.group(1) == "", match.group(2)))
    own = [mark for mark in marks if mark[2] == section]
    paste = f"paste this line: {line}" if line else "repair the markers"
    fix = f"{paste}; the section lies between <!-- areal-new:{section} --> and <!-- /areal-new:{section} -->"
    if [mark[1] for mark in own] != [True, False]:
        where = own[-1][0] + 1 if own else 1
        count = f"{sum(mark[1] for mark in own)} opening, {sum(not mark[1] for mark in own)} closing"
        raise refusal(file, where, f"expected one pair of markers of section {section}, found {count}", fix)
    (start, _, _), (end, _, _) = own
    inner = [mark for mark in marks if start < mark[0] < end]
    if inner:
        raise refusal(file, inner[0][0] + 1, f"section {section} holds a marker of section {inner[0][2]}", fix)
    return start, end


def _own_row(region: _Region, entry: DocumentEntry) -> _Row | None:
    """Return the row of the key, which must be the given line."""
    rows = [row for row in region.rows if row.key == entry.key]
    if len(rows) > 1:
        why = f"`{entry.key}` has two lines (first in line {rows[0].number + 1})"
        raise refusal(entry.file, rows[1].number + 1, why, f"keep one of them: {entry.line}")
    if rows and rows[0].text != entry.line:
        why = f"`{entry.key}` has another line there: {rows[0].text!r}"
        raise ConflictError(why, where=f"{entry.file}:{rows[0].number + 1}", fix="change that line by hand")
    return rows[0] if rows else None
