"""Type annotations: the uses in them, and the values that they promise."""

from __future__ import annotations

import ast
import keyword
from typing import TYPE_CHECKING

from tooling.upgrade.usage.facts import NONE, UNKNOWN

if TYPE_CHECKING:
    from tooling.upgrade.usage.scan.core import WalkState

_TRANSPARENT = frozenset({"Annotated", "ClassVar", "Final", "Required", "NotRequired", "ReadOnly", "InitVar", "Unpack"})
_TYPING = (
    "asyncio.",
    "collections.",
    "collections.abc.",
    "concurrent.futures.",
    "contextlib.",
    "contextvars.",
    "dataclasses.",
    "multiprocessing.",
    "queue.",
    "typing.",
    "typing_extensions.",
    "weakref.",
)
_FILLERS = frozenset({"", "a", "an", "the", "class", "optional", "instance", "of", "None", "or", ":obj", ":class"})
"""Words of docstrings before the name of a type."""
_BUILTIN_CONTAINERS = frozenset({"list", "dict", "tuple", "set", "frozenset", "type"})


class AnnotationWalk:
    """Reading of annotations."""

    def __init__(self, walk: WalkState) -> None:
        self.walk = walk

    def annotation(self, node: ast.expr | None, *, evaluated: bool = True) -> int:
        """Note the uses in an annotation; give the value that something annotated so has."""
        if node is None:
            return UNKNOWN
        read = self.walk.frame.reads_annotations  # whatever the file says about annotations
        with self.walk.unevaluated(not read and (self.walk.future_annotations or not evaluated)):
            return self._value(self.type_expression(node))

    def _value(self, kind: int) -> int:
        """A value of a type. `type[X]` is X itself."""
        row = self.walk.facts.nodes[kind]
        if row[0] == "either":
            return self.walk.either(self._value(member) for member in row[1])
        if row[0] == "param" and row[1] == "type":
            return int(row[2][0])
        return NONE if kind == NONE else self.walk.step("instance", kind)

    def documented(self, text: str, why: str) -> int:
        """The value of a type that a comment or docstring names; UNKNOWN if it names nothing that may be a package's.
        No use is noted: nothing there is ever run."""
        words = text.replace("`", " ").replace("~", " ").replace("[", " ").replace("]", " ")
        dotted = next((word.strip(",:;()") for word in words.split() if word.strip(",:;()") not in _FILLERS), "")
        parts = dotted.split(".")
        # A word of prose may be a keyword: `path (if given): where it lies`
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            return UNKNOWN
        node = ast.parse(dotted, mode="eval").body
        kind = self.chain(node)
        if kind == UNKNOWN and len(parts) > 1:
            kind = self.walk.node("import", dotted)
        if kind <= NONE or not self.walk.hot[kind] or self.walk.is_untyped(kind):
            return UNKNOWN
        return self.walk.step("documented", self.walk.step("instance", kind), why)

    def type_expression(self, node: ast.expr) -> int:
        """The type that an annotation names, its uses noted."""
        if isinstance(node, ast.Name | ast.Attribute):
            return self._type_name(node)
        if isinstance(node, ast.Subscript):
            return self._generic(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.walk.either([self.type_expression(node.left), self.type_expression(node.right)])
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Call):  # `size: conint(gt=0)`: what a call returns is a type
            self.walk.visit.expression(node)
        if isinstance(node, ast.List | ast.Tuple):
            for element in node.elts:
                self.type_expression(element)
        return UNKNOWN

    def _type_name(self, node: ast.Name | ast.Attribute) -> int:
        if isinstance(node, ast.Name) and node.id == "Self":
            return self._own_class()
        value = self.chain(node)
        if self.walk.dotted(value) in ("typing.Self", "typing_extensions.Self"):
            return self._own_class()
        self.walk.emit("annotation", node, value)
        return value

    def _own_class(self) -> int:
        frame = self.walk.frame
        owner = frame.owner or (frame.qualname if frame.kind == "class" else "")
        return self.walk.node("own", owner) if owner else UNKNOWN

    def chain(self, node: ast.expr) -> int:
        """Value of a dotted name, without any use noted."""
        if isinstance(node, ast.Name):
            return self.walk.lookup(node.id)
        if isinstance(node, ast.Attribute):
            return self.walk.attribute(self.chain(node.value), node.attr)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> int:
        if node.value is None:
            return NONE
        if not isinstance(node.value, str):
            return UNKNOWN
        try:
            parsed = ast.parse(node.value.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            return UNKNOWN
        for inner in ast.walk(parsed):  # positions inside the string are those of the string
            if isinstance(inner, ast.expr):
                inner.lineno, inner.col_offset = node.lineno, node.col_offset
                inner.end_lineno, inner.end_col_offset = node.end_lineno, node.end_col_offset
        with self.walk.unevaluated(not self.walk.frame.reads_annotations):
            return self.type_expression(parsed)

    def _generic(self, node: ast.Subscript) -> int:
        name = self._origin(node.value)
        if name == "Literal":
            return UNKNOWN
        inner = node.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if name in _TRANSPARENT:
            for rest in parts[1:]:
                self.walk.visit.expression(rest)
            return self.type_expression(parts[0])
        arguments = [self.type_expression(part) for part in parts if not _is_ellipsis(part)]
        if name in ("Optional", "Union"):
            return self.walk.either(arguments)
        if not name:
            value = self.chain(node.value)
            self.walk.emit("annotation", node.value, value)
            self.walk.emit("subscript", node, value)
            return value
        return self._container(name, parts, arguments)

    def _container(self, name: str, parts: list[ast.expr], arguments: list[int]) -> int:
        if name in ("tuple", "Tuple") and len(parts) == 2 and _is_ellipsis(parts[1]):
            name = "list"
        name = "type" if name == "Type" else name
        return (
            self.walk.node("param", name, tuple(arguments)) if any(self.walk.hot[one] for one in arguments) else UNKNOWN
        )

    def _origin(self, node: ast.expr) -> str:
        """Last part of a generic of the standard library; "" for others."""
        if isinstance(node, ast.Name) and node.id in _BUILTIN_CONTAINERS and self.walk.is_builtin(node.id):
            return node.id
        dotted = self.walk.dotted(self.chain(node))
        return dotted.rpartition(".")[2] if dotted.startswith(_TYPING) else ""


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
