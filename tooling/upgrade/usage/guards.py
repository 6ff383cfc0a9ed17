"""Understand conditions about versions: comparisons, constants and helper functions that make them."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tooling.upgrade.uses import (
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
    VersionSource,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.upgrade.uses import AccessPath


_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_BY_FUNCTION = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_PARSERS = frozenset({"parse", "Version", "parse_version", "LooseVersion", "StrictVersion", "LegacyVersion"})
_VERSION_NAMES = frozenset({"__version__", "__version_tuple__", "VERSION", "version_tuple"})
_HELPER = re.compile(r"is_(\w+?)_(available|version|greater_or_equal_than|greater_or_equal|greater_than)")
_AVAILABILITY = re.compile(r"_?is_(?:package|module)_available")
_SPECIFIER = re.compile(r"\s*(<=|>=|==|!=|<|>|~=)\s*([\w.+!*-]+)\s*")


def version_of_symbol(dotted: str) -> VersionText | None:
    """`pkg.__version__`, also where it is kept in `pkg.version`."""
    base, _, last = dotted.rpartition(".")
    if last not in _VERSION_NAMES or not base:
        return None
    for suffix in (".version", "._version"):
        base = base.removesuffix(suffix)
    return VersionText(VersionSource.MODULE, base)


def called(dotted: str, arguments: Sequence[Value]) -> Value | None:
    """What a function of a library gives when it is about versions; None for others."""
    last = dotted.rpartition(".")[2]
    first = arguments[0] if arguments else NOTHING
    if last in ("version", "get_distribution", "distribution") and dotted.startswith(
        ("importlib.metadata.", "importlib_metadata.", "pkg_resources.")
    ):
        name = first.value if isinstance(first, Literal) else None
        return VersionText(VersionSource.DISTRIBUTION, name) if isinstance(name, str) else NOTHING
    if last in _PARSERS and isinstance(first, VersionText | Literal):
        return first
    if dotted.startswith("operator.") and last in _BY_FUNCTION and len(arguments) == 2:
        return compared(arguments[0], _BY_FUNCTION[last], arguments[1])
    if last == "SpecifierSet" and isinstance(first, Literal):
        return first
    return None


def helper(name: str, arguments: Sequence[Value], minimum: Value | None) -> Value | None:
    """`is_x_available()`, `is_x_version(">=", "1.0")`, `is_x_greater_or_equal("1.0")` of libraries whose source is not
    at hand: named so, they all mean the same."""
    found = _HELPER.fullmatch(name)
    if found is None:
        return None
    subject, kind = found[1], found[2]
    texts = [one.value for one in arguments if isinstance(one, Literal) and isinstance(one.value, str)]
    if kind == "version" and len(texts) == 2 and texts[0] in _FLIPPED:
        return Truth(CompareVersion(VersionSource.MODULE, subject, texts[0], texts[1]))
    if kind.startswith("greater") and texts:
        operator = ">" if kind == "greater_than" else ">="
        return Truth(CompareVersion(VersionSource.MODULE, subject, operator, texts[0]))
    if kind == "available":
        wanted = minimum if minimum is not None else arguments[0] if arguments else None
        if isinstance(wanted, Literal) and isinstance(wanted.value, str):
            return Truth(CompareVersion(VersionSource.MODULE, subject, ">=", wanted.value))
        return Truth(ModuleExists(subject))
    return None


def availability(name: str, arguments: Sequence[Value], named: Mapping[str, Value]) -> Value | None:
    """`_is_package_available("x")`, and with `return_version=True` the pair of it and the version: many libraries of
    this field have a copy of it. None for other functions."""
    if _AVAILABILITY.fullmatch(name) is None:
        return None
    first = arguments[0] if arguments else NOTHING
    if not isinstance(first, Literal) or not isinstance(first.value, str):
        return NOTHING
    exists = Truth(ModuleExists(first.value))
    if named.get("return_version") == Literal(True):
        return Several((exists, VersionText(VersionSource.MODULE, first.value)))
    return exists


def attribute(value: VersionText, name: str) -> Value:
    """`version.major`, `.release`, `.base_version`."""
    if name == "major":
        return replace(value, parts=1)
    return value if name in ("release", "base_version", "public", "version", "__version__") else NOTHING


def item(value: VersionText, index: ast.expr) -> Value:
    """`version.split(".")[:2]`, `[0]`."""
    if isinstance(index, ast.Slice):
        upper = index.upper
        if index.lower is None and index.step is None and isinstance(upper, ast.Constant) and type(upper.value) is int:
            return replace(value, parts=upper.value if value.parts == 0 else min(value.parts, upper.value))
        return NOTHING
    if isinstance(index, ast.Constant) and index.value == 0:
        return replace(value, parts=1)
    return NOTHING


def method(value: VersionText, name: str, arguments: Sequence[Value]) -> Value:
    """Methods of strings and Versions."""
    first = arguments[0].value if arguments and isinstance(arguments[0], Literal) else None
    if name == "startswith" and isinstance(first, str):
        return Truth(CompareVersion(value.source, value.subject, "startswith", first))
    if name == "split" and first in ("+", "-", "rc", "a", "b", ".dev", "dev"):
        return replace(value, parts=-1)  # only its first piece is a version
    return value if name in ("split", "strip", "lstrip", "rstrip", "replace", "removeprefix", "parse") else NOTHING


def compare_operator(operator: ast.cmpop) -> str:
    """Sign of a comparison; "" for `is` and `in`."""
    return _OPERATORS.get(type(operator), "")


def compared(left: Value, operator: str, right: Value) -> Value:
    """`left operator right`, if one side is a version and the other is known."""
    if isinstance(right, VersionText) and isinstance(left, Literal):
        return compared(right, _FLIPPED.get(operator, ""), left)
    if isinstance(left, Literal) and isinstance(right, Literal):
        if operator == "==":
            return Literal(left.value == right.value)
        return Literal(left.value != right.value) if operator == "!=" else NOTHING
    if not isinstance(left, VersionText) or not isinstance(right, Literal) or operator not in _FLIPPED:
        return NOTHING
    text = version_literal(right.value)
    if not text:
        return NOTHING
    return Truth(CompareVersion(left.source, left.subject, operator, text, max(left.parts, 0)))


def version_literal(value: object) -> str:
    """A version text; tuples are joined with dots."""
    if isinstance(value, tuple) and value and all(isinstance(part, int | str) for part in value):
        return ".".join(str(part) for part in value)
    if isinstance(value, bool):
        return ""
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) and value[:1].isdigit() else ""


def within(version: VersionText, specifiers: Literal) -> Value:
    """`version in SpecifierSet(">=1,<2")`, or in a tuple of versions."""
    if isinstance(specifiers.value, tuple | list | set | frozenset):
        members = [compared(version, "==", Literal(one)) for one in specifiers.value]
        if not members or not all(isinstance(one, Truth) for one in members):
            return NOTHING
        return Truth(any_of([one.condition for one in members if isinstance(one, Truth)]))
    conditions: list[Condition] = []
    for part in str(specifiers.value).split(","):
        found = _SPECIFIER.fullmatch(part)
        if found is None or found[1] == "~=" or found[2].endswith("*"):
            return NOTHING
        conditions.append(CompareVersion(version.source, version.subject, found[1], found[2], max(version.parts, 0)))
    return Truth(all_of(conditions))


def library_symbol(value: Value) -> str:
    """Dotted path of a symbol, "" for other values."""
    return value.dotted if isinstance(value, GuardSymbol) else ""


class GuardScope(Protocol):
    """Where the names of a condition come from."""

    def find(self, name: str) -> Value | GuardDefinition | None:
        """What a name stands for; None if nobody knows."""
        ...

    def symbol(self, dotted: str) -> Value | GuardDefinition | None:
        """What a dotted path stands for if it leads into the repository; None for others."""
        ...


@dataclass(frozen=True, slots=True)
class Literal:
    """A value known here and now."""

    value: Any


@dataclass(frozen=True, slots=True)
class VersionText:
    """The version of something, as text, tuple or Version: it makes no difference. parts: how many leading release
    parts are left of it, 0 for all."""

    source: VersionSource
    subject: str
    parts: int = 0


@dataclass(frozen=True, slots=True)
class GuardSymbol:
    """Something imported; `access_path` if it belongs to a package that is asked for, or leads there."""

    dotted: str
    access_path: AccessPath | None = None
    exists: Condition | None = None
    """For a name that a handler sets to None: when it is something else."""


@dataclass(frozen=True, slots=True)
class GuardNames:
    """A collection of names: `dir(x)`, or the parameters of x."""

    of: AccessPath
    parameters: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition as a value."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Several:
    """A tuple of which not all is literal."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """Not known."""


@dataclass(frozen=True, slots=True)
class GuardDefinition:
    """A function of the repository, or an expression that a name was bound to, with the scope to read it in."""

    node: ast.FunctionDef | ast.expr
    scope: GuardScope


Value = Literal | VersionText | GuardSymbol | GuardNames | Truth | Several | Nothing
NOTHING = Nothing()
TRUE, FALSE = Constant(True), Constant(False)


def negated(condition: Condition) -> Condition:
    """The opposite."""
    if isinstance(condition, Constant):
        return Constant(not condition.value)
    return condition.condition if isinstance(condition, Not) else Not(condition)


def all_of(conditions: list[Condition]) -> Condition:
    """Conjunction, simplified."""
    kept = [one for one in dict.fromkeys(conditions) if one != TRUE]
    if FALSE in kept:
        return FALSE
    if len(kept) == 1:
        return kept[0]
    return AllOf(tuple(kept)) if kept else TRUE


def any_of(conditions: list[Condition]) -> Condition:
    """Disjunction, simplified."""
    kept = [one for one in dict.fromkeys(conditions) if one != FALSE]
    if TRUE in kept:
        return TRUE
    if len(kept) == 1:
        return kept[0]
    return AnyOf(tuple(kept)) if kept else FALSE


def is_decidable(condition: Condition) -> bool:
    """Whether a release can say anything about it."""
    if isinstance(condition, Not):
        return is_decidable(condition.condition)
    if isinstance(condition, AllOf | AnyOf):
        return any(is_decidable(one) for one in condition.conditions)
    return isinstance(condition, CompareVersion | HasName | HasParameter | ModuleExists | Constant)


def is_decided(condition: Condition) -> bool:
    """Whether a release says all about it: nothing else plays a part."""
    if isinstance(condition, Not):
        return is_decided(condition.condition)
    if isinstance(condition, AllOf | AnyOf):
        return all(is_decided(one) for one in condition.conditions)
    return not isinstance(condition, Undecided)


def undecided(text: str) -> Undecided:
    """A condition about something else."""
    shown = " ".join(text.split())
    return Undecided(shown if len(shown) <= 80 else f"{shown[:79]}…")


MAX_STATEMENTS = 30
MAX_PATHS = 16
"""Branches times statements that are followed; more is not a small function."""


class Evaluate(Protocol):
    """Evaluation of expressions, as functions need it."""

    def value(self, node: ast.expr, scope: GuardScope) -> Value:
        """What an expression is worth."""
        ...

    def truth(self, node: ast.expr, scope: GuardScope) -> Condition:
        """What it says as a condition."""
        ...


class LocalScope:
    """Names inside a call of a function."""

    def __init__(self, names: dict[str, Value], outer: GuardScope) -> None:
        self._names = names
        self._outer = outer

    def find(self, name: str) -> Value | GuardDefinition | None:
        """What a name stands for."""
        return self._names[name] if name in self._names else self._outer.find(name)

    def symbol(self, dotted: str) -> Value | GuardDefinition | None:
        """What a dotted path stands for."""
        return self._outer.symbol(dotted)

    def bound(self, name: str, value: Value) -> LocalScope:
        """With one name more."""
        return LocalScope({**self._names, name: value}, self._outer)


class FunctionBody:
    """One call followed through a body."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._paths = 0

    def result(
        self, function: ast.FunctionDef, scope: GuardScope, positional: Sequence[Value], named: dict[str, Value]
    ) -> Value:
        """What the call gives."""
        if not _is_small(function):
            return NOTHING
        names = dict(named)
        arguments = [*function.args.posonlyargs, *function.args.args]
        names.update((entry.arg, value) for entry, value in zip(arguments, positional, strict=False))
        self._defaults(function.args, scope, names)
        result = self._run(list(function.body), LocalScope(names, scope))
        return NOTHING if result is None else result

    def _defaults(self, arguments: ast.arguments, scope: GuardScope, names: dict[str, Value]) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        offset = len(positional) - len(arguments.defaults)
        pairs = [(positional[offset + index], default) for index, default in enumerate(arguments.defaults)]
        pairs += [
            (entry, default)
            for entry, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        ]
        for entry, default in pairs:
            names.setdefault(entry.arg, self._evaluate.value(default, scope))
        for entry in (*positional, *arguments.kwonlyargs):
            names.setdefault(entry.arg, NOTHING)

    def _run(self, body: list[ast.stmt], scope: LocalScope) -> Value | None:
        """Value returned; None where the function raises instead."""
        self._paths += 1
        if self._paths > MAX_PATHS:
            return NOTHING
        for index, statement in enumerate(body):
            rest = body[index + 1 :]
            if isinstance(statement, ast.Return):
                return Literal(None) if statement.value is None else self._evaluate.value(statement.value, scope)
            if isinstance(statement, ast.Raise):
                return None
            if isinstance(statement, ast.If):
                test = self._evaluate.truth(statement.test, scope)
                if isinstance(test, Constant):
                    return self._run([*(statement.body if test.value else statement.orelse), *rest], scope)
                then = self._run([*statement.body, *rest], scope)
                other = self._run([*statement.orelse, *rest], scope)
                return chosen(test, then, other)
            if isinstance(statement, ast.Try):
                return self._try(statement, rest, scope)
            bound = self._simple(statement, scope)
            if bound is None:
                return NOTHING
            scope = bound
        return Literal(None)

    def _simple(self, statement: ast.stmt, scope: LocalScope) -> LocalScope | None:
        """A statement without branches; None if it is none that is understood."""
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            value = self._evaluate.value(statement.value, scope)
            return scope.bound(target.id, value) if isinstance(target, ast.Name) else _unpacked(target, value, scope)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            return scope.bound(statement.target.id, self._evaluate.value(statement.value, scope))
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                scope = scope.bound(name, GuardSymbol(alias.name if alias.asname else name))
            return scope
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                scope = scope.bound(alias.asname or alias.name, GuardSymbol(f"{statement.module}.{alias.name}"))
            return scope
        return scope if isinstance(statement, ast.Expr | ast.Pass | ast.Global | ast.Assert) else None

    def _try(self, statement: ast.Try, rest: list[ast.stmt], scope: LocalScope) -> Value | None:
        """`try: import x` / `except ImportError`: the body's path where x exists."""
        body = self._run([*statement.body, *statement.orelse, *rest], scope)
        modules = imported_modules(statement.body)
        if not modules or not statement.handlers:
            return body
        other = self._run([*statement.handlers[0].body, *rest], scope)
        return chosen(all_of([ModuleExists(module) for module in modules]), body, other)


