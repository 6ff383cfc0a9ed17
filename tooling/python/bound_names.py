"""Say which names a function, class or module binds, as Python's own symbol table does."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_TARGETS = ("targets", "target", "optional_vars", "pattern")
_BINDING = frozenset(
    {ast.Name, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar}
    | {ast.MatchMapping, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal}
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True)
class Bound:
    """Names that a scope binds and declares."""

    names: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)


def bound_names(body: list[ast.stmt], *, walrus: bool) -> Bound:
    """Collect what the statements bind in their own scope.

    That is by assignments, imports, definitions, loops, `with`, `except`, walrus (also from inside comprehensions),
    `del` and patterns. walrus: whether the file has any; without them expressions bind nothing, and are not looked at.
    """
    found = Bound()
    for node in _own_nodes(body) if walrus else _own_statements(body):
        if type(node) in _BINDING:
            _collect(node, found)
    found.names -= found.outer | found.nonlocals
    return found


def _own_statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Statements of this scope, and what stands where they bind."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        if type(node) in _SCOPES:
            continue
        fields = node.__dict__
        for name in _BLOCKS:
            if name in fields:
                pending.extend(fields[name])
        for name in _TARGETS:
            target = fields.get(name)
            for one in target if isinstance(target, list) else (target,):
                if type(one) is ast.Name:
                    yield one
                elif one is not None:
                    yield from ast.walk(one)
        if "items" in fields:
            pending.extend(fields["items"])


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of this scope: of definitions in it only themselves, of comprehensions the walrus targets."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind in _SCOPES:
            yield node
            continue
        if kind in _COMPREHENSIONS:
            pending.extend(inner for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
            continue
        yield node
        for value in node.__dict__.values():
            if isinstance(value, list):
                pending.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                pending.append(value)


def _collect(node: ast.AST, found: Bound) -> None:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            found.names.add(name)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            found.names.add(name)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            found.names.add(name)
        case ast.MatchMapping(rest=str(name)):
            found.names.add(name)
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            found.names |= {each.asname or each.name.split(".")[0] for each in aliases if each.name != "*"}
        case ast.Global(names=names):
            found.outer.update(names)
        case ast.Nonlocal(names=names):
            found.nonlocals.update(names)
