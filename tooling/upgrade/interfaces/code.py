"""The repository's own Python files as modules that import each other: names followed to constants and definitions."""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.python.once import once
from tooling.python.source import dotted_name, module_name, string_of
from tooling.python.source_modules import SourceModules
from tooling.upgrade.interfaces.pair import Remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tooling.python.module import Module
    from tooling.python.source import DefinitionNode
    from tooling.python.source_modules import MeantNode
    from tooling.upgrade.interfaces.repository import RepositoryFile

HOLE = "\ufffc"
"""Stands for a part of a text that is not constant."""
_FLAG = re.compile(rb"[\"']--?[A-Za-z{]|\s--[A-Za-z{]|[\w}\"']\s-[A-Za-z]{1,3}[\s\"'=]")
"""Flags as strings begin with them, long ones inside a string, and short ones between words; not `= -x`."""
PERCENT = re.compile(r"%[sdrif]")
_DEPTH = 8
"""Constants made of constants that are followed for one text."""


def prefixed(node: ast.expr) -> tuple[str, ast.expr]:
    """("--", name) of f"--{name}" and "--" + name; "" and the node itself for others."""
    if isinstance(node, ast.JoinedStr) and len(node.values) >= 2:
        first, second = node.values[:2]
        if isinstance(first, ast.Constant) and isinstance(second, ast.FormattedValue):
            return str(first.value), second.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):
        return str(node.left.value), node.right
    return "", node