def _unpacked(target: ast.expr, value: Value, scope: LocalScope) -> LocalScope | None:
    """`is_there, version = ...`; None where that is not understood."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, Several) or len(target.elts) != len(value.values):
        return None
    for element, part in zip(target.elts, value.values, strict=True):
        if not isinstance(element, ast.Name):
            return None
        scope = scope.bound(element.id, part)
    return scope


@functools.lru_cache(maxsize=2_000)
def _is_small(function: ast.FunctionDef) -> bool:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) <= MAX_STATEMENTS


def imported_modules(body: Sequence[ast.stmt]) -> list[str]:
    """Modules that statements import."""
    modules: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            modules.extend(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            modules.append(statement.module)
    return modules


def chosen(test: Condition, then: Value | None, other: Value | None) -> Value | None:
    """`then if test else other`, where a None cannot be reached."""
    if then is None or other is None or then == other:
        return other if then is None else then
    sides = [as_condition(then), as_condition(other)]
    if sides[0] is None or sides[1] is None:
        return NOTHING
    return Truth(any_of([all_of([test, sides[0]]), all_of([negated(test), sides[1]])]))


def as_condition(value: Value) -> Condition | None:
    """A value as a condition; None where that is not known."""
    if isinstance(value, Truth):
        return value.condition
    if isinstance(value, Literal):
        return Constant(bool(value.value))
    return None
