"""Hold what the names of a condition may stand for, beside constants, versions and conditions, and compare it."""

from __future__ import annotations

import ast
import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from packaging.version import Version

from tooling.python import versions
from tooling.python.access_paths import Attribute, spelled
from tooling.python.class_bodies import assigned_in, function_in
from tooling.python.conditions import (
    TRUE,
    AllOf,
    AnyOf,
    CompareVersion,
    Condition,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Not,
    Undecided,
    all_of,
    any_of,
    negated,
)
from tooling.python.operations import UNKNOWN, OutOfFuel, Symbolic, compare, concrete
from tooling.python.source import dotted_name
from tooling.python.versions import VersionText

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.python.access_paths import AccessPath
    from tooling.python.conditions import Probe, VersionedSubject


class GuardScope(Protocol):
    """Where the names of a condition come from."""

    def find(self, name: str) -> object:
        """Return a value or a definition; UNKNOWN if the name is bound to something else, None if nobody knows."""
        ...

    def symbol(self, dotted: str, level: int = 0) -> object:
        """Return what a dotted path stands for if it leads into the repository or a package that is asked for; None
        for others. level: of a relative import."""
        ...


@dataclass(frozen=True, slots=True)
class GuardSymbol(Symbolic):
    """Something imported; `access_path` if it belongs to a package that is asked for, or leads there."""

    dotted: str
    access_path: AccessPath | None = None
    exists: Condition | None = None
    """For a name that a handler sets to None: when it is something else."""


@dataclass(frozen=True, slots=True)
class GuardNames(Symbolic):
    """A collection of names: `dir(x)`, or the parameters of x."""

    of: AccessPath
    parameters: bool


@dataclass(frozen=True, slots=True)
class GuardSkip(Symbolic):
    """A decorator or mark that skips a test."""

    unless: Condition


@dataclass(frozen=True, slots=True)
class GuardDefinition(Symbolic):
    """A function of the repository, or an expression that a name was bound to, with the scope to read it in."""

    node: ast.FunctionDef | ast.expr
    scope: GuardScope

    @property
    def function(self) -> ast.FunctionDef | None:
        """A function to be called, also where it is a lambda; None for a value."""
        if isinstance(self.node, ast.Lambda):
            return ast.FunctionDef("", self.node.args, [ast.Return(self.node.body)], [])
        return self.node if isinstance(self.node, ast.FunctionDef) else None


@dataclass(frozen=True, slots=True)
class GuardClass(Symbolic):
    """A class of the repository, to be read when something of it is asked for."""

    read: Callable[[], ast.ClassDef | None]
    scope: GuardScope


@dataclass(frozen=True, slots=True)
class GuardObject(Symbolic):
    """An object of a class of the repository."""

    made: GuardClass
    arguments: tuple[object, ...] | None = None
    """What it was made with; None where that is not known, as of `self`."""
    named: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class InnerScope:
    """Names of a function around, then those of its file."""

    around: GuardScope
    names: dict[str, object]

    def find(self, name: str) -> object:
        """See `GuardScope`."""
        return self.names[name] if name in self.names else self.around.find(name)

    def symbol(self, dotted: str, level: int = 0) -> object:
        """See `GuardScope`."""
        return self.around.symbol(dotted, level)


CONDITIONS = (CompareVersion, HasName, HasParameter, ModuleExists, Constant, Undecided, Not, AllOf, AnyOf)
_CONTAINERS = (list, tuple, dict, set)
PROBES = frozenset(
    {"hasattr", "getattr", "dir", "vars", "signature", "getfullargspec", "find_spec", "import_module", "callable"}
    | {"metadata", "version", "distribution", "get_distribution", "requires", "packages_distributions"}
    | {"__dict__", "__mro__", "__code__", "modules", "attrgetter", "getmembers", "getattr_static"}
)
"""What asks whether something is there."""
_FIELDS = frozenset(
    {"__annotations__", "__dataclass_fields__", "__fields__", "__struct_fields__", "_fields", "model_fields"}
)
"""Attributes of classes that hold the names of their constructors' parameters."""
RAISES = object()
"""What a path through a function gives that ends in `raise`."""
MAX_DEPTH = 3
"""How many functions and names deep a condition is followed."""
MAX_NODES = 400
"""Parts of a definition that are looked at for what it may be about."""
OLDEST_PYTHON = (3, 10)
"""Code that asks for an older one is answered: nothing that is maintained runs there."""


def names_in(base: GuardSymbol, name: str) -> object:
    """Return the names that an attribute of something of a package holds, or its classes; None for other attributes."""
    if name == "__mro__":
        return (base,)
    if base.access_path is not None and name in _FIELDS:
        return GuardNames(base.access_path, parameters=True)
    if base.access_path is not None and name in ("__dict__", "__all__"):
        return GuardNames(base.access_path, parameters=False)
    if name == "co_varnames" and isinstance(base.access_path, Attribute) and base.access_path.name == "__code__":
        return GuardNames(base.access_path.base, parameters=True)
    return None


def as_condition(value: object) -> Condition | None:
    """Return a value as a condition; None where that is not known."""
    if isinstance(value, CONDITIONS):
        return value
    if isinstance(value, GuardSymbol):
        return value.exists
    if isinstance(value, _CONTAINERS):  # an empty one that can grow may have grown by then
        return Constant(bool(value)) if value or isinstance(value, tuple) else None
    return Constant(bool(value)) if concrete(value) else None


