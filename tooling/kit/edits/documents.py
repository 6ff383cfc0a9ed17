"""One line of a document per unit, between two markers, sorted by key; bytes in, bytes out.

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
from typing import NamedTuple

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.edits.ordering import TABLE_ORDERS, place
from tooling.kit.edits.text import Edit, refusal

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


def add_document_line(source: bytes, file: str, section: str, key: str, line: str) -> Edit:
    """The document with `line` in its sorted place; unchanged when it is there already.

    Raises ConflictError when the key has another line, RegistryShapeError when the markers are missing, doubled or
    nested, UsageError when `line` is not one line whose first word in backticks is `key`.
    """
    line = _checked(key, line)
    region = _region(source, file, section, line)
    present = _find(region, file, key, line)
    if present is not None:
        return Edit(source, changed=False, line=present.number + 1)
    index, ordered = place([row.key for row in region.rows], key, TABLE_ORDERS)
    at = region.rows[index].number if index < len(region.rows) else _end_of_rows(region)
    lines = [*region.lines[:at], line.encode("utf-8") + region.newline, *region.lines[at:]]
    note = "" if ordered else f"the lines of {section} are not sorted: added behind them"
    return Edit(b"".join(lines), changed=True, line=at + 1, note=note)


def remove_document_line(source: bytes, file: str, section: str, key: str, line: str) -> Edit:
    """The inverse of `add_document_line`, down to the byte; unchanged when the key is absent. Raises as it does."""
    line = _checked(key, line)
    region = _region(source, file, section, line)
    present = _find(region, file, key, line)
    if present is None:
        return Edit(source, changed=False, line=0)
    lines = [*region.lines[: present.number], *region.lines[present.number + 1 :]]
    return Edit(b"".join(lines), changed=True, line=present.number + 1)


def has_document_line(source: bytes, file: str, section: str, key: str, line: str) -> bool:
    """Whether the section has this very line."""
    region = _region(source, file, section, line)
    return any(row.key == key and row.text == line for row in region.rows)


def document_keys(source: bytes, file: str, section: str) -> list[str]:
    """Keys of a section, in the order of the document."""
    return [row.key for row in _region(source, file, section, "").rows]


def _checked(key: str, line: str) -> str:
    found = _KEY.search(line)
    if "\n" in line or "\r" in line or found is None or found.group(1) != key:
        raise UsageError(f"{line!r} is not one line with `{key}` as its first word in backticks")
    if _MARKER.search(line):
        raise UsageError(f"{line!r} holds a marker")
    if any("\ud800" <= letter <= "\udfff" for letter in line):
        raise UsageError(f"{line!r} is no valid Unicode")
    return line


def _region(source: bytes, file: str, section: str, line: str) -> _Region:
    if not _SECTION.fullmatch(section):
        raise UsageError(f"{section!r} cannot name a section", fix="use letters, digits, '.', '_' and '-'")
    try:
        source.decode("utf-8")
    except UnicodeDecodeError as error:
        where = source.count(b"\n", 0, error.start) + 1
        raise refusal(file, where, "the document is not UTF-8", f"paste this line: {line}") from error
    lines = source.splitlines(keepends=True) if b"\r" not in source else re.findall(rb"[^\n]*\n|[^\n]+", source)
    start, end = _markers(lines, file, section, line)
    first = 1 + max((n for n in range(start, end) if _is_rule(lines[n])), default=start)
    rows = []
    for number in range(first, end):
        text = lines[number].decode("utf-8").rstrip("\r\n")
        key = _KEY.search(text)
        if key:
            rows.append(_Row(number, key.group(1), text))
    ending = lines[start][len(lines[start].rstrip(b"\r\n")) :]
    return _Region(lines, first, end, tuple(rows), ending)


def _markers(lines: list[bytes], file: str, section: str, line: str) -> tuple[int, int]:
    """0-based lines of the opening and the closing marker."""
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


def _find(region: _Region, file: str, key: str, line: str) -> _Row | None:
    """The line of the key; it must be the given one."""
    rows = [row for row in region.rows if row.key == key]
    if len(rows) > 1:
        fix = f"keep one of them: {line}"
        raise refusal(file, rows[1].number + 1, f"`{key}` has two lines (first in line {rows[0].number + 1})", fix)
    if rows and rows[0].text != line:
        why = f"`{key}` has another line there: {rows[0].text!r}"
        raise ConflictError(why, where=f"{file}:{rows[0].number + 1}", fix="change that line by hand")
    return rows[0] if rows else None


def _end_of_rows(region: _Region) -> int:
    """Behind the last line that is not blank; behind the first blank line of a section that is empty."""
    for number in range(region.last - 1, region.first - 1, -1):
        if region.lines[number].strip():
            return number + 1
    return min(region.first + 1, region.last) if region.first < region.last else region.last


def _is_rule(line: bytes) -> bool:
    return b"|" in line and _RULE.fullmatch(line.decode("utf-8").rstrip("\r\n")) is not None
