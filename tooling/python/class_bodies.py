"""Look into the body of a class that is at hand as a tree: its functions, and what its attributes are assigned."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from tooling.python.source import dotted_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_MADE = ("field", "Field", "attrib", "ib")
"""What says the default of a field by its keywords."""
MAX_STATEMENTS = 30


def function_in(body: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """Return the last function of this name."""
    found = [each for each in body.body if isinstance(each, ast.FunctionDef) and each.name == name]
    return found[-1] if found else None


def is_decorated(function: ast.FunctionDef, *names: str) -> bool:
    """Whether a decorator has one of these names."""
    return any(dotted_name(each).rpartition(".")[2] in names for each in function.decorator_list)


def assigned_in(body: ast.ClassDef, name: str) -> list[tuple[ast.expr, ast.FunctionDef | None]]:
    """Return what an attribute is assigned, and the method that does it: in methods, else in the body itself."""
    return _assigned(body).get(name, [])


@functools.lru_cache(maxsize=2_000)
def _assigned(body: ast.ClassDef) -> dict[str, list[tuple[ast.expr, ast.FunctionDef | None]]]:
    outside: dict[str, list[tuple[ast.expr, ast.FunctionDef | None]]] = {}
    inside: dict[str, list[tuple[ast.expr, ast.FunctionDef | None]]] = {}
    for each in body.body:
        if isinstance(each, ast.FunctionDef):
            receiver = each.args.args[0].arg if each.args.args else ""
            for target, value in _stores(each):
                if receiver and isinstance(target, ast.Attribute) and dotted_name(target.value) == receiver:
                    inside.setdefault(target.attr, []).append((value, each))
        else:
            for target, value in _stores(each):
                if isinstance(target, ast.Name):
                    outside.setdefault(target.id, []).append((value, None))
    return {**outside, **inside}


def _stores(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for each in ast.walk(node):
        if isinstance(each, ast.Assign):
            yield from ((target, _default(each.value)) for target in each.targets)
        elif isinstance(each, ast.AnnAssign | ast.AugAssign) and each.value is not None:
            yield each.target, _default(each.value)


def _default(value: ast.expr) -> ast.expr:
    """Return the default in `field(default_factory=...)`."""
    if isinstance(value, ast.Call) and dotted_name(value.func).rpartition(".")[2] in _MADE:
        for word in value.keywords:
            if word.arg == "default":
                return word.value
            if word.arg in ("default_factory", "factory"):
                return ast.Call(word.value, [], [])
    return value


def fields_of(body: ast.ClassDef) -> list[str]:
    """Return the names that a constructor made of fields takes, in order; [] if the class has a constructor."""
    if function_in(body, "__init__") is not None:
        return []
    return [
        each.target.id for each in body.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


@functools.lru_cache(maxsize=2_000)
def is_small(function: ast.FunctionDef) -> bool:
    """Whether a function is short enough to be followed."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) <= MAX_STATEMENTS
