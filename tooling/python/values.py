"""Evaluate expressions without running anything: constants, containers of them, plain names.

What is not understood is UNKNOWN, never a guess. Work is bounded by `Fuel`; only methods and functions in the tables
of `operations` are called, and only on values made here.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tooling.python.operations import (
    BINARY,
    BUILTINS,
    FAILURES,
    MAX_ITEMS,
    METHODS,
    UNKNOWN,
    Applied,
    Closure,
    Fuel,
    Globals,
    Ref,
    compare,
    concrete,
    fits,
    regular,
    small,
)
from tooling.python.source import dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOPED: tuple[type[Any], ...] = (dict, list, tuple, set, frozenset, *map(type, ({}.items(), {}.keys(), {}.values())))


@dataclass
class ValueEvaluator:
    """Evaluates expressions. Unknown names are asked for through `lookup`; refs are read through `read`."""

    lookup: Callable[[str], object] = lambda name: UNKNOWN
    read: Callable[[str], object] = lambda dotted: UNKNOWN
    env: dict[str, object] = field(default_factory=dict)
    fuel: Fuel = field(default_factory=Fuel)

    def evaluate(self, node: ast.expr | None) -> Any:
        """Return the value, UNKNOWN where it is not known. Raises OutOfFuel."""
        self.fuel.burn()
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if method is None:
            return UNKNOWN
        try:
            return method(node)
        except FAILURES:
            return UNKNOWN

    def value(self, node: ast.expr | None) -> Any:
        """Like `evaluate`, with names read where they stand for constants."""
        found = self.evaluate(node)
        return self.read(found.dotted) if isinstance(found, Ref) else found

    def truth(self, node: ast.expr) -> bool | None:
        """Whether a condition holds; None if that is not known."""
        return _truth(self.evaluate(node))

    def perhaps(self, node: ast.expr) -> Any:
        """Evaluate what may not be reached."""
        return self.evaluate(node)

    # Each method is for the node of its name.

    def _on_constant(self, node: ast.Constant) -> object:
        return node.value

    def _on_name(self, node: ast.Name) -> object:
        return self.env[node.id] if node.id in self.env else self.lookup(node.id)

    def _on_namedexpr(self, node: ast.NamedExpr) -> object:
        found = self.evaluate(node.value)
        self.env[node.target.id] = found
        return found

    def _on_attribute(self, node: ast.Attribute) -> object:
        base = self.evaluate(node.value)
        return Ref(f"{base.dotted}.{node.attr}") if isinstance(base, Ref) else UNKNOWN

    def _on_tuple(self, node: ast.Tuple) -> object:
        return tuple(self._elements(node.elts))

    def _on_list(self, node: ast.List) -> object:
        return self._elements(node.elts)

    def _on_set(self, node: ast.Set) -> object:
        return set(self._elements(node.elts))

    def _elements(self, nodes: list[ast.expr]) -> list[object]:
        found: list[object] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                inner = self.value(node.value)
                found.extend(inner if isinstance(inner, list | tuple | set | dict | frozenset) else [UNKNOWN])
            else:
                found.append(self.evaluate(node))
        return found

    def _on_dict(self, node: ast.Dict) -> object:
        found: dict[object, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self.value(value)
                found.update(inner if isinstance(inner, dict) else {UNKNOWN: UNKNOWN})
            else:
                found[self.evaluate(key)] = self.evaluate(value)
        return found

    def _on_joinedstr(self, node: ast.JoinedStr) -> object:
        parts = [self.evaluate(value) for value in node.values]
        return "".join(map(str, parts)) if all(map(concrete, parts)) else UNKNOWN

    def _on_formattedvalue(self, node: ast.FormattedValue) -> object:
        if node.format_spec is not None:
            return UNKNOWN
        found = self.value(node.value)
        return repr(found) if node.conversion == ord("r") and concrete(found) else found

    def _on_unaryop(self, node: ast.UnaryOp) -> object:
        if isinstance(node.op, ast.Not):
            truth = self.truth(node.operand)
            return UNKNOWN if truth is None else not truth
        found = self.value(node.operand)
        if isinstance(found, int | float):
            return -found if isinstance(node.op, ast.USub) else +found
        return UNKNOWN

    def _on_binop(self, node: ast.BinOp) -> object:
        left, right = self.value(node.left), self.value(node.right)
        action = BINARY.get(type(node.op))
        if action is None or left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        growing = isinstance(node.op, ast.Pow | ast.LShift)
        if (growing or isinstance(node.op, ast.Mult)) and not small(left, right, growing=growing):
            return UNKNOWN
        return action(left, right) if fits(left, right, product=isinstance(left, str) and "%" in left) else UNKNOWN

    def _on_boolop(self, node: ast.BoolOp) -> object:
        stops = isinstance(node.op, ast.Or)
        known = True
        found: object = not stops
        for value in node.values:
            found = self.evaluate(value) if known else self.perhaps(value)
            truth = _truth(found)
            if truth is stops:
                return found
            known = known and truth is not None
        return found if known else UNKNOWN

    def _on_compare(self, node: ast.Compare) -> object:
        left = self.value(node.left)
        for action, operand in zip(node.ops, node.comparators, strict=True):
            right = self.value(operand)
            held = compare(action, left, right)
            if held is not True:
                return held
            left = right
        return True

    def _on_ifexp(self, node: ast.IfExp) -> object:
        truth = self.truth(node.test)
        if truth is None:
            return UNKNOWN
        return self.evaluate(node.body if truth else node.orelse)

    def _on_subscript(self, node: ast.Subscript) -> object:
        base, key = self.value(node.value), self.index(node.slice)
        if isinstance(base, Globals):
            return base.names.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN
        if isinstance(base, dict | list | tuple | str | re.Match):
            return base[key]
        return UNKNOWN

    def index(self, node: ast.expr) -> Any:
        """Evaluate the key of a subscript."""
        if not isinstance(node, ast.Slice):
            return self.value(node)
        return slice(*[None if part is None else self.value(part) for part in (node.lower, node.upper, node.step)])

    def _on_lambda(self, node: ast.Lambda) -> object:
        return Closure(node)

    def _on_listcomp(self, node: ast.ListComp) -> object:
        return self._comprehended(node.generators, lambda: self.evaluate(node.elt))

    _on_generatorexp = _on_listcomp

    def _on_setcomp(self, node: ast.SetComp) -> object:
        found = self._comprehended(node.generators, lambda: self.evaluate(node.elt))
        return set(found) if isinstance(found, list) else found

    def _on_dictcomp(self, node: ast.DictComp) -> object:
        found = self._comprehended(node.generators, lambda: (self.evaluate(node.key), self.evaluate(node.value)))
        return dict(found) if isinstance(found, list) else UNKNOWN

    def _comprehended(self, generators: list[ast.comprehension], element: Callable[[], Any]) -> Any:
        if not generators:
            return [element()]
        first, *rest = generators
        items = self.items(first.iter)
        if items is None:
            return UNKNOWN
        found: list[object] = []
        outer = dict(self.env)
        for item in items:
            self.fuel.burn()
            self.bind(first.target, item)
            truths = [self.truth(test) for test in first.ifs]
            if None in truths:
                return UNKNOWN
            inner = self._comprehended(rest, element) if all(truths) else []
            if inner is UNKNOWN:
                return UNKNOWN
            found.extend(inner)
        self.env = outer
        return found

    def items(self, node: ast.expr) -> list[object] | None:
        """List what a loop over an expression goes through; None if that is not known."""
        found = self.value(node)
        return list(found)[:MAX_ITEMS] if isinstance(found, _LOOPED) else None

    def bind(self, target: ast.expr, value: object) -> None:
        """Assign to names; anything else is for those who know more."""
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, list | tuple) and len(value) == len(target.elts) else None
            for index, part in enumerate(target.elts):
                self.bind(part, UNKNOWN if parts is None else parts[index])

    def _on_call(self, node: ast.Call) -> object:
        if isinstance(node.func, ast.Attribute):
            receiver = self.value(node.func.value)
            for kind, allowed in METHODS.items():
                if isinstance(receiver, kind) and node.func.attr in allowed:
                    args, keywords = self.arguments(node)
                    if not fits(receiver, *args, product=node.func.attr in ("replace", "join")):
                        return UNKNOWN
                    return getattr(receiver, node.func.attr)(*args, **keywords)
        name = dotted_name(node.func)
        if name in BUILTINS and name not in self.env:
            args, keywords = self.arguments(node)
            return BUILTINS[name](*args, **keywords) if UNKNOWN not in args else UNKNOWN
        if name in ("globals", "locals"):  # at the top of a module they are one
            return Globals(self.env)
        if name == "dir" and len(node.args) == 1:
            module = self.evaluate(node.args[0])
            return self.read(f"{module.dotted}.__dir__") if isinstance(module, Ref) else UNKNOWN
        return self.call(node, name)

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """Values of the arguments of a call, names read where they stand for constants."""
        args = [self.read(item.dotted) if isinstance(item, Ref) else item for item in self._elements(node.args)]
        return args, {word.arg: self.evaluate(word.value) for word in node.keywords if word.arg}

    def call(self, node: ast.Call, name: str) -> object:
        """Evaluate calls of functions that are in no table."""
        callee = self.evaluate(node.func)
        dotted = callee.dotted if isinstance(callee, Ref) else name
        if dotted.startswith("re.") and dotted[3:] in ("compile", "escape"):
            return regular(dotted[3:], self.arguments(node)[0])
        keywords = {word.arg: self.evaluate(word.value) for word in node.keywords if word.arg}
        return Applied(dotted, tuple(self._elements(node.args)), keywords) if dotted else UNKNOWN


def _truth(found: object) -> bool | None:
    if isinstance(found, re.Match | re.Pattern):
        return True
    return bool(found) if concrete(found) or isinstance(found, list | dict | tuple | set) else None
