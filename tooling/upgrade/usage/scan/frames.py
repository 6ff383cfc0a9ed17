"""Scopes as Python has them: which names a function or class binds, and what they hold at this point of the walk."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_TARGETS = ("targets", "target", "optional_vars", "pattern")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True)
class DictEntry:
    """A key of a dict whose content is known."""

    key: ast.expr | ast.keyword
    """Where the keyword stands."""
    name: str
    value: int
    literal: str | None
    conditions: tuple[int, ...]


@dataclass(slots=True)
class KnownDict:
    """A local dict made of constant keys."""

    entries: dict[str, list[DictEntry]] = field(default_factory=dict)
    more: bool = False
    """Whether it may have keys that are not seen."""
    rests: tuple[int, ...] = ()
    """Values that the keys that are not seen come from: `**kwargs`, a parameter, what a function returned."""
    dropped: frozenset[str] = frozenset()
    """Keys of the rests that were taken out."""

    def copy(self) -> KnownDict:
        """As it is now: later changes to one do not touch the other."""
        entries = {name: list(entries) for name, entries in self.entries.items()}
        return KnownDict(entries, self.more, self.rests, self.dropped)

    def drop(self, name: str) -> None:
        """Take a key out."""
        self.entries.pop(name, None)
        self.dropped |= {name}


@dataclass(slots=True)
class Frame:
    """One scope during the walk."""

    kind: str
    """"module", "class" or "function"."""
    qualname: str
    parent: Frame | None
    bound: frozenset[str] = frozenset()
    """Names that are local here wherever they are bound, as Python's own symbol table says."""
    outer: frozenset[str] = frozenset()
    """Names declared `global`."""
    nonlocals: frozenset[str] = frozenset()
    owner: str = ""
    """Of a method: the class it belongs to."""
    receiver: str = ""
    """Of a method: its first parameter."""
    inline: bool = False
    """A lambda or comprehension: walked where it stands, so it sees what names hold there."""
    values: dict[str, int] = field(default_factory=dict)
    """What each name holds at this point; also "self.x" where that was narrowed."""
    origins: dict[str, ast.expr | None] = field(default_factory=dict)
    """The expression a name was bound to; None if there were several."""
    history: dict[str, list[int]] = field(default_factory=dict)
    dicts: dict[str, KnownDict] = field(default_factory=dict)
    strings: dict[str, list[ast.Constant]] = field(default_factory=dict)
    """Names that are bound to a list of strings, or to each of its elements in turn."""
    dict_made: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Conditions that each of `dicts` was made under."""
    reads_annotations: bool = False
    """A class whose fields are made from its annotations: even those in strings are evaluated."""
    marks: tuple[int, ...] = ()
    """Conditions of `pytestmark`: all functions below run under them."""
    returns: list[int] = field(default_factory=list)
    yields: list[int] = field(default_factory=list)
    calls_super: bool = False
    is_generator: bool = False
    later: list[Callable[[], None]] = field(default_factory=list)
    """Bodies to walk when this scope is complete."""

    def copy_values(self) -> tuple[dict[str, int], dict[str, KnownDict]]:
        """State before a branch."""
        return dict(self.values), {name: known.copy() for name, known in self.dicts.items()}


@dataclass(slots=True)
class Bound:
    """Names that a scope binds and declares."""

    names: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)


def bound_names(body: list[ast.stmt], *, walrus: bool) -> Bound:
    """What the statements bind in their own scope: assignments, imports, definitions, loops, `with`, `except`, walrus
    (also from inside comprehensions), `del`, patterns. walrus: whether the file has any; without them expressions bind
    nothing, and are not looked at."""
    found = Bound()
    for node in _own_nodes(body) if walrus else _own_statements(body):
        collect = _COLLECT.get(type(node))
        if collect is not None:
            collect(node, found)
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


def _name(node: ast.AST, found: Bound) -> None:
    assert isinstance(node, ast.Name)
    if not isinstance(node.ctx, ast.Load):
        found.names.add(node.id)


def _definition(node: ast.AST, found: Bound) -> None:
    found.names.add(node.name)  # type: ignore[attr-defined]  # only definitions come here


def _optional(node: ast.AST, found: Bound) -> None:
    name = getattr(node, "name", None) or getattr(node, "rest", None)
    if name:
        found.names.add(name)


def _import(node: ast.AST, found: Bound) -> None:
    assert isinstance(node, ast.Import | ast.ImportFrom)
    for alias in node.names:
        if alias.name != "*":
            found.names.add(alias.asname or alias.name.split(".")[0])


def _global(node: ast.AST, found: Bound) -> None:
    assert isinstance(node, ast.Global)
    found.outer.update(node.names)


def _nonlocal(node: ast.AST, found: Bound) -> None:
    assert isinstance(node, ast.Nonlocal)
    found.nonlocals.update(node.names)


_COLLECT: dict[type[ast.AST], Callable[[ast.AST, Bound], None]] = {
    ast.Name: _name,
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.ClassDef: _definition,
    ast.ExceptHandler: _optional,
    ast.MatchAs: _optional,
    ast.MatchStar: _optional,
    ast.MatchMapping: _optional,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Global: _global,
    ast.Nonlocal: _nonlocal,
}
