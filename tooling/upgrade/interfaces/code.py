"""The repository's own Python files as modules that import each other: names followed to constants and definitions."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.python.source import FunctionNode, dotted_name, module_name
from tooling.upgrade.interfaces.modules import ReleaseModule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.upgrade.interfaces.repository import RepositoryFile

HOLE = "\ufffc"
"""Stands for a part of a text that is not constant."""
_FLAG = re.compile(rb"[\"']--?[A-Za-z{]|\s--[A-Za-z{]|[\w}\"']\s-[A-Za-z]{1,3}[\s\"'=]")
"""Flags as strings begin with them, long ones inside a string, and short ones between words; not `= -x`."""
_DEPTH = 8
"""Re-exports, and constants made of constants, that are followed for one name."""


@dataclass(frozen=True, slots=True, eq=False)
class CodeDefinition:
    """What a name of the repository means, and the module that defines it."""

    module: ReleaseModule
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr


class RepositoryCode:
    """All Python files of a repository, each parsed when a name leads to it."""

    def __init__(self, files: Iterable[RepositoryFile]) -> None:
        self._files = {file.path: file for file in files if file.kind == "python"}
        self._modules: dict[str, ReleaseModule | None] = {}

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[str, str]]]:
        """Last part of a module's name to (whole name, path)."""
        found: dict[str, list[tuple[str, str]]] = {}
        for path in self._files:
            dotted = module_name(path)[0]
            found.setdefault(dotted.rpartition(".")[2], []).append((dotted, path))
        return found

    def at(self, path: str) -> ReleaseModule | None:
        """The module in a file; None if it cannot be parsed."""
        if path not in self._modules:
            file = self._files.get(path)
            tree = file.tree if file is not None else None
            dotted = module_name(path)[0]
            self._modules[path] = ReleaseModule(dotted, path, tree) if tree is not None else None
        return self._modules[path]

    def path(self, dotted: str, importer: str = "") -> str | None:
        """The file that an import of `dotted` reads: below the root, beside the importer, or below the one folder
        (src/) that has it."""
        rows = self._by_name.get(dotted.rpartition(".")[2], [])
        exact = [path for name, path in rows if name == dotted]
        beside = f"{importer.rpartition('/')[0]}/{dotted.replace('.', '/')}"
        near = [path for _, path in rows if path in {f"{beside}.py", f"{beside}/__init__.py"}]
        below = [path for name, path in rows if name.endswith(f".{dotted}")]
        found = exact or near or (below if len(below) == 1 and "." in dotted else [])
        return found[0] if found else None

    def find(self, dotted: str, importer: str = "", depth: int = 0) -> CodeDefinition | None:
        """The function, class or value that a dotted path leads to, through re-exports."""
        parent, _, name = dotted.rpartition(".")
        path = self.path(parent, importer) if parent else None
        module = self.at(path) if path is not None else None
        if module is None or depth > _DEPTH:
            return None
        if name in module.definitions:
            return CodeDefinition(module, module.definitions[name])
        if name in module.values:
            return CodeDefinition(module, module.values[name])
        return self.find(module.imports[name], module.path, depth + 1) if name in module.imports else None

    def named(self, node: ast.expr, module: ReleaseModule) -> CodeDefinition | None:
        """What a name or dotted expression means at the top level of a module."""
        dotted = dotted_name(node)
        if not dotted:
            return None
        head, _, rest = dotted.partition(".")
        if not rest:
            if head in module.definitions:
                return CodeDefinition(module, module.definitions[head])
            if head in module.values:
                return CodeDefinition(module, module.values[head])
        if head in module.imports:
            return self.find(".".join([module.imports[head], *([rest] if rest else [])]), module.path)
        local = module.definitions.get(head)
        if isinstance(local, ast.ClassDef) and rest and "." not in rest:
            return self.attribute(CodeDefinition(module, local), rest)
        return None

    def bases(self, owner: CodeDefinition) -> list[CodeDefinition]:
        """A class and its bases in the repository, nearest first, each once."""
        found: list[CodeDefinition] = []
        waiting = [owner]
        while waiting:
            current = waiting.pop(0)
            if not isinstance(current.node, ast.ClassDef) or any(current.node is each.node for each in found):
                continue
            found.append(current)
            waiting += [base for each in current.node.bases if (base := self.named(each, current.module)) is not None]
        return found

    def attribute(self, owner: CodeDefinition, name: str) -> CodeDefinition | None:
        """A method, or the value of an attribute, that a class or one of its bases has."""
        for each in self.bases(owner):
            for node in getattr(each.node, "body", []):
                if isinstance(node, FunctionNode) and node.name == name:
                    return CodeDefinition(each.module, node)
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                value = getattr(node, "value", None)
                if isinstance(value, ast.expr) and any(
                    isinstance(target, ast.Name) and target.id == name for target in targets
                ):
                    return CodeDefinition(each.module, value)
        return None

    def text(
        self, node: ast.expr, module: ReleaseModule, owner: CodeDefinition | None = None, depth: int = 0
    ) -> str | None:
        """A string of constants, holes for the rest; None if nothing of it is constant."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.JoinedStr):
            return "".join(
                self.text(each.value if isinstance(each, ast.FormattedValue) else each, module, owner, depth) or HOLE
                for each in node.values
            )
        if isinstance(node, ast.Name | ast.Attribute) and depth < _DEPTH:
            if isinstance(node, ast.Attribute) and dotted_name(node.value) in {"self", "cls"}:
                found = self.attribute(owner, node.attr) if owner is not None else None
            else:
                found = self.named(node, module)
            if found is not None and isinstance(found.node, ast.expr):
                return self.text(found.node, found.module, None, depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = (self.text(each, module, owner, depth) for each in (node.left, node.right))
            return None if left is None and right is None else (left or HOLE) + (right or HOLE)
        return None

    def has_flags(self, path: str) -> bool:
        """Whether strings of a file begin like flags of a command."""
        file = self._files.get(path)
        return file is not None and _FLAG.search(file.content) is not None

    def importers(self, path: str) -> list[str]:
        """Files that import a file's module, or something of it."""
        *_, package, name = ("", *module_name(path)[0].split("."))
        # `from package import (`, `from package.name import x`, `import package.name`, `from . import name`
        words = b"|".join(re.escape(each.encode()) for each in (package, name) if each)
        imported = re.compile(rb"^[ \t]*(?:from|import)\b(?:[^\n]*\b(?:%b)\b|[ \t]+\.+[ \t]+import\b)" % words, re.M)
        found = []
        for other, file in self._files.items():
            if other == path or name.encode() not in file.content or not imported.search(file.content):
                continue
            module = self.at(other)
            sources = module.imports.values() if module is not None else ()
            if any(path in {self.path(each, other), self.path(each.rpartition(".")[0], other)} for each in sources):
                found.append(other)
        return found
