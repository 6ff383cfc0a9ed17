"""Keep what was read of a release, in memory and in the cache, and search its text."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import marshal
import os
import re
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

from tooling.python.functions import read_function
from tooling.python.instances import read_class
from tooling.python.scope import scan
from tooling.python.source import Lines, decode, definition, digest, module_name, package_of, parse_expression
from tooling.python.tables import (
    SCHEMA,
    ClassTable,
    FunctionTable,
    ModuleTable,
    freeze_table,
    thaw_table,
)
from tooling.upgrade.errors import UpstreamError
from tooling.upgrade.releases import NameTable, TopLevelName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tooling.python.tables import NameBinding
    from tooling.upgrade.releases import Release


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


def name_table(store: ReleaseStore) -> NameTable:
    """Where each top-level name is defined. Definitions under conditions are not among them."""
    rows: dict[str, list[tuple[str, str, int]]] = store.answer(("names",), lambda: _rows(store))
    return NameTable({name: tuple(TopLevelName(*row) for row in found) for name, found in rows.items()})


def _rows(store: ReleaseStore) -> dict[str, list[tuple[str, str, int]]]:
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


def calls_of(store: ReleaseStore, name: str) -> list[tuple[str, int, str]]:
    """(file, line, source) of each call `<anything>.name(...)` outside strings and comments."""
    pattern = re.compile(rb"\.\s*" + re.escape(name.encode()) + rb"\s*\(")
    callers: dict[str, list[int]] = store.answer(("callers",), lambda: _callers(store))
    files = store.release.files()
    return [
        (files[index], line, source)
        for index in callers.get(name, ())[:MOST_FILES]
        for line, source in _calls_in(store.release.read(files[index]), pattern)
    ]


def _callers(store: ReleaseStore) -> dict[str, list[int]]:
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


_HEADER = 16
_EMPTY_FUNCTION = FunctionTable([], "", False, False, [], [], {}, {}, None, "", "", {}, [], [], "unreadable", False, {})


class KeptFacts:
    """What a cache file holds. Apart from the store, so that it can be written when the store is gone."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.changed = False
        self.tables: dict[str, bytes] = {}
        self.facts: dict[tuple[str, str, int], Any] = {}
        self.answers: dict[tuple[str, ...], Any] = {}
        if path is not None:
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError:
            return
        body = data[_HEADER:]
        if hashlib.blake2b(body, digest_size=_HEADER).digest() != data[:_HEADER]:
            return
        with contextlib.suppress(ValueError, EOFError, TypeError):
            self.tables, self.facts, self.answers = marshal.loads(body)

    def save(self) -> None:
        """Writes what is new. A cache that cannot be written is not an error."""
        if self.path is None or not self.changed:
            return
        body = marshal.dumps((self.tables, self.facts, self.answers))
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".facts-")
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.blake2b(body, digest_size=_HEADER).digest() + body)
            os.replace(temporary, self.path)
            self.changed = False


