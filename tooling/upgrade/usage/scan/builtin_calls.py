"""Calls of builtins that look into what they are given: `getattr`, `isinstance`, `super`, `zip`, ..."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.upgrade.usage.facts import UNKNOWN
from tooling.upgrade.usage.scan.calls import Calls, constant_name

if TYPE_CHECKING:
    from collections.abc import Callable

_COPIES = frozenset({"list", "tuple", "set", "sorted", "reversed", "iter"})


def _getattr(walk: Calls, node: ast.Call) -> int:
    name = constant_name(node.args[1]) if len(node.args) > 1 else ""
    if not name.isidentifier():
        walk.children(node, True)
        return UNKNOWN
    value = walk.attribute(walk.base(node.args[0]), name)
    walk.emit("read" if len(node.args) == 2 else "probe", node, value)
    if len(node.args) == 2:
        return value
    default = walk.expression(node.args[2])
    return walk.either([value, default])


def _hasattr(walk: Calls, node: ast.Call) -> int:
    if len(node.args) == 2 and constant_name(node.args[1]).isidentifier():
        walk.emit("probe", node, walk.attribute(walk.base(node.args[0]), constant_name(node.args[1])))
    else:
        walk.children(node, True)
    return UNKNOWN


def _setattr(walk: Calls, node: ast.Call) -> int:
    name = constant_name(node.args[1]) if len(node.args) == 3 else ""
    if not name.isidentifier():
        walk.children(node, True)
        return UNKNOWN
    value = walk.expression(node.args[2])
    walk.emit("assign", node, walk.attribute(walk.base(node.args[0]), name), value=value)
    return UNKNOWN


def _delattr(walk: Calls, node: ast.Call) -> int:
    if len(node.args) == 2 and constant_name(node.args[1]).isidentifier():
        walk.emit("delete", node, walk.attribute(walk.base(node.args[0]), constant_name(node.args[1])))
    return UNKNOWN


def _isinstance(walk: Calls, node: ast.Call) -> int:
    if len(node.args) == 2:
        walk.expression(node.args[0])
        instance_classes(walk, node.args[1])
    return UNKNOWN


def instance_classes(walk: Calls, node: ast.expr, action: str = "isinstance") -> None:
    """Classes that something is checked against."""
    if isinstance(node, ast.Tuple):
        for element in node.elts:
            instance_classes(walk, element, action)
    elif isinstance(node, ast.BinOp):
        instance_classes(walk, node.left, action)
        instance_classes(walk, node.right, action)
    elif isinstance(node, ast.Name | ast.Attribute):
        walk.emit(action, node, walk.expression(node, read=False))
    else:
        walk.expression(node)


def _super(walk: Calls, node: ast.Call) -> int:
    frame = walk.frame
    frame.calls_super = True
    while frame is not None and not frame.owner and frame.parent is not None:
        frame = frame.parent
    return walk.node("super", frame.owner) if frame.owner else UNKNOWN


def _type(walk: Calls, node: ast.Call) -> int:
    """`type(x)` is x's class: calling or reading it goes on from there."""
    if len(node.args) != 1:
        walk.children(node, True)
        return UNKNOWN
    value = walk.value_used(node.args[0])
    row = walk.facts.nodes[value]
    return int(row[1]) if row[0] in ("instance", "call") else UNKNOWN


def _copy(walk: Calls, node: ast.Call) -> int:
    values = [walk.expression(argument) for argument in node.args]
    for keyword in node.keywords:
        walk.expression(keyword.value)
    return walk.step("list", walk.iterated(values[0])) if len(values) == 1 else UNKNOWN


def _next(walk: Calls, node: ast.Call) -> int:
    values = [walk.expression(argument) for argument in node.args]
    return walk.iterated(values[0]) if values else UNKNOWN


def _enumerate(walk: Calls, node: ast.Call) -> int:
    values = [walk.expression(argument) for argument in node.args]
    element = walk.iterated(values[0]) if values else UNKNOWN
    return walk.step("list", walk.node("tuple", (UNKNOWN, element)))


def _zip(walk: Calls, node: ast.Call) -> int:
    elements = tuple(walk.iterated(walk.expression(argument)) for argument in node.args)
    for keyword in node.keywords:
        walk.expression(keyword.value)
    return walk.step("list", walk.node("tuple", elements)) if elements else UNKNOWN


def _import(walk: Calls, node: ast.Call) -> int:
    name = constant_name(node.args[0]) if node.args else ""
    if not name:
        walk.children(node, True)
        return UNKNOWN
    walk.emit("string", node.args[0], walk.node("import", name))
    return walk.node("import", name if len(node.args) > 3 else name.partition(".")[0])


BUILTIN_CALLS: dict[str, Callable[[Calls, ast.Call], int]] = {
    "getattr": _getattr,
    "hasattr": _hasattr,
    "setattr": _setattr,
    "delattr": _delattr,
    "isinstance": _isinstance,
    "issubclass": _isinstance,
    "super": _super,
    "type": _type,
    "next": _next,
    "enumerate": _enumerate,
    "zip": _zip,
    "__import__": _import,
    **dict.fromkeys(_COPIES, _copy),
}
"""By name."""
