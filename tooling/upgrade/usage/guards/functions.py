"""Small pure functions in conditions, evaluated by substitution: `is_version_greater_than("4.49.0")`."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Protocol

from tooling.upgrade.usage.guards.values import (
    NOTHING,
    Definition,
    Literal,
    Scope,
    Several,
    Symbol,
    Truth,
    Value,
    all_of,
    any_of,
    negated,
)
from tooling.upgrade.uses import Condition, Constant, ModuleExists

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_STATEMENTS = 30
MAX_PATHS = 16
"""Branches times statements that are followed; more is no small function."""


class Evaluate(Protocol):
    """Evaluation of expressions, as functions need it."""

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """What an expression is worth."""
        ...

    def truth(self, node: ast.expr, scope: Scope) -> Condition:
        """What it says as a condition."""
        ...


class LocalScope:
    """Names inside a call of a function."""

    def __init__(self, names: dict[str, Value], outer: Scope) -> None:
        self._names = names
        self._outer = outer

    def find(self, name: str) -> Value | Definition | None:
        """What a name stands for."""
        return self._names[name] if name in self._names else self._outer.find(name)

    def symbol(self, dotted: str) -> Value | Definition | None:
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
        self, function: ast.FunctionDef, scope: Scope, positional: Sequence[Value], named: dict[str, Value]
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

    def _defaults(self, arguments: ast.arguments, scope: Scope, names: dict[str, Value]) -> None:
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
                scope = scope.bound(name, Symbol(alias.name if alias.asname else name))
            return scope
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                scope = scope.bound(alias.asname or alias.name, Symbol(f"{statement.module}.{alias.name}"))
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