class ReleaseStore:
    """Modules of a release by dotted path. A module may be a .py file, a stub, both, a folder, or native."""

    def __init__(self, release: Release, cache: Path | None) -> None:
        self.release = release
        self.sources: dict[str, str] = {}
        self.stubs: dict[str, str] = {}
        for path in release.files():
            (self.stubs if path.endswith(".pyi") else self.sources)[module_name(path)[0]] = path
        self.folders = frozenset(folder.replace("/", ".") for folder in release.folders())
        self.native = frozenset(release.native())
        self.roots = frozenset(release.roots())
        self.parsed: list[str] = []
        """Files that were parsed for the first time, in order."""
        python = f"{sys.version_info[0]}{sys.version_info[1]}"
        kept = None if cache is None else cache / f"facts-{SCHEMA}-{python}-{release.digest()}"
        self._kept = KeptFacts(kept)
        weakref.finalize(self, self._kept.save)
        self._tables: dict[str, ModuleTable] = {}
        self._lines: dict[str, Lines] = {}

    def save(self) -> None:
        """Writes the cache now; it is also written when the store goes."""
        self._kept.save()

    # Modules

    def exists(self, dotted: str) -> bool:
        """Whether there is a module, package, folder or native module of that name."""
        return dotted in self.sources or dotted in self.stubs or dotted in self.folders or dotted in self.native

    def owns(self, dotted: str) -> bool:
        """Whether the name lies below what the distribution's archive holds."""
        parts = dotted.split(".")
        return any(".".join(parts[: index + 1]) in self.roots for index in range(len(parts)))

    def above(self, dotted: str) -> bool:
        """Whether the name is a namespace that roots lie in."""
        return any(root.startswith(f"{dotted}.") for root in self.roots)

    def module(self, dotted: str) -> ModuleTable | None:
        """The module's table: of its source, else of its stub."""
        path = self.sources.get(dotted) or self.stubs.get(dotted)
        return self.table(path) if path else None

    def stub(self, dotted: str) -> ModuleTable | None:
        """The table of the stub beside a source file."""
        return self.table(self.stubs[dotted]) if dotted in self.stubs and dotted in self.sources else None

    def table(self, path: str) -> ModuleTable:
        """Facts of a file."""
        found = self._tables.get(path)
        if found is None:
            kept = self._kept.tables.get(path)
            if kept is not None:
                found = thaw_table(marshal.loads(kept))
            else:
                found, self._lines[path] = scan(path, self._read(path))
                self.parsed.append(path)
                self._kept.tables[path] = marshal.dumps(freeze_table(found))
                self._kept.changed = True
            self._tables[path] = found
        return found

    @property
    def modules_read(self) -> int:
        """Files whose table was needed."""
        return len(self._tables)

    def _read(self, path: str) -> bytes:
        try:
            return self.release.read(path)
        except (KeyError, OSError, UpstreamError):
            return b"\0"  # the parser refuses it: the module is there and says nothing

    # Definitions

    def block(self, path: str, start: int, end: int) -> str:
        """Lines of a file as a piece of Python that stands alone."""
        lines = self._lines.get(path)
        if lines is None:
            try:
                lines = Lines(decode(self._read(path)))
            except (SyntaxError, ValueError):
                lines = Lines("")
            self._lines[path] = lines
        return lines.block(start, end)

    def function(self, table: ModuleTable, binding: NameBinding) -> FunctionTable:
        """Facts of a `def`."""
        key = (table.path, "def", binding.line)
        kept = self._kept.facts.get(key)
        if kept is None:
            block = self.block(table.path, binding.start, binding.end)
            node = definition(block)
            package = package_of(table.path)
            facts = _EMPTY_FUNCTION
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                facts = read_function(node, Lines(block), package)
            kept = self._keep(key, tuple(facts))
        return FunctionTable._make(kept)

    def instance(self, table: ModuleTable, binding: NameBinding) -> ClassTable:
        """Facts of a class' instances."""
        key = (table.path, "class", binding.line)
        kept = self._kept.facts.get(key)
        if kept is None:
            block = self.block(table.path, binding.start, binding.end)
            node = definition(block)
            shift = binding.start - (1 if block.startswith("if 1:\n") else 0)
            facts = ClassTable({}, "unreadable", "")
            if isinstance(node, ast.ClassDef):
                facts = read_class(node, Lines(block), shift)
            kept = self._keep(key, tuple(facts))
        return ClassTable._make(kept)

    def digest(self, path: str, binding: NameBinding, name: str) -> str:
        """Equal for definitions that were only moved or renamed."""
        key = (path, "digest", binding.line)
        kept = self._kept.facts.get(key)
        if kept is None:
            kept = self._keep(key, digest(self.block(path, binding.start, binding.end), name))
        return str(kept)

    def _keep(self, key: tuple[str, str, int], value: Any) -> Any:
        self._kept.facts[key] = value
        self._kept.changed = True
        return value

    def answer(self, key: tuple[str, ...], compute: Callable[[], Any]) -> Any:
        """What `compute` gives, kept with the release: plain containers, strings and numbers only."""
        if key not in self._kept.answers:
            self._kept.answers[key] = compute()
            self._kept.changed = True
        return self._kept.answers[key]
