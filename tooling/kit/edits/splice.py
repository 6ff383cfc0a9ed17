"""Puts one entry into a located literal, or takes one out, as bytes; and finds the place where its key belongs.

The order a table already has is found out, never imposed: code points, letters without case, numbers by value ("v2"
before "v10"); for `__all__` first the order that linters ask for (constants, classes, the rest). A table that has none
of them is unsorted, and grows at its end.

Adding
- The entry gets a line of its own below the entry it sorts after, so that comments above the following entry stay with
  that entry; the first entry goes above the comments that stand directly above its successor, but below a comment that
  speaks of the whole table ("keep sorted", "fmt: off").
- Two lines change only where the last entry has no comma: it gets one, and the new last entry has none.
- A literal on one line stays on one line up to INLINE_LIMIT columns; it is spread to one entry per line when it is
  empty or would get longer. Where entries share a line of a literal of several lines, adding between them is refused.

Removing is the inverse: the line goes with its trailing comment, comments on their own lines stay, a comma that adding
put there goes too, and a literal that became empty closes up to its brackets. Adding and then removing gives the same
bytes, except where a one-line literal was spread, or an empty literal had blanks between its brackets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.kit.edits.text import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Order = Callable[[str], Any]
    from tooling.kit.edits.literals import LocatedTable, TableItem


_DIGITS = re.compile(r"(\d+)")


def by_code_point(key: str) -> str:
    """Return what orders keys as Python does."""
    return key


def by_letter(key: str) -> tuple[str, str]:
    """Return what mixes upper and lower case."""
    return key.casefold(), key


def by_number(key: str) -> tuple[tuple[int, int], ...]:
    """Return what orders runs of digits by their value."""
    parts: list[tuple[int, int]] = []
    for part in _DIGITS.split(key):
        parts += [(ord("0"), int(part))] if _DIGITS.fullmatch(part) else [(ord(letter), 0) for letter in part]
    return tuple(parts)


def by_export(key: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return what puts CONSTANTS first, then Classes, then the rest, each by number: ruff's RUF022."""
    if len(key) > 1 and key.isupper():
        return 0, by_number(key)
    return (1 if key[:1].isupper() else 2), by_number(key)


TABLE_ORDERS: Final[tuple[Order, ...]] = (by_code_point, by_letter, by_number)
EXPORT_ORDERS: Final[tuple[Order, ...]] = (by_export, by_code_point, by_letter)


def place(keys: Sequence[str], key: str, orders: Sequence[Order]) -> tuple[int, bool]:
    """Return (index at which `key` goes in, whether `keys` are sorted).

    The first order that the keys have decides; unsorted keys give their end.
    Example: place(["a", "c"], "b", TABLE_ORDERS) == (1, True).
    """
    for order in orders:
        ranks = [order(known) for known in keys]
        if ranks == sorted(ranks):
            return sum(rank < order(key) for rank in ranks), True
    return len(keys), False


