"""Calls: what is called, with which arguments, and what comes of it. Special ones: `builtin_calls`, `wrappers`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, ClassVar

from tooling.upgrade.usage.facts import UNKNOWN
from tooling.upgrade.usage.scan.arguments import Arguments, CallArguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Calls(Arguments):
    """Values of calls. The tables of special ones are filled by `SpecialCalls`."""

    builtin_calls: ClassVar[Mapping[str, Callable[[Any, ast.Call], int]]] = {}
    """By name of the builtin."""
    wrapping_calls: ClassVar[Mapping[str, Callable[[Any, ast.Call, int], int | None]]] = {}
    """By dotted path; None means that it is a call like others."""
    method_calls: ClassVar[Mapping[str, Callable[[Any, ast.Call, int], int | None]]] = {}
    """By the method's name alone."""

    def call(self, node: ast.Call, read: bool) -> int:
        """A call whose value is passed on, or used (`read` false and the caller says)."""
        return self._call(node, None)

    def used_call(self, node: ast.Call) -> int:
        """A call whose value is used at once, or thrown away."""
        return self._call(node, False)

    def awaited_call(self, node: ast.Call) -> int:
        """`await f()`."""
        value = self._call(node, True)
        if self.facts.nodes[value][0] == "remote":
            return UNKNOWN
        return self.step("await", value)

    def _call(self, node: ast.Call, awaited: bool | None) -> int:
        function = node.func
        if isinstance(function, ast.Name):
            builtin = self.builtin_calls.get(function.id)
            if builtin is not None and self.is_builtin(function.id):
                return builtin(self, node)
        target = self.expression(function, read=False)
        wrapper = self.wrapping_calls.get(self.dotted(target)) if target else None
        if wrapper is None and isinstance(function, ast.Attribute):
            wrapper = self.method_calls.get(function.attr)
        if wrapper is not None:
            value = wrapper(self, node, target)
            if value is not None:
                return value
        return self.plain_call(node, target, awaited)

    def plain_call(self, node: ast.Call, target: int, awaited: bool | None) -> int:
        """Nothing special: the target called."""
        found = self.arguments(node.args, node.keywords)
        self._dict_method(node)
        for argument in (*node.args, *(one.value for one in node.keywords if one.arg is not None)):
            if isinstance(argument, ast.Name):
                self.dict_lost(argument.id)
        if self.facts.nodes[target][0] == "partial":  # other arguments were given before: positions are not known
            target = int(self.facts.nodes[target][1])
            found.given = [row for row in found.given if row[1] is not None]
            found.has_star = found.has_double_star = found.partial = True
        self.emit_call(node, target, found, awaited)
        return self.step("call", target)

    def emit_call(self, node: Any, target: int, found: CallArguments, awaited: bool | None = None) -> None:
        """Note a call; keywords that are passed only under further conditions are calls of their own."""
        self.emit("call", node, target, arguments=found.row(), awaited=awaited)
        for conditions, row in found.conditional:
            with self.under(*conditions):
                self.emit("call", node, target, arguments=((row,), True, True, True), awaited=awaited)

    def _dict_method(self, node: ast.Call) -> None:
        """`kwargs.update(a=1)` and relatives on a known dict."""
        function = node.func
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
            return
        known = self.frame.dicts.get(function.value.id)
        if known is None:
            return
        if function.attr == "update":
            name = function.value.id
            self.dict_changed(name, [(one, one.arg, one.value) for one in node.keywords if one.arg is not None])
            for argument in (*node.args, *(one.value for one in node.keywords if one.arg is None)):
                self._dict_updated(name, self.known_dict(argument))
        elif function.attr == "setdefault" and len(node.args) == 2 and constant_name(node.args[0]):
            self.dict_changed(function.value.id, [(node.args[0], constant_name(node.args[0]), node.args[1])])
        elif function.attr in ("pop", "clear", "popitem"):
            if function.attr == "pop" and node.args and constant_name(node.args[0]):
                known.entries.pop(constant_name(node.args[0]), None)
            else:
                known.entries.clear()
                known.more = True

    def _dict_updated(self, name: str, other: Any) -> None:
        known = self.frame.dicts[name]
        if other is None:
            known.more = True
            return
        known.more |= other.more
        for key, entries in other.entries.items():
            known.entries[key] = [*known.entries.get(key, []), *entries] if self.conditions else entries

    def bound_call(
        self, node: Any, function: ast.expr, positional: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> int:
        """Arguments given to a function that something else calls, perhaps with more of them."""
        target = self.expression(function, read=False)
        found = self.arguments(positional, keywords)
        found.partial = True
        self.emit_call(node, target, found)
        return target


def constant_name(node: ast.expr) -> str:
    """Text of a constant string; "" for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
