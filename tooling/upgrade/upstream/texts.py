"""Questions to the text of a whole release, answered by patterns and without a parser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.releases import Definition, NameTable
from tooling.upgrade.upstream.parsing import parse_expression
from tooling.upgrade.upstream.scan import module_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.upgrade.upstream.store import Store

_DEFINED = re.compile(
    rb"^(?:(class|def|async[ \t]+def)[ \t]+([^\W\d]\w*)|([^\W\d]\w*)[ \t]*(?::[^=\n]*)?=(?!=))", re.MULTILINE
)
_TEXT = re.compile(
    rb'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL
)
"""Strings and comments."""
_CALLED = re.compile(rb"\.\s*([A-Za-z_]\w*)\s*\(")
_RECEIVER = re.compile(rb"[\w.]+\Z")
_KINDS = {b"class": "class", b"": "value"}
LONGEST_CALL = 4_000
MOST_FILES = 400


def name_table(store: Store) -> NameTable:
    """Where each top-level name is defined. Definitions under conditions are not among them."""
    rows: dict[str, list[tuple[str, str, int]]] = store.answer(("names",), lambda: _rows(store))
    return NameTable({name: tuple(Definition(*row) for row in found) for name, found in rows.items()})


def _rows(store: Store) -> dict[str, list[tuple[str, str, int]]]:
    found: dict[str, list[tuple[str, str, int]]] = {}
    for path in store.release.files():
        data = store.release.read(path)
        module = module_name(path)[0]
        line, position = 1, 0
        for match in _DEFINED.finditer(data):
            line += data.count(b"\n", position, match.start())
            position = match.start()
            keyword, defined, assigned = match.groups()
            kind = _KINDS.get(keyword or b"", "function")
            name = (defined or assigned).decode("utf-8", "replace")
            found.setdefault(name, []).append((module, kind, line))
    return found


def calls_of(store: Store, name: str) -> list[tuple[str, int, str]]:
    """(file, line, source) of each call `<anything>.name(...)` outside strings and comments."""
    pattern = re.compile(rb"\.\s*" + re.escape(name.encode()) + rb"\s*\(")
    callers: dict[str, list[int]] = store.answer(("callers",), lambda: _callers(store))
    files = store.release.files()
    return [
        (files[index], line, source)
        for index in callers.get(name, ())[:MOST_FILES]
        for line, source in _calls_in(store.release.read(files[index]), pattern)
    ]


def _callers(store: Store) -> dict[str, list[int]]:
    """Files that look as if they called a method, by its name; a release is read once for all names."""
    found: dict[str, list[int]] = {}
    for index, path in enumerate(store.release.files()):
        if not path.endswith(".pyi"):
            for name in set(_CALLED.findall(store.release.read(path))):
                found.setdefault(name.decode(), []).append(index)
    return found


def _calls_in(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, str]]:
    spans = [match.span() for match in _TEXT.finditer(data)]
    index = 0
    for match in pattern.finditer(data):
        while index < len(spans) and spans[index][1] <= match.start():
            index += 1
        if index < len(spans) and spans[index][0] <= match.start():
            continue
        end = _closing(data, match.end(), spans, index)
        line_start = data.rfind(b"\n", 0, match.start()) + 1
        receiver = _RECEIVER.search(data, line_start, match.start())
        start = receiver.start() if receiver else match.start() + 1
        source = data[start:end].decode("utf-8", "replace")
        if receiver is None:
            source = f"_.{source.lstrip('.')}"
        if end and parse_expression(source) is not None:
            yield data.count(b"\n", 0, match.start()) + 1, " ".join(source.split())


def _closing(data: bytes, position: int, spans: list[tuple[int, int]], index: int) -> int:
    """Where the bracket that opens before `position` is closed; 0 if it is not, or far away."""
    depth = 1
    last = min(len(data), position + LONGEST_CALL)
    while position < last:
        while index < len(spans) and spans[index][1] <= position:
            index += 1
        if index < len(spans) and spans[index][0] <= position:
            position = spans[index][1]
            continue
        character = data[position : position + 1]
        if character in b"([{":
            depth += 1
        elif character in b")]}":
            depth -= 1
            if not depth:
                return position + 1
        position += 1
    return 0