INLINE_LIMIT: Final = 88
"""What formatters allow by default; a spread literal with its trailing comma is stable under every limit."""
_ABOUT_THE_TABLE = re.compile(rb"#.*\b(keep[- ]sorted|sorted|fmt:)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Splice:
    """New text of a file (UTF-8, see `SourceText`), and where the entry is or was."""

    data: bytes
    line: int
    removed: tuple[int, int] = (0, 0)
    """Span of the old text whose comments go with it."""
    note: str = ""


def insert(table: LocatedTable, index: int, entry: bytes, fix: str) -> Splice:
    """Put `entry` (without comma) before the item at `index`.

    Raises RegistryShapeError where it can have no line of its own.
    """
    previous = table.items[index - 1] if index else None
    if previous and table.text.ends_line(previous.after):
        return _below(table, previous, entry, last=index == len(table.items))
    if not previous and table.items and table.text.ends_line(table.open):
        return _above_first(table, table.items[0], entry)
    if not table.items and not table.one_line and table.text.starts_line(table.close):
        return _into_empty(table, entry)
    if not table.one_line:
        line = table.line(previous or (table.items[0] if table.items else None))
        raise refusal(table.text.file, line, f"entries of {table.name} share a line, expected one entry per line", fix)
    return _inline(table, index, entry) or _spread(table, index, entry)


def remove(table: LocatedTable, item: TableItem, fix: str) -> Splice:
    """Take `item` out. Raises RegistryShapeError where something else on its lines would go too."""
    index = table.items.index(item)
    previous = table.items[index - 1] if index else None
    following = table.items[index + 1] if index + 1 < len(table.items) else None
    if len(table.items) == 1 and (closed := _closed_up(table, item)):
        return closed
    if table.text.starts_line(item.start) and table.text.ends_line(item.after):
        return _without_line(table, item, previous if following is None else None)
    alone = b"," if len(table.items) == 2 and _needs_comma_alone(table) else b""
    if previous and _same_line(table, previous.end, item.start):
        return _cut(table, item, (previous.end, item.end), alone if item.comma < 0 else b"")
    if following and _same_line(table, item.end, following.start):
        kept = table.text.data[following.start : following.end] + (alone if following.comma < 0 else b"")
        return _cut(table, item, (item.start, following.end), kept)
    raise refusal(table.text.file, table.line(item), f"{item.key!r} shares its lines with something else", fix)


def _below(table: LocatedTable, previous: TableItem, entry: bytes, *, last: bool) -> Splice:
    text = table.text
    comma = b"," if last and previous.comma < 0 else b""
    at = text.next_line(previous.after)
    # That of the first entry that starts a line; below the predecessor where none does.
    starts = (item.start for item in (previous, *table.items) if text.starts_line(item.start))
    below = b" " * (previous.start - text.line_start(previous.start))
    indentation = next(map(text.indentation, starts), below)
    line = indentation + entry + (b"" if comma else b",") + text.newline(previous.after)
    data = text.data[: previous.end] + comma + text.data[previous.end : at] + line + text.data[at:]
    return Splice(data, text.line(previous.after) + 1)


def _above_first(table: LocatedTable, first: TableItem, entry: bytes) -> Splice:
    text = table.text
    at = text.line_start(first.start)
    while at > text.next_line(table.open):
        above = text.line_start(at - 1)
        comment = text.data[above:at].strip()
        if not comment.startswith(b"#") or _ABOUT_THE_TABLE.match(comment):
            break
        at = above
    line = text.indentation(first.start) + entry + b"," + text.newline(first.start)
    return Splice(text.data[:at] + line + text.data[at:], text.line(at))


def _into_empty(table: LocatedTable, entry: bytes) -> Splice:
    text = table.text
    at = text.line_start(table.close)
    inside = text.data[text.next_line(table.open) : at].split(b"\n")
    comments = [line for line in inside if line.strip().startswith(b"#")]
    base = text.indentation(table.close) + table.unit
    indent = comments[-1][: len(comments[-1]) - len(comments[-1].lstrip())] if comments else base
    line = indent + entry + b"," + text.newline(table.open)
    return Splice(text.data[:at] + line + text.data[at:], text.line(at))


def _inline(table: LocatedTable, index: int, entry: bytes) -> Splice | None:
    """Put an entry on the line of its neighbours; None when there are none or the line gets too long."""
    if not table.items:
        return None
    text, items = table.text, table.items
    if index:
        at, piece = items[index - 1].end, b", " + entry
    else:
        at, piece = items[0].start, entry + b", "
    line = text.data[text.line_start(at) : text.next_line(at)].rstrip()
    if len((line + piece).decode()) > INLINE_LIMIT:
        return None
    return Splice(text.data[:at] + piece + text.data[at:], text.line(at))


def _spread(table: LocatedTable, index: int, entry: bytes) -> Splice:
    """Write one entry per line; brackets inside a call get lines of their own, as formatters lay them out."""
    text = table.text
    raw = [text.data[item.start : item.end] for item in table.items]
    entries = [*raw[:index], entry, *raw[index:]]
    newline, base = text.newline(table.open), text.indentation(table.open)
    opening, closing = text.data[table.open - 1 : table.open], text.data[table.close : table.close + 1]
    start, end, depth = table.open, table.close, base
    head, tail = b"", base
    if table.call and _wrapped_closely(table):
        start, end = table.call
        depth = base + table.unit
        head, tail = newline + depth + opening, depth + closing + newline + base
    lines = [depth + table.unit + line + b"," + newline for line in entries]
    above = text.data[:start] + head + newline + b"".join(lines[:index])
    data = above + b"".join(lines[index:]) + tail + text.data[end:]
    note = f"{table.name} was spread to one entry per line" if raw else ""
    return Splice(data, above.count(b"\n") + 1, note=note)


def _closed_up(table: LocatedTable, item: TableItem) -> Splice | None:
    """Leave brackets with nothing between them; None where there is a comment on a line of its own."""
    text = table.text
    behind = text.next_line(item.after) if text.ends_line(item.after) else item.after
    if text.data[table.open : item.start].strip() or text.data[behind : table.close].strip():
        return None
    start, end, brackets = table.open, table.close, b""
    if table.call and _wrapped_closely(table) and not table.one_line:
        start, end = table.call
        brackets = text.data[table.open - 1 : table.open] + text.data[table.close : table.close + 1]
    return Splice(text.data[:start] + brackets + text.data[end:], table.line(item), removed=(item.start, behind))


def _without_line(table: LocatedTable, item: TableItem, previous: TableItem | None) -> Splice:
    """Take a line out. `previous` is given for the last entry: if that has no comma, its predecessor loses its own."""
    text = table.text
    start, end = text.line_start(item.start), text.next_line(item.after)
    before = text.data[:start]
    alone = len(table.items) == 2 and _needs_comma_alone(table)
    if previous and item.comma < 0 <= previous.comma and not alone:
        before = text.data[: previous.comma] + text.data[previous.comma + 1 : start]
    return Splice(before + text.data[end:], table.line(item), removed=(item.start, end))


def _cut(table: LocatedTable, item: TableItem, span: tuple[int, int], kept: bytes) -> Splice:
    data = table.text.data
    return Splice(data[: span[0]] + kept + data[span[1] :], table.line(item))


def _needs_comma_alone(table: LocatedTable) -> bool:
    """Check for parentheses: a tuple of one item needs its comma."""
    return table.text.data[table.open - 1 : table.open] == b"("


def _same_line(table: LocatedTable, left: int, right: int) -> bool:
    return table.text.line(left) == table.text.line(right)


def _wrapped_closely(table: LocatedTable) -> bool:
    """Check whether there are only blanks between the parentheses of the call and the brackets."""
    if table.call is None:
        return False
    data = table.text.data
    return not (data[table.call[0] : table.open - 1].strip() or data[table.close + 1 : table.call[1]].strip())
