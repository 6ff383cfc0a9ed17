"""Read flags that a release's parser makes in loops: over names, over fields of a class, over annotated fields."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol

from tooling.python.source import dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.upgrade.interfaces.modules import ModuleDefinition, ReleaseModule, ReleaseModules


Made = dict[str, tuple[str, int, bool]]
"""Flag to (file, line, whether its field is a bool)."""


class FrameLike(Protocol):
    """What is needed of the function around the loop."""

    modules: ReleaseModules
    module: ReleaseModule
    owner: ModuleDefinition | None
    values: dict[str, ast.expr]
    loops: list[ast.For | ast.comprehension]
    classes: dict[str, ModuleDefinition]


def looped_flags(frame: FrameLike, call: ast.Call) -> Made | None:
    """The flags of `add_argument(f"--{name}")` inside loops; None if they cannot be read off."""
    annotated = _annotated_flags(frame, call)
    if annotated is not None:
        return annotated
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
    if not variable:
        return None
    return variable, lambda name: prefix + (name.replace("_", "-") if dashes else name)


def _literal(frame: FrameLike, node: ast.expr) -> Sequence[str] | None:
    if isinstance(node, ast.Name) and node.id in frame.values:
        node = frame.values[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"items", "keys"}:
        node = frame.values.get(dotted_name(node.func.value), node.func.value)
    parts: Sequence[ast.expr | None] = []
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in node.elts]
    elif isinstance(node, ast.Dict):
        parts = node.keys
    names = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return names if names and len(names) == len(parts) else None


def _classes(frame: FrameLike, node: ast.expr, depth: int) -> list[ModuleDefinition]:
    """Classes with fields that an expression mentions, local variables followed to what they were assigned."""
    found: list[ModuleDefinition] = []
    if depth > 4:
        return found
    for each in ast.walk(node):
        if not isinstance(each, ast.Name):
            continue
        if each.id == "cls" and frame.owner is not None:
            found.append(frame.owner)
        elif each.id in frame.classes:
            found.append(frame.classes[each.id])
        elif each.id in frame.values and frame.values[each.id] is not node:
            found += _classes(frame, frame.values[each.id], depth + 1)
        else:
            definition = frame.modules.named(each, frame.module)
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                found.append(definition)
    return found


def _annotated_flags(frame: FrameLike, call: ast.Call) -> Made | None:
    """The flags of `add_argument(*names)` in a loop over the fields of a class whose annotations describe them.

    `tp_size: Annotated[int, Arg(aliases=["--tensor-parallel-size"])]`: strings in the description that are flags are
    names of this one; without one that stands alone, the field's own name is its first. None where the loop is
    another one.
    """
    if not frame.loops or not any(isinstance(each, ast.Starred) for each in call.args):
        return None
    loop = frame.loops[-1]
    classes = _classes(frame, loop.iter, 0)
    if len({id(each.node) for each in classes}) != 1 or not isinstance(loop, ast.For):
        return None
    # `if described.no_cli: continue`: attributes that keep a field from being a flag
    tests = [node.test for node in loop.body if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue)]
    skipping = {test.attr for test in tests if isinstance(test, ast.Attribute)}
    found: Made = {}
    # A boolean is `store_true` there: such a loop makes no negations.
    for name, (module, node) in frame.modules.annotations(classes[0]).items():
        described = _description(node.annotation, frame.modules, module)
        if not described or any(_is_skipped(each, skipping) for each in described):
            continue
        own, others = _written_names(described)
        for flag in (own or f"--{name.replace('_', '-')}", *others):
            found[flag] = (module.path, node.lineno, False)
    return found or None


def _description(annotation: ast.expr, modules: ReleaseModules, module: ReleaseModule) -> list[ast.expr]:
    """What follows the type in `Annotated[T, ...]`, under whatever name Annotated was imported; [] without it."""
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return []
    name = dotted_name(annotation.value)
    source = module.imports.get(name, name)
    home = modules.module(source.rpartition(".")[0])
    alias = home.values.get(source.rpartition(".")[2]) if home is not None else module.values.get(name)
    known = dotted_name(alias) if alias is not None else source
    return annotation.slice.elts[1:] if known.rpartition(".")[2] == "Annotated" else []


def _is_skipped(described: ast.expr, skipping: set[str]) -> bool:
    return isinstance(described, ast.Call) and any(
        each.arg in skipping and isinstance(each.value, ast.Constant) and bool(each.value.value)
        for each in described.keywords
    )


def _written_names(described: list[ast.expr]) -> tuple[str, list[str]]:
    """(the name that stands alone, those in lists)."""
    own = ""
    others: list[str] = []
    for value in (each.value for call in described if isinstance(call, ast.Call) for each in call.keywords):
        if isinstance(value, ast.Constant) and str(value.value).startswith("-") and " " not in str(value.value):
            own = str(value.value)
        elif isinstance(value, ast.List | ast.Tuple):
            texts = [part.value for part in value.elts if isinstance(part, ast.Constant)]
            others += [text for text in texts if isinstance(text, str) and text.startswith("-") and " " not in text]
    return own, others