class RepositoryCode(SourceModules):
    """All Python files of a repository, each parsed when a name leads to it. remembered: answers of earlier runs; what
    is asked of the code is noted there."""

    def __init__(self, files: Iterable[RepositoryFile], remembered: Remembered | None = None) -> None:
        self._files = {file.path: file for file in files if file.kind == "python"}
        self.remembered = remembered or Remembered()
        self.remembered.holds |= {
            "content": lambda path, was: self.digest(path) == was,
            "name": lambda name, was: self._rows(name) == was,
            "meaning": self._means,
            "imports": lambda path, was: self.digest(path) == was[0] or self.imports(path) == was[1],
            "flags": lambda path, was: self._has_flags(path) == was,
            "importers": lambda path, was: self._importing(path) == was,
        }

    def digest(self, path: str) -> str:
        """Of a file's content; "" for one that is not there."""
        file = self._files.get(path)
        return file.digest if file is not None else ""

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[str, str]]]:
        """Last part of a module's name to (whole name, path)."""
        found: dict[str, list[tuple[str, str]]] = {}
        for path in self._files:
            dotted = module_name(path)[0]
            found.setdefault(dotted.rpartition(".")[2], []).append((dotted, path))
        return found

    def at(self, path: str) -> Module | None:
        """The module in a file; None if it cannot be parsed."""
        self.remembered.note("content", path, self.digest(path))
        return self._module(path)

    def module(self, dotted: str, importer: str = "") -> Module | None:
        """See `SourceModules`."""
        path = self.path(dotted, importer)
        module = self._module(path) if path is not None else None
        if path is not None and module is None:
            self.remembered.note("content", path, self.digest(path))
        return module

    def meaning(self, module: Module, name: str) -> tuple[DefinitionNode | None, ast.expr | None, str | None]:
        """See `SourceModules`."""
        self.remembered.note(
            "meaning", f"{module.path}\n{name}", (self.digest(module.path), self._written(module, name))
        )
        return super().meaning(module, name)

    @once()
    def _written(self, module: Module, name: str) -> str:
        """What tells a meaning from others: the lines that it is written in, and where they are."""
        written: list[object] = [super().meaning(module, name)[2], module.stars]
        for node in (module.definitions.get(name), module.values.get(name)):
            if node is not None:
                first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
                lines = self._files[module.path].lines[first - 1 : node.end_lineno]
                written += [first, hashlib.sha256(b"\n".join(lines)).hexdigest()]
        return repr(written)

    def _means(self, subject: str, was: tuple[str, str]) -> bool:
        path, _, name = subject.partition("\n")
        if self.digest(path) == was[0]:
            return True  # so that only a file that was edited is parsed
        module = self._module(path)
        return module is not None and self._written(module, name) == was[1]

    def imported(self, module: Module) -> list[str]:
        """Dotted paths that a module imports, wherever it does."""
        found = list(module.imported.values())
        self.remembered.note("imports", module.path, (self.digest(module.path), found))
        return found

    def _module(self, path: str) -> Module | None:
        return self._files[path].module if path in self._files else None

    def _rows(self, name: str) -> list[tuple[str, str]]:
        return self._by_name.get(name, [])

    def path(self, dotted: str, importer: str = "") -> str | None:
        """The file that an import of `dotted` reads: below the root, beside the importer, or below the one folder
        (src/) that has it."""
        last = dotted.rpartition(".")[2]
        rows = self._rows(last)
        self.remembered.note("name", last, rows)
        exact = [path for name, path in rows if name == dotted]
        beside = f"{importer.rpartition('/')[0]}/{dotted.replace('.', '/')}"
        near = [path for _, path in rows if path in {f"{beside}.py", f"{beside}/__init__.py"}]
        below = [path for name, path in rows if name.endswith(f".{dotted}")]
        found = exact or near or (below if len(below) == 1 and "." in dotted else [])
        return found[0] if found else None

    def text(
        self,
        node: ast.expr,
        module: Module,
        owner: MeantNode | None = None,
        depth: int = 0,
        part: Callable[[ast.expr], str | None] | None = None,
    ) -> str | None:
        """A string of constants, holes for the rest; None if nothing of it is constant. part: what reads its parts, for
        somebody who knows more of them."""
        read = part or (lambda each: self.text(each, module, owner, depth))
        if isinstance(node, ast.Constant):
            return string_of(node)
        if isinstance(node, ast.JoinedStr):
            inner = (each.value if isinstance(each, ast.FormattedValue) else each for each in node.values)
            return "".join(read(each) or HOLE for each in inner)
        if isinstance(node, ast.Name | ast.Attribute) and depth < _DEPTH:
            if isinstance(node, ast.Attribute) and dotted_name(node.value) in {"self", "cls"}:
                found = self.attribute(owner, node.attr) if owner is not None else None
            else:
                found = self.named(node, module)
            if found is not None and isinstance(found.node, ast.expr):
                return self.text(found.node, found.module, None, depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            base = read(node.left)
            return PERCENT.sub(HOLE, base) if base is not None else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join"):
            base = read(node.func.value)
            if base is None or node.func.attr == "format":
                return re.sub(r"\{\w*\}", HOLE, base) if base is not None else None
            parts = node.args[0].elts if node.args and isinstance(node.args[0], ast.List | ast.Tuple) else None
            return base.join(read(each) or HOLE for each in parts) if parts else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = read(node.left), read(node.right)
            if left is not None or right is not None:
                return (HOLE if left is None else left) + (HOLE if right is None else right)
        return None

    def has_flags(self, path: str) -> bool:
        """Whether strings of a file begin like flags of a command."""
        found = self._has_flags(path)
        self.remembered.note("flags", path, found)
        return found

    def _has_flags(self, path: str) -> bool:
        file = self._files.get(path)
        return file is not None and self.remembered.answer(
            f"flags {file.digest}", lambda: _FLAG.search(file.content) is not None
        )

    def importers(self, path: str) -> list[str]:
        """Files that import a file's module, or something of it."""
        found = self._importing(path)
        self.remembered.note("importers", path, found)
        return found

    @once()
    def _importing(self, path: str) -> list[str]:
        *_, package, name = ("", *module_name(path)[0].split("."))
        # `from package import (`, `from package.name import x`, `import package.name`, `from . import name`
        words = b"|".join(re.escape(each.encode()) for each in (package, name) if each)
        imported = re.compile(rb"^[ \t]*(?:from|import)\b(?:[^\n]*\b(?:%b)\b|[ \t]+\.+[ \t]+import\b)" % words, re.M)
        return [
            other
            for other, file in self._files.items()
            if other != path
            and name.encode() in file.content
            and imported.search(file.content)
            and any(
                path in {self.path(each, other), self.path(each.rpartition(".")[0], other)}
                for each in self.imports(other)
            )
        ]

    def imports(self, path: str) -> list[str]:
        """Dotted paths that a file imports."""

        def made() -> list[str]:
            module = self._module(path)
            return list(module.imported.values()) if module is not None else []

        return self.remembered.answer(f"imports {path} {self.digest(path)}", made)
