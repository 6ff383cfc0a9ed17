"""Find the attributes that methods set on `self`, also under computed names."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

from tooling.python.source import FunctionNode, Lines, dotted_name, methods_in, string_of
from tooling.python.tables import ClassTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MOST_NAMES = 64
_SOMETIMES = (
    *(ast.BoolOp, ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.FunctionDef, ast.AsyncFunctionDef),
)
"""Expressions whose parts may not be evaluated."""


def computed_names(method: FunctionNode, receiver: str) -> tuple[list[tuple[str, int]], bool]:
    """(name, line) of what is set so, and whether that is all. Names that must be there already are none of them:
    `getattr(self, name)` before it has failed for all others."""
    found: list[tuple[str, int]] = []
    complete = True
    loops = _constant_loops(method)
    for block in _blocks(method):
        for index, statement in enumerate(block):
            for call in _own_calls(statement):
                if not _sets(call, receiver):
                    continue
                names = _possible(call.args[1], loops)
                if names is not None:
                    found.extend((name, call.lineno) for name in names)
                elif not _is_there(method, call, block[:index], receiver):
                    complete = False
    return found, complete


def _sets(call: ast.Call, *receivers: str) -> bool:
    name = dotted_name(call.func)
    if name not in ("setattr", "object.__setattr__") or len(call.args) != 3:
        return False
    return ast.unparse(call.args[0]) in receivers and not isinstance(call.args[1], ast.Constant)


def _blocks(method: FunctionNode) -> Iterator[list[ast.stmt]]:
    """All lists of statements in a method."""
    for node in ast.walk(method):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _own_calls(statement: ast.stmt, *, always: bool = False) -> Iterator[ast.Call]:
    """Yield calls of a statement, without those of statements inside. always: only those that run whenever it does."""
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call):
            yield node
        if not (always and isinstance(node, _SOMETIMES)):
            stack.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def _constant_loops(method: FunctionNode) -> dict[str, list[str]]:
    """`for kind in ("a", "b")`: what a name runs through, if it is bound nowhere else."""
    found: dict[str, list[str]] = {}
    bound: list[str] = [argument.arg for argument in ast.walk(method) if isinstance(argument, ast.arg)]
    for node in ast.walk(method):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.append(node.id)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            values = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List | ast.Set) else []
            texts = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if texts and len(texts) == len(values):
                found[node.target.id] = texts
    return {name: texts for name, texts in found.items() if bound.count(name) == 1}


def _possible(name: ast.expr, loops: dict[str, list[str]]) -> list[str] | None:
    """All values of a name; None where they are not known."""
    if isinstance(name, ast.Name):
        return loops.get(name.id)
    if not isinstance(name, ast.JoinedStr):
        return None
    parts: list[Sequence[str]] = []
    for part in name.values:
        if isinstance(part, ast.Constant):
            parts.append([str(part.value)])
        elif isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and part.conversion < 0:
            parts.append(loops.get(part.value.id, []))
    if len(parts) != len(name.values) or not all(parts):
        return None
    made = ["".join(texts) for texts in itertools.islice(itertools.product(*parts), MOST_NAMES + 1)]
    return made if len(made) <= MOST_NAMES else None


def _is_there(method: FunctionNode, call: ast.Call, before: list[ast.stmt], receiver: str) -> bool:
    """Whether the name was read from `self` on the way here, or asked for: it is none that nothing else gives."""
    wanted = ast.dump(call.args[1])

    def read_in(block: list[ast.stmt]) -> bool:
        calls = (part for each in block for part in _own_calls(each, always=True))
        return any(_reads(part, "getattr", wanted, receiver) for part in calls)

    if read_in(before):
        return True
    for node in ast.walk(method):
        if isinstance(node, ast.If | ast.For) and any(_holds(each, call) for each in node.body):
            tests = (
                (
                    node.test.values
                    if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
                    else [node.test]
                )
                if isinstance(node, ast.If)
                else []
            )
            if any(isinstance(test, ast.Call) and _reads(test, "hasattr", wanted, receiver) for test in tests):
                return True
            if read_in(list(itertools.takewhile(lambda each: not _holds(each, call), node.body))):
                return True
    return False


def _holds(statement: ast.stmt, call: ast.Call) -> bool:
    return any(part is call for part in ast.walk(statement))


def _reads(call: ast.Call, function: str, wanted: str, receiver: str) -> bool:
    """`getattr(self, name)` without a default, `hasattr(self, name)`."""
    if dotted_name(call.func) != function or len(call.args) != 2 or call.keywords:
        return False
    return dotted_name(call.args[0]) == receiver and ast.dump(call.args[1]) == wanted


def read_class(node: ast.ClassDef, lines: Lines, first_line: int) -> ClassTable:
    """Facts of one class. `first_line`: what line the block that was parsed begins at, in the file."""
    attributes: dict[str, list[tuple[str, str, str, int]]] = {}
    dynamic, of_class = "", False
    for method in methods_in(node.body):
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
        kind = f"type({receiver})", f"{receiver}.__class__"
        takes_class = "classmethod" in decorators or method.name in ("__new__", "__init_subclass__")
        on_class = any(_sets(node, *kind) for node in ast.walk(method) if isinstance(node, ast.Call))
        why = _dynamic(method, receiver, complete and not on_class)
        dynamic = dynamic or why
        of_class = of_class or on_class or bool(why and takes_class)
    return ClassTable(attributes, dynamic, of_class)


def _assigned(method: FunctionNode, receiver: str, lines: Lines) -> Iterator[tuple[str, str, str, int]]:
    """(attribute, source of the value, annotation, line) of each `self.x = ...`."""
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _targets(target, node.value, receiver, lines)
        elif isinstance(node, ast.AnnAssign) and _of_receiver(node.target, receiver):
            source = lines.short(node.value)
            yield node.target.attr, source, lines.of(node.annotation), node.lineno  # type: ignore[union-attr]  # checked above
        elif isinstance(node, ast.With | ast.AsyncWith | ast.For | ast.AsyncFor):
            for target in _loop_targets(node):
                if _of_receiver(target, receiver):
                    yield target.attr, "", "", node.lineno  # type: ignore[attr-defined]  # checked by _of_receiver
        elif isinstance(node, ast.Call):
            # `self.register_buffer("name", ...)`, `setattr(self, "name", ...)` and the like
            name, first = dotted_name(node.func), node.args[0] if node.args else None
            text: str | None = None
            if name.startswith(f"{receiver}.register_") or name == f"{receiver}.add_module":
                text = string_of(first)
            elif name in ("setattr", "object.__setattr__", "super().__setattr__") and len(node.args) == 3:
                text = string_of(node.args[1]) if dotted_name(first) == receiver else None
            elif first is not None and (put := re.fullmatch(rf"{receiver}\.(\w+)\.(?:append|add)", name)):
                yield f"{put[1]}[]", lines.short(first), "", node.lineno
            if text:
                yield text, "", "", node.lineno


def _targets(target: ast.expr, value: ast.expr, receiver: str, lines: Lines) -> Iterator[tuple[str, str, str, int]]:
    if _of_receiver(target, receiver):
        yield target.attr, lines.short(value), "", target.lineno  # type: ignore[attr-defined]  # checked by _of_receiver
    elif isinstance(target, ast.Tuple | ast.List):
        for index, part in enumerate(target.elts):
            if _of_receiver(part, receiver):
                source = f"({lines.short(value)})[{index}]"
                yield part.attr, source, "", part.lineno  # type: ignore[attr-defined]  # checked by _of_receiver
    elif isinstance(target, ast.Subscript) and _of_receiver(target.value, receiver):
        yield f"{target.value.attr}[]", lines.short(value), "", target.lineno  # type: ignore[attr-defined]  # checked here


def _loop_targets(node: ast.With | ast.AsyncWith | ast.For | ast.AsyncFor) -> list[ast.expr]:
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target]
    return [item.optional_vars for item in node.items if item.optional_vars is not None]


def _of_receiver(target: ast.AST, receiver: str) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == receiver


def _dynamic(method: FunctionNode, receiver: str, complete: bool) -> str:
    """Why a method may give instances attributes that nobody could read off it."""
    if method.name in ("__setattr__", "__delattr__", "__setstate__", "__getstate__"):
        return ""
    if not complete:
        return f"{method.name}() sets attributes with computed names"
    for node in ast.walk(method):
        if not isinstance(node, ast.Call):
            continue
        if ast.unparse(node.func) in (f"{receiver}.__dict__.update", f"vars({receiver}).update"):
            return f"{method.name}() writes __dict__"
    targets = [each for node in ast.walk(method) if isinstance(node, ast.Assign) for each in node.targets]
    stored = [each.value if isinstance(each, ast.Subscript) else each for each in targets]
    return f"{method.name}() writes __dict__" if f"{receiver}.__dict__" in map(dotted_name, stored) else ""
