"""What a class' methods say of its instances: attributes set on `self`, and whether there may be others."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.upgrade.upstream.computed_names import computed_names
from tooling.upgrade.upstream.parsing import FunctionNode, Lines, dotted_name
from tooling.upgrade.upstream.tables import ClassFacts

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_class(node: ast.ClassDef, lines: Lines, first_line: int) -> ClassFacts:
    """Facts of one class. `first_line`: what line the block that was parsed begins at, in the file."""
    attributes: dict[str, list[tuple[str, str, str, int]]] = {}
    dynamic, passed_on = "", ""
    for method in _methods(node.body):
        decorators = {dotted_name(decorator) for decorator in method.decorator_list}
        parameters = method.args.posonlyargs + method.args.args
        receiver = "" if "staticmethod" in decorators or not parameters else parameters[0].arg
        if not receiver:
            continue
        for name, source, annotation, line in _assigned(method, receiver, lines):
            attributes.setdefault(name, []).append((source, annotation, method.name, line + first_line - 1))
        computed, complete = computed_names(method, receiver)
        for name, line in computed:
            attributes.setdefault(name, []).append(("", "", method.name, line + first_line - 1))
        dynamic = dynamic or _dynamic(method, receiver, complete)
        if method.name == "__getattr__":
            passed_on = _handed_on(method, receiver)
    return ClassFacts(attributes, dynamic, passed_on)


def _methods(body: list[ast.stmt]) -> Iterator[FunctionNode]:
    for statement in body:
        if isinstance(statement, FunctionNode):
            yield statement
        elif isinstance(statement, ast.If):
            yield from _methods(statement.body)
            yield from _methods(statement.orelse)


def _assigned(method: FunctionNode, receiver: str, lines: Lines) -> Iterator[tuple[str, str, str, int]]:
    """(attribute, source of the value, annotation, line) of each `self.x = ...`."""
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _targets(target, node.value, receiver, lines)
        elif isinstance(node, ast.AnnAssign) and _of_receiver(node.target, receiver):
            source = _short(lines, node.value) if node.value else ""
            yield node.target.attr, source, lines.of(node.annotation), node.lineno  # type: ignore[union-attr]  # told above
        elif isinstance(node, ast.With | ast.AsyncWith | ast.For | ast.AsyncFor):
            for target in _loop_targets(node):
                if _of_receiver(target, receiver):
                    yield target.attr, "", "", node.lineno  # type: ignore[attr-defined]  # told by _of_receiver
        elif isinstance(node, ast.Call):
            yield from _registered(node, receiver)


def _targets(target: ast.expr, value: ast.expr, receiver: str, lines: Lines) -> Iterator[tuple[str, str, str, int]]:
    if _of_receiver(target, receiver):
        yield target.attr, _short(lines, value), "", target.lineno  # type: ignore[attr-defined]  # told by _of_receiver
    elif isinstance(target, ast.Tuple | ast.List):
        for index, part in enumerate(target.elts):
            if _of_receiver(part, receiver):
                source = f"({_short(lines, value)})[{index}]"
                yield part.attr, source, "", part.lineno  # type: ignore[attr-defined]  # told by _of_receiver


def _loop_targets(node: ast.With | ast.AsyncWith | ast.For | ast.AsyncFor) -> list[ast.expr]:
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target]
    return [item.optional_vars for item in node.items if item.optional_vars is not None]


def _registered(node: ast.Call, receiver: str) -> Iterator[tuple[str, str, str, int]]:
    """`self.register_buffer("name", ...)`, `setattr(self, "name", ...)` and the like."""
    name = dotted_name(node.func)
    first = node.args[0] if node.args else None
    if name.startswith(f"{receiver}.register_") or name == f"{receiver}.add_module":
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value, "", "", node.lineno
    elif name in ("setattr", "object.__setattr__", "super().__setattr__") and len(node.args) == 3:
        second = node.args[1]
        if dotted_name(first) == receiver and isinstance(second, ast.Constant) and isinstance(second.value, str):
            yield second.value, "", "", node.lineno


def _of_receiver(target: ast.AST, receiver: str) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == receiver


def _short(lines: Lines, node: ast.expr) -> str:
    source = lines.of(node)
    return source if len(source) < 2000 else "..."


def _dynamic(method: FunctionNode, receiver: str, complete: bool) -> str:
    """Why a method may give instances attributes that nobody could read off it."""
    if method.name in ("__setattr__", "__delattr__", "__setstate__", "__getstate__"):
        return ""
    if not complete:
        return f"{method.name}() sets attributes with computed names"
    for node in ast.walk(method):
        if not isinstance(node, ast.Call):
            continue
        if dotted_name(node.func) == f"{receiver}.__dict__.update" or _updates_vars(node, receiver):
            return f"{method.name}() writes __dict__"
    if any(dotted_name(part) == f"{receiver}.__dict__" for part in _stored(method)):
        return f"{method.name}() writes __dict__"
    return ""


def _updates_vars(node: ast.Call, receiver: str) -> bool:
    function = node.func
    if not (isinstance(function, ast.Attribute) and function.attr == "update" and isinstance(function.value, ast.Call)):
        return False
    return dotted_name(function.value.func) == "vars" and any(
        dotted_name(arg) == receiver for arg in function.value.args
    )


def _stored(method: FunctionNode) -> Iterator[ast.expr]:
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield target.value if isinstance(target, ast.Subscript) else target


def _handed_on(method: FunctionNode, receiver: str) -> str:
    """Attribute of `self` in `def __getattr__(self, name): return getattr(self.inner, name)`."""
    returned = [part.value for part in ast.walk(method) if isinstance(part, ast.Return)]
    value = returned[0] if len(returned) == 1 else None
    if isinstance(value, ast.Call) and dotted_name(value.func) == "getattr" and value.args:
        target = dotted_name(value.args[0])
        return target.removeprefix(f"{receiver}.") if target.startswith(f"{receiver}.") else ""
    return ""
