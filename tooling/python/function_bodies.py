"""Statements as a condition follows them through a small function: where they lead, and what stands for them."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, TypeGuard

from tooling.python.module import last_name
from tooling.python.operations import UNKNOWN
from tooling.python.source import POSITIONAL, dotted_name, each_parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def exceptions(node: ast.expr | None) -> list[str]:
    """Last names of what is raised, or caught; "*" for everything."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return [last_name(getattr(each, "func", each)) if each is not None else "*" for each in parts]


def catches(caught: Iterable[str], raised: str) -> bool:
    """Whether handlers of these exceptions catch one of that name."""
    names = set(caught)
    if "*" in names:
        return True
    kind = getattr(builtins, raised, None)
    if not isinstance(kind, type):
        return raised in names
    return any(base.__name__ in names for base in kind.__mro__)


def bound_arguments(
    function: ast.FunctionDef, given: Sequence[object], named: dict[str, object], evaluate: Callable[[ast.expr], object]
) -> dict[str, object]:
    """Return what the parameters of a function hold."""
    bound = dict(named)
    for index, (entry, kind, default) in enumerate(each_parameter(function.args)):
        if kind in POSITIONAL and index < len(given):
            bound[entry.arg] = given[index]
        elif kind == "star":
            bound[entry.arg] = tuple(given[index:])
        elif entry.arg not in bound:
            bound[entry.arg] = UNKNOWN if default is None else evaluate(default)
    return bound


def record(names: str | list[str]) -> ast.ClassDef:
    """Make a class that has these fields."""
    names = names.replace(",", " ").split() if isinstance(names, str) else names
    fields: list[ast.stmt] = [ast.AnnAssign(ast.Name(each), ast.Name("object"), None, 1) for each in names]
    return ast.ClassDef("record", [], [], fields, [])


def exits(statement: ast.stmt) -> bool:
    """Whether a statement ends the program."""
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Call) and dotted_name(value.func) in ("sys.exit", "exit", "os._exit")


def binding(target: ast.expr, value: object) -> ast.stmt:
    """Make an assignment of a value that is known."""
    return ast.Assign([target], ast.Constant(value))  # type: ignore[arg-type]  # the evaluator takes any value


def is_lookup(node: ast.expr) -> TypeGuard[ast.Call]:
    """Whether it is `getattr(x, "name")`."""
    return isinstance(node, ast.Call) and dotted_name(node.func) == "getattr" and len(node.args) == 2


def until_named(body: Sequence[ast.stmt], name: str) -> list[ast.stmt]:
    """Make statements that return True where a name is used, and False where they end before that."""
    kept: list[ast.stmt] = []
    for statement in body:
        asked = statement.test if isinstance(statement, ast.If) else statement
        if any(getattr(each, "id", "") == name for each in ast.walk(asked)):
            return [*kept, ast.Return(ast.Constant(True))]
        if isinstance(statement, ast.If):
            ways = [until_named(way, name) for way in (statement.body, statement.orelse)]
            kept.append(ast.If(statement.test, *ways))
            continue
        ends = isinstance(statement, ast.Return) or (isinstance(statement, ast.Raise) and not skips(statement))
        kept.append(ast.Return(ast.Constant(False)) if ends else statement)
    return kept


def skips(node: ast.stmt) -> bool:
    """`raise unittest.SkipTest("...")`, `self.skipTest("...")`, `pytest.skip("...")`."""
    value = node.exc if isinstance(node, ast.Raise) else getattr(node, "value", None)
    function = value.func if isinstance(value, ast.Call) else value
    name = dotted_name(function) if isinstance(function, ast.Name | ast.Attribute) else ""
    return name.rpartition(".")[2] in ("SkipTest", "skipTest") or name == "pytest.skip"
