"""Keep what was read of a tree of source, in memory and in the cache."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import marshal
import os
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ToolError
from tooling.python.functions import read_function
from tooling.python.instances import read_class
from tooling.python.scope import scan
from tooling.python.source import Lines, decode, definition, digest, module_name, package_of
from tooling.python.tables import (
    SCHEMA,
    ClassTable,
    FunctionTable,
    ModuleTable,
    freeze_table,
    thaw_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tooling.python.source import SourceTree
    from tooling.python.tables import NameBinding


_HEADER = 16
_EMPTY_FUNCTION = FunctionTable(
    [], "", False, False, [], [], {}, {}, None, "", "", {}, [], [], "unreadable", False, [], {}
)


class KeptFacts:
    """What a cache file holds. Apart from the store, so that it can be written when the store is gone."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.changed = False
        self.tables: dict[str, bytes] = {}
        self.answers: dict[tuple[str | int, ...], Any] = {}
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
            self.tables, self.answers = marshal.loads(body)
        with contextlib.suppress(OSError):
            os.utime(path)  # caches are pruned by last use

    def save(self) -> None:
        """Write what is new. A cache that cannot be written is not an error."""
        if self.path is None or not self.changed:
            return
        body = marshal.dumps((self.tables, self.answers))
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".facts-")
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.blake2b(body, digest_size=_HEADER).digest() + body)
            os.replace(temporary, self.path)
            self.changed = False


class TreeStore:
    """Modules of a release by dotted path. A module may be a .py file, a stub, both, a folder, or native."""

    def __init__(self, source: SourceTree, cache: Path | None) -> None:
        self.source = source
        self.sources: dict[str, str] = {}
        self.stubs: dict[str, str] = {}
        for path in source.files():
            (self.stubs if path.endswith(".pyi") else self.sources)[module_name(path)[0]] = path
        self.folders = frozenset(folder.replace("/", ".") for folder in source.folders())
        self.native = frozenset(source.native())
        self.roots = frozenset(source.roots())
        self.parsed: list[str] = []
        """Files that were parsed for the first time, in order."""
        python = f"{sys.version_info[0]}{sys.version_info[1]}"
        kept = None if cache is None else cache / f"facts-{SCHEMA}-{python}-{source.digest()}"
        self._kept = KeptFacts(kept)
        weakref.finalize(self, self._kept.save)
        self._tables: dict[str, ModuleTable] = {}
        self._lines: dict[str, Lines] = {}

    def save(self) -> None:
        """Write the cache now; it is also written when the store goes."""
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
        """Return the module's table: of its source, else of its stub."""
        path = self.sources.get(dotted) or self.stubs.get(dotted)
        return self.table(path) if path else None

    def stub(self, dotted: str) -> ModuleTable | None:
        """Return the table of the stub beside a source file."""
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
            return self.source.read(path)
        except (KeyError, OSError, ToolError):
            return b"\0"  # the parser refuses it: the module is there and says nothing

    # Definitions

    def block(self, path: str, start: int, end: int) -> str:
        """Lines of a file as a piece of Python that stands alone."""
        return self._of(path).block(start, end)

    def text(self, path: str, start: int, end: int) -> str:
        """Lines of a file as they are, 1-based, both included."""
        return self._of(path).text_of(start, end)

    def _of(self, path: str) -> Lines:
        if path not in self._lines:
            try:
                self._lines[path] = Lines(decode(self._read(path)))
            except (SyntaxError, ValueError):
                self._lines[path] = Lines("")
        return self._lines[path]

    def function(self, table: ModuleTable, binding: NameBinding) -> FunctionTable:
        """Facts of a `def`."""

        def read() -> tuple[Any, ...]:
            block = self.block(table.path, binding.start, binding.end)
            node = definition(block)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return tuple(read_function(node, Lines(block), package_of(table.path)))
            return tuple(_EMPTY_FUNCTION)

        return FunctionTable._make(self.answer((table.path, "def", binding.line), read))

    def instance(self, table: ModuleTable, binding: NameBinding) -> ClassTable:
        """Facts of a class' instances."""

        def read() -> tuple[Any, ...]:
            block = self.block(table.path, binding.start, binding.end)
            node = definition(block)
            if isinstance(node, ast.ClassDef):
                return tuple(read_class(node, Lines(block), binding.start - block.startswith("if 1:\n")))
            return {}, "" if binding.extra == "call" else "unreadable", binding.extra != "call"

        return ClassTable._make(self.answer((table.path, "class", binding.line), read))

    def digest(self, path: str, binding: NameBinding, name: str) -> str:
        """Equal for definitions that were only moved or renamed."""
        block = (path, binding.start, binding.end)
        return str(self.answer((path, "digest", binding.line), lambda: digest(self.block(*block), name)))

    def answer(self, key: tuple[str | int, ...], compute: Callable[[], Any]) -> Any:
        """Return what `compute` gives, kept with the release: plain containers, strings and numbers only."""
        if key not in self._kept.answers:
            self._kept.answers[key] = compute()
            self._kept.changed = True
        return self._kept.answers[key]
