"""What a function does with its **kwargs, as far as its own text says."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.upgrade.upstream.parsing import dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable

_READS = ("pop", "get", "setdefault")
_COPIES = ("dict", "copy.copy", "copy.deepcopy", "deepcopy", "copy")
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.BoolOp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Match,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.comprehension,
)
_HARMLESS = ("len", "bool", "str", "repr")


@dataclass
class KeywordFlow:
    """Where the keywords go."""

    reads: set[str] = field(default_factory=set)
    forwards: list[tuple[str, list[str], bool]] = field(default_factory=list)
    """Callee, its other keywords, and whether every call of the function comes there."""
    open: str = ""
    checked: bool = False
    """What is left over raises."""


def keyword_flow(node: ast.AST, name: str, source: Callable[[ast.AST], str]) -> KeywordFlow:
    """Follows the mapping called `name` through a function and the functions inside it."""
    tracer = _Tracer(name, source)
    tracer.branched = _branched(node)
    for part in ast.walk(node):
        tracer.alias(part)
    for part in ast.walk(node):
        method = getattr(tracer, f"on_{type(part).__name__.lower()}", None)
        if method is not None:
            method(part)
    tracer.finish(node)
    return tracer.flow


class _Tracer:
    def __init__(self, name: str, source: Callable[[ast.AST], str]) -> None:
        self.names = {name}
        self.source = source
        self.flow = KeywordFlow()
        self.branched: set[int] = set()
        """Calls that only some calls of the function come to."""
        self.seen: set[int] = set()
        """Mentions of the mapping that are understood."""

    def ours(self, node: ast.AST | None) -> bool:
        return isinstance(node, ast.Name) and node.id in self.names

    def understood(self, node: ast.AST) -> None:
        self.seen.add(id(node))

    def alias(self, node: ast.AST) -> None:
        """`other = kwargs`, `other = dict(kwargs)`, `other = kwargs.copy()`, `other = {**kwargs}`."""
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            return
        origin = self._copied(node.value)
        if origin is not None:
            self.understood(origin)
            self.names.add(node.targets[0].id)

    def _copied(self, value: ast.expr) -> ast.expr | None:
        if self.ours(value):
            return value
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Attribute) and value.func.attr == "copy" and self.ours(value.func.value):
                return value.func.value
            if dotted_name(value.func) in _COPIES and len(value.args) == 1 and self.ours(value.args[0]):
                return value.args[0]
        if isinstance(value, ast.Dict):
            return next(
                (item for key, item in zip(value.keys, value.values, strict=True) if not key and self.ours(item)), None
            )
        return None

    def on_call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and self.ours(node.func.value):
            self._method(node, node.func)
        for word in node.keywords:
            if word.arg is None and self._spread(word.value):
                callee = node.func
                if dotted_name(callee).rpartition(".")[2] == "partial" and node.args:
                    callee = node.args[0]
                explicit = [other.arg for other in node.keywords if other.arg]
                self.flow.forwards.append((self.source(callee), explicit, id(node) not in self.branched))
        if dotted_name(node.func) in _HARMLESS:
            for argument in node.args:
                if self.ours(argument):
                    self.understood(argument)

    def _spread(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Dict):
            value = self._copied(value) or value
        if self.ours(value):
            self.understood(value)
            return True
        return False

    def _method(self, node: ast.Call, function: ast.Attribute) -> None:
        key = node.args[0] if node.args else None
        if function.attr in _READS and isinstance(key, ast.Constant) and isinstance(key.value, str):
            self.flow.reads.add(key.value)
            self.understood(function.value)
        elif function.attr in ("update", "clear", "copy"):
            self.understood(function.value)

    def on_subscript(self, node: ast.Subscript) -> None:
        if not self.ours(node.value):
            return
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            self.understood(node.value)
            if not isinstance(node.ctx, ast.Store):
                self.flow.reads.add(node.slice.value)
        elif isinstance(node.ctx, ast.Store):
            self.understood(node.value)

    def on_compare(self, node: ast.Compare) -> None:
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.In | ast.NotIn):
            return
        if self.ours(node.comparators[0]) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            self.flow.reads.add(node.left.value)
            self.understood(node.comparators[0])

    def on_if(self, node: ast.If) -> None:
        """`if kwargs: raise TypeError(...)`."""
        mentions = [part for part in ast.walk(node.test) if self.ours(part)]
        if not mentions or any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node.test)
        ):
            return
        raises = bool(node.body) and isinstance(node.body[-1], ast.Raise)
        self.flow.checked = self.flow.checked or raises
        if raises or not any(isinstance(part, ast.Call) for part in ast.walk(node.test)):
            for part in mentions:
                self.understood(part)

    def on_raise(self, node: ast.Raise) -> None:
        for part in ast.walk(node):
            if self.ours(part):
                self.understood(part)

    def on_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.understood(target)

    def finish(self, node: ast.AST) -> None:
        """Any other mention: the mapping goes where it is not followed."""
        for part in ast.walk(node):
            if self.ours(part) and id(part) not in self.seen and isinstance(getattr(part, "ctx", None), ast.Load):
                self.flow.open = f"{self.source(part)} is used as a whole"
                return


def _branched(function: ast.AST) -> set[int]:
    """Calls under a condition, in a loop, in a handler, or in a function inside."""
    found: set[int] = set()
    stack = [(child, False) for child in ast.iter_child_nodes(function)]
    while stack:
        node, under = stack.pop()
        if under and isinstance(node, ast.Call):
            found.add(id(node))
        under = under or isinstance(node, _BRANCHES)
        stack.extend((child, under) for child in ast.iter_child_nodes(node))
    return found
