"""What the Python files of a repository define, as an index of names: nothing is imported.

A name is defined by a class, a function, a parameter, an assignment, or an attribute that is set. Texts that are
constants of the code (keys of registries, values of enumerations, names of variables of the environment, columns) are
kept apart: they are values, and no path leads through them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_LONGEST_VALUE = 60


@dataclass(slots=True)
class Definitions:
    """The index. `members`: of each class name, what can be read from an object of it, its bases' included."""

    names: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    modules: dict[str, set[str]] = field(default_factory=dict)
    """Module, with what is bound at its top level."""
    members: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, set[str]] = field(default_factory=dict)
    types: dict[str, set[str]] = field(default_factory=dict)
    """Names of variables, fields and parameters, with the names in their annotations."""

    def members_of(self, name: str) -> set[str]:
        """Members of a class and of its bases as far as they are known."""
        found, waiting, seen = set[str](), [name], set[str]()
        while waiting:
            current = waiting.pop()
            if current not in seen:
                seen.add(current)
                found |= self.members.get(current, set())
                waiting += self.bases.get(current, ())
        return found


def read_definitions(root: Path, files: Iterable[str]) -> Definitions:
    """The index of these files; those that are no valid Python are left out."""
    index = Definitions()
    for path in files:
        try:
            source = (root / path).read_bytes()
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            continue
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        index.modules[module] = set(_bound(tree.body))
        index.names |= set(module.split("."))
        _Reader(index).visit(tree)
    return index


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements bind at their level, inside `if`, `try` and `with` too."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield from _targets(node)
            # `__all__` and tables of names that `__getattr__` loads: what a package offers without binding it.
            yield from (
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
        else:
            for part in ("body", "orelse", "finalbody", "handlers"):
                for below in getattr(node, part, ()):
                    yield from _bound(below.body if isinstance(below, ast.ExceptHandler) else [below])


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for one in ast.walk(target):
            if isinstance(one, ast.Name):
                yield one.id
            elif isinstance(one, ast.Attribute):
                yield one.attr


class _Reader(ast.NodeVisitor):
    """Fills the index from one module."""

    def __init__(self, index: Definitions) -> None:
        self._index = index
        self._classes: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._define(node.name)
        self._index.bases.setdefault(node.name, set()).update(
            name for base in node.bases for name in _identifiers(base)
        )
        self._index.members.setdefault(node.name, set())
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._define(node.name)
        self._annotate(node.name, node.returns)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> None:
        self._index.names.add(node.arg)
        self._annotate(node.arg, node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        for name in _targets(node):
            self._define(name)
            self._annotate(name, node.annotation)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for name in _targets(node):
            self._define(name)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self._index.names.add(node.asname or node.name.rpartition(".")[2])

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and len(node.value) <= _LONGEST_VALUE:
            self._index.values.add(node.value)

    def _define(self, name: str) -> None:
        self._index.names.add(name)
        if self._classes:
            self._index.members[self._classes[-1]].add(name)

    def _annotate(self, name: str, annotation: ast.expr | None) -> None:
        if annotation is not None:
            self._index.types.setdefault(name, set()).update(_identifiers(annotation))


def _identifiers(node: ast.expr) -> set[str]:
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    found |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            found |= set(one.value.replace("|", " ").replace("[", " ").replace("]", " ").split())
    return found