def compared_values(left: object, operator: ast.cmpop, right: object) -> object:
    """One comparison: a condition, or a constant."""
    if isinstance(left, GuardSymbol) and left.dotted == "sys.version_info" and isinstance(right, tuple):
        return compare(operator, OLDEST_PYTHON, right) if right <= OLDEST_PYTHON[: len(right)] else UNKNOWN
    if isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and (right is None or isinstance(right, bool)):
        # `x is None`, `x == True`, where x is a condition (something found or not)
        found = as_condition(left) if isinstance(left, (GuardSymbol, *CONDITIONS)) else None
        if found is not None:
            same = isinstance(operator, ast.Is | ast.Eq)
            return found if (right is True) is same else negated(found)
    if isinstance(right, GuardNames) and isinstance(operator, ast.LtE) and isinstance(left, set | frozenset):
        return all_of([(HasParameter if right.parameters else HasName)(right.of, str(each)) for each in left])
    if isinstance(operator, ast.In | ast.NotIn):
        inside: object = UNKNOWN
        if isinstance(right, GuardNames) and isinstance(left, str):
            inside = (HasParameter if right.parameters else HasName)(right.of, left)
        elif isinstance(right, GuardSymbol) and right.dotted == "sys.modules" and isinstance(left, str):
            inside = ModuleExists(left)
        elif (isinstance(left, VersionText) and concrete(right)) or (
            isinstance(left, Version) and isinstance(right, str)
        ):
            inside = versions.within(left, right)
        else:
            return compare(operator, left, right)
        found = as_condition(inside)
        return UNKNOWN if found is None else negated(found) if isinstance(operator, ast.NotIn) else found
    return versions.compared(left, operator, right)


def chosen(test: Condition, then: object, other: object) -> object:
    """`then if test else other`, where RAISES cannot be reached."""
    if then is RAISES or other is RAISES or then == other:
        return other if then is RAISES else then
    if isinstance(then, GuardSkip) or isinstance(other, GuardSkip):  # the other one is the test as it is
        then, other = (each.unless if isinstance(each, GuardSkip) else TRUE for each in (then, other))
        return GuardSkip(any_of([all_of([test, then]), all_of([negated(test), other])]))
    if isinstance(then, tuple) and isinstance(other, tuple) and len(then) == len(other):
        return tuple(chosen(test, *pair) for pair in zip(then, other, strict=True))
    sides = [as_condition(then), as_condition(other)]
    if sides[0] is None or sides[1] is None or isinstance(then, _CONTAINERS) or isinstance(other, _CONTAINERS):
        return UNKNOWN
    return any_of([all_of([test, sides[0]]), all_of([negated(test), sides[1]])])


def led_to(scope: GuardScope, name: str) -> list[tuple[ast.AST, GuardScope]]:
    """Return what a name of a condition leads to; of `self.fast` only what that attribute is."""
    found = scope.find(name) if name.count(".") < 2 else None
    if isinstance(found, GuardDefinition):
        return [(found.node, found.scope)]
    owner, _, last = name.partition(".")
    made = scope.find(owner) if last and not isinstance(found, GuardClass | GuardObject) else found
    made = made.made if isinstance(made, GuardObject) else made
    body = made.read() if isinstance(made, GuardClass) else None
    if body is None or not isinstance(made, GuardClass):
        return []
    function = function_in(body, last)
    parts = [body] if not last else [function] if function is not None else [one for one, _ in assigned_in(body, last)]
    return [(part, made.scope) for part in parts]


@dataclass(slots=True)
class Listener:
    """A release that says nothing, and notes what it is asked for."""

    names: set[str] = field(default_factory=set)
    asks: bool = False
    """Whether for names."""

    def version_of(self, asked: VersionedSubject) -> None:
        """See `ReleaseAnswers`."""
        self.names.add(asked.subject)

    def constant(self, _access_path: AccessPath) -> object:
        """See `ReleaseAnswers`."""
        return UNKNOWN

    def answer(self, probe: Probe) -> None:
        """See `ReleaseAnswers`."""
        if isinstance(probe, HasName | HasParameter):
            self.asks = True
            self.names |= {probe.name, spelled(probe.base).rpartition(".")[2]}
        elif isinstance(probe, CompareVersion):
            self.names.add(probe.subject)
        elif isinstance(probe, Undecided) and probe.question is not None:
            self.names |= probe.question.about()


def asked_by(
    test: ast.expr, scope: GuardScope, side: Listener, reader: Callable[[GuardScope], Callable[[ast.expr], object]]
) -> set[str]:
    """Ask a listener what a test, and all that its names lead to, needs of a release; return the texts in these."""
    texts: set[str] = set()
    seen: set[int] = set()
    pending: list[tuple[ast.AST, GuardScope, int]] = [(test, scope, 0)]
    while pending:
        node, where, depth = pending.pop()
        seen.add(id(node))
        parts = [node] if isinstance(node, ast.expr) else []
        owners = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        for each in itertools.islice(ast.walk(node), MAX_NODES):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                texts.add(each.value)
            if isinstance(each, ast.stmt):
                parts += [part for part in ast.iter_child_nodes(each) if isinstance(part, ast.expr)]
            if not isinstance(each, ast.Name | ast.Attribute | ast.Call):
                continue
            name = dotted_name(each)
            side.asks = side.asks or name.rpartition(".")[2] in PROBES
            for further, inner in led_to(where, name) if depth < MAX_DEPTH and id(each) not in owners else ():
                if id(further) not in seen:
                    pending.append((further, inner, depth + 1))
        read = reader(where)
        with suppress(OutOfFuel):
            for part in parts:
                read(part)
    return texts
