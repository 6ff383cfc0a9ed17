"""What the Python files of a repository define, as an index of names: nothing is imported.

A name is defined by a class, a function, a parameter, an assignment, or an attribute that is set. Texts that are
constants of the code (keys of registries, values of enumerations, names of variables of the environment, columns) are
kept apart: they are values, and no path leads through them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.python.source import calm, module_name, parsed_file

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
        """Return the members of a class and of its bases as far as they are known."""
        found, waiting, seen = set[str](), [name], set[str]()
        while waiting:
            current = waiting.pop()
            if current not in seen:
                seen.add(current)
                found |= self.members.get(current, set())
                waiting += self.bases.get(current, ())
        return found


def read_definitions(root: Path, files: Iterable[str]) -> Definitions:
    """Return the index of these files; those that are not valid Python are left out."""
    index = Definitions()
    with calm():
        for path in files:
            tree = parsed_file(root / path)
            if tree is not None:
                module, _ = module_name(path)
                index.modules[module] = set(_bound(tree.body))
                index.names |= set(module.split("."))
                _add(index, tree)
    return index


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind at their level, inside `if`, `try` and `with` too."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield from _targets(node.targets if isinstance(node, ast.Assign) else [node.target])
            # `__all__` and tables of names that `__getattr__` loads: what a package offers without binding it.
            yield from (
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
        else:
            for part in ("body", "orelse", "finalbody", "handlers"):
                for below in getattr(node, part, ()):
                    yield from _bound(below.body if isinstance(below, ast.ExceptHandler) else [below])


def _targets(targets: Iterable[ast.expr]) -> list[str]:
    """Return the names and attributes that are assigned to."""
    found, waiting = list[str](), list(targets)
    while waiting:
        target = waiting.pop()
        if isinstance(target, ast.Name):
            found.append(target.id)
        elif isinstance(target, ast.Attribute):
            found.append(target.attr)
            waiting.append(target.value)
        elif not isinstance(target, ast.Constant):
            waiting += [one for one in ast.iter_child_nodes(target) if isinstance(one, ast.expr)]
    return found


_FIELDS = {
    kind: tuple(name for name in kind._fields if name not in {"ctx", "op", "ops"})
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""Fields of each kind of node that may hold further nodes."""


def _add(index: Definitions, tree: ast.AST) -> None:
    """Fill the index from one module. A loop, since a visitor of these millions of nodes takes three times as long."""
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, owner = waiting.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and len(node.value) <= _LONGEST_VALUE:
                index.values.add(node.value)
            continue
        if isinstance(node, ast.stmt | ast.arg | ast.alias):
            _define(index, node, owner)
        if isinstance(node, ast.ClassDef):
            owner = node.name
        for name in _FIELDS[type(node)]:
            value = getattr(node, name)
            if value.__class__ is list:
                waiting += [(one, owner) for one in value if isinstance(one, ast.AST) and one.__class__ is not ast.Name]
            elif isinstance(value, ast.AST) and value.__class__ is not ast.Name:
                waiting.append((value, owner))


def _define(index: Definitions, node: ast.stmt | ast.arg | ast.alias, owner: str) -> None:
    """Add what a statement or a parameter defines. owner: the class that it belongs to."""
    members, others, annotation = list[str](), list[str](), None
    if isinstance(node, ast.Assign):
        members = _targets(node.targets)
    elif isinstance(node, ast.AnnAssign):
        members, annotation = _targets([node.target]), node.annotation
    elif isinstance(node, ast.arg):
        others, annotation = [node.arg], node.annotation
    elif isinstance(node, ast.alias):
        others = [node.asname or node.name.rpartition(".")[2]]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        members, annotation = [node.name], node.returns
    elif isinstance(node, ast.ClassDef):
        members = [node.name]
        index.bases.setdefault(node.name, set()).update(name for base in node.bases for name in _identifiers(base))
        index.members.setdefault(node.name, set())
    index.names.update(members, others)
    if owner:
        index.members[owner].update(members)
    if annotation is not None:
        for name in (*members, *others):
            index.types.setdefault(name, set()).update(_identifiers(annotation))


def _identifiers(node: ast.expr) -> set[str]:
    """Return the names in an expression, also those in its texts."""
    found = set[str]()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.add(one.id)
        elif isinstance(one, ast.Attribute):
            found.add(one.attr)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.update(one.value.replace("|", " ").replace("[", " ").replace("]", " ").split())
    return found
