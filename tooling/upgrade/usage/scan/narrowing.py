"""What a condition tells about the type of a name: `isinstance(x, C)` and its relatives."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def narrowed(test: ast.expr, holds: bool) -> Iterator[tuple[str, list[ast.expr]]]:
    """(name or "self.x", the classes it is an instance of one of) where `test` has the given outcome."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from narrowed(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is holds:
            for value in test.values:
                yield from narrowed(value, holds)
    elif isinstance(test, ast.Compare):
        yield from _type_compare(test, holds)
    elif holds and _is_isinstance(test):
        assert isinstance(test, ast.Call)
        key = _key(test.args[0])
        if key:
            yield key, _classes(test.args[1])


def _is_isinstance(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Name)
        and test.func.id == "isinstance"
        and len(test.args) == 2
    )


def _type_compare(test: ast.Compare, holds: bool) -> Iterator[tuple[str, list[ast.expr]]]:
    """`type(x) is C`."""
    if len(test.ops) != 1 or not isinstance(test.left, ast.Call) or len(test.left.args) != 1:
        return
    if not (isinstance(test.left.func, ast.Name) and test.left.func.id == "type"):
        return
    positive = isinstance(test.ops[0], ast.Is | ast.Eq)
    negative = isinstance(test.ops[0], ast.IsNot | ast.NotEq)
    key = _key(test.left.args[0])
    if key and (positive if holds else negative):
        yield key, [test.comparators[0]]


def _key(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.target.id if isinstance(node, ast.NamedExpr) else ""


def _classes(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Tuple):
        return [entry for element in node.elts for entry in _classes(element)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_classes(node.left), *_classes(node.right)]
    return [node]
