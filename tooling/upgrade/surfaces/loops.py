"""Flags that a loop makes: of a class's fields, or of a literal list."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol

from tooling.upgrade.surfaces.modules import Definition, Module, Modules, dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Made = dict[str, tuple[str, int, bool]]
"""Flag to (file, line, whether its field is a bool)."""


class FrameLike(Protocol):
    """What is needed of the function around the loop."""

    modules: Modules
    module: Module
    owner: Definition | None
    values: dict[str, ast.expr]
    loops: list[ast.For | ast.comprehension]


def looped_flags(frame: FrameLike, call: ast.Call) -> Made | None:
    """The flags of `add_argument(f"--{name}")` inside loops; None if they cannot be told."""
    spelling = next((_spelling(each) for each in call.args if _spelling(each) is not None), None)
    if spelling is None:
        return None  # `add_argument(*names, **options)`: the names come from somewhere else
    variable, write = spelling
    for loop in reversed(frame.loops):
        if variable.split(".")[0] in {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}:
            literal = _literal(frame, loop.iter)
            if literal is not None and all(write(name).startswith("-") for name in literal):
                return {write(name): (frame.module.path, loop.iter.lineno, False) for name in literal}
            classes = _classes(frame, loop.iter, 0)
            if len({id(each.node) for each in classes}) != 1:
                return None
            if not write("x").startswith("-"):
                return None
            fields = frame.modules.fields(classes[0])
            return {
                write(name): (file, line, kind in {"bool", "Optional[bool]", "bool | None"})
                for name, (file, line, kind) in fields.items()
            } or None
    return None


def _spelling(node: ast.expr) -> tuple[str, Callable[[str], str]] | None:
    """(variable, how a flag is written from its value) of f"--{name}", f"--{name.replace('_', '-')}", "--" + name, and
    of `name` itself."""
    prefix, inner = "", None
    if isinstance(node, ast.Name):
        return node.id, str
    if isinstance(node, ast.JoinedStr) and len(node.values) == 2:
        first, second = node.values
        if isinstance(first, ast.Constant) and isinstance(second, ast.FormattedValue):
            prefix, inner = str(first.value), second.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):
        prefix, inner = str(node.left.value), node.right
    if inner is None or not prefix.startswith("-"):
        return None
    dashes = False
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "replace":
        dashes = [each.value for each in inner.args if isinstance(each, ast.Constant)] == ["_", "-"]
        inner = inner.func.value
    variable = dotted_name(inner)
    if variable is None:
        return None
    return variable, lambda name: prefix + (name.replace("_", "-") if dashes else name)


def _literal(frame: FrameLike, node: ast.expr) -> Sequence[str] | None:
    if isinstance(node, ast.Name) and node.id in frame.values:
        node = frame.values[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"items", "keys"}:
        node = frame.values.get(dotted_name(node.func.value) or "", node.func.value)
    parts: Sequence[ast.expr | None] = []
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in node.elts]
    elif isinstance(node, ast.Dict):
        parts = node.keys
    names = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return names if names and len(names) == len(parts) else None


def _classes(frame: FrameLike, node: ast.expr, depth: int) -> list[Definition]:
    """Classes with fields that an expression mentions, local variables followed to what they were assigned."""
    found: list[Definition] = []
    if depth > 4:
        return found
    for each in ast.walk(node):
        if not isinstance(each, ast.Name):
            continue
        if each.id == "cls" and frame.owner is not None:
            found.append(frame.owner)
        elif each.id in frame.values and frame.values[each.id] is not node:
            found += _classes(frame, frame.values[each.id], depth + 1)
        else:
            definition = frame.modules.named(each, frame.module)
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                found.append(definition)
    return found
