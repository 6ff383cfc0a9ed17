"""Follow calls into the repository's functions: which one a call means, and what its parameters are given."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.python.source import FunctionNode, dotted_name
from tooling.python.source_modules import MeantNode, NodeInModule
from tooling.upgrade.interfaces.command_frames import (
    MOST_WORDS,
    CommandFrame,
    CommandObject,
    CommandResult,
    CommandRow,
    defaults_of,
    parameters_of,
)
from tooling.upgrade.interfaces.commands import CommandWord

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.upgrade.interfaces.command_words import CommandWords

DEPTH = 6
"""Calls that are followed into one another."""
MOST_CALLS = 20_000
"""Calls that are followed from one file."""


class CommandCalls:
    """Evaluates calls. words: what evaluates their arguments. run: what goes through a function's statements. most: how
    many are followed."""

    def __init__(
        self, words: CommandWords, run: Callable[[FunctionNode, CommandFrame], CommandResult], most: int
    ) -> None:
        self._words, self._code, self._run = words, words.code, run
        self.followed: set[tuple[str, int, int]] = set()
        """Places of parameters that callers were seen to give values."""
        self.running: list[int] = []
        """Functions that are gone through at the moment."""
        self._known: dict[tuple[int, int], CommandResult] = {}
        self.spent = 0
        self._most = most
        self._speaking: dict[str, bool] = {}

    @property
    def is_spent(self) -> bool:
        """Whether no further call is followed."""
        return self.spent >= self._most

    def called(self, node: ast.Call, frame: CommandFrame) -> CommandResult | None:
        """See `CommandWords`."""
        if id(node) not in frame.calls:
            frame.calls[id(node)] = None  # of a call inside its own arguments nothing is known
            frame.calls[id(node)] = self._followed(node, frame)
        return frame.calls[id(node)]

    def _followed(self, node: ast.Call, frame: CommandFrame) -> CommandResult | None:
        target = self._target(node.func, frame)
        if target is None or self.is_spent:
            return None
        definition, seen, within, home = target
        if isinstance(definition.node, ast.ClassDef) or not isinstance(definition.node, FunctionNode):
            return None
        function = definition.node
        if id(function) in self.running or len(self.running) >= DEPTH:
            return CommandResult()
        inner = CommandFrame(definition.module, within, home, seen, frame.depth + 1)
        is_static = any(dotted_name(each) == "staticmethod" for each in function.decorator_list)
        bound = within is not None and home is not None and not is_static
        self._pass(node, function, frame, inner, bound=bound)
        if not self._leads_to_commands(inner):
            return CommandResult()
        plain = not (inner.rows or inner.texts or inner.dicts)
        key = (id(function), id(within) if within is not None else 0)
        if plain and key in self._known:
            return self._known[key]
        self.spent += 1
        self.followed |= {(inner.module.path, each.lineno, each.col_offset) for each in ast.walk(function.args)
                          if isinstance(each, ast.arg)}  # fmt: skip
        result = self._run(function, inner)
        if plain and seen is None and within is None:
            self._known[key] = result
        return result

    def _leads_to_commands(self, inner: CommandFrame) -> bool:
        """Whether a function can have to do with commands: it is given one, or its module, or one that this imports,
        has words that begin like flags."""
        given = (word for rows in inner.rows.values() for row in rows for word in row.words[:MOST_WORDS])
        if inner.dicts or any(word.text.startswith("-") or self._words.programs.is_module(word.text) for word in given):
            return True
        path = inner.module.path
        if path not in self._speaking:
            sources = {
                self._code.path(each, path) or self._code.path(each.rpartition(".")[0], path)
                for each in self._code.imported(inner.module)
            }
            self._speaking[path] = any(self._code.has_flags(each) for each in {path, *sources} if each)
        return self._speaking[path]

    def _target(
        self, node: ast.expr, frame: CommandFrame
    ) -> tuple[MeantNode, CommandFrame | None, CommandObject | None, ast.AST | None] | None:
        """(function, frame it sees, object it is called on, class that defines it)."""
        if isinstance(node, ast.Name):
            local = frame.function_of(node.id)
            if local is not None:
                return NodeInModule(local[1].module, local[0]), local[1], frame.within, None
        if isinstance(node, ast.Attribute):
            receiver = dotted_name(node.value)
            within = frame.within if receiver in {"self", "cls"} else frame.objects.get(receiver)
            if within is not None:
                return self._method(within, node.attr)
            is_super = isinstance(node.value, ast.Call) and dotted_name(node.value.func) == "super"
            if is_super and frame.within is not None:
                return self._method(frame.within, node.attr, after=frame.home)
        found = self._code.named(node, frame.module)
        if found is None or not isinstance(found.node, FunctionNode):
            return None
        return found, None, None, None

    def _method(
        self, within: CommandObject, name: str, after: ast.AST | None = None
    ) -> tuple[MeantNode, CommandFrame | None, CommandObject | None, ast.AST | None] | None:
        classes = self._code.bases(within.owner)
        first = next((index + 1 for index, each in enumerate(classes) if each.node is after), 0)
        for each in classes[first:]:
            for node in getattr(each.node, "body", []):
                if isinstance(node, FunctionNode) and node.name == name:
                    return NodeInModule(each.module, node), None, within, each.node
        return None

    def made(self, value: ast.expr, frame: CommandFrame) -> CommandObject | None:
        """The object that a class of the repository makes, after its `__init__`."""
        found = self._code.named(value.func, frame.module) if isinstance(value, ast.Call) else None
        if found is None or not isinstance(found.node, ast.ClassDef) or not isinstance(value, ast.Call):
            return None
        within = CommandObject(found)
        target = self._method(within, "__init__")
        if target is None or self.is_spent:
            return within
        function = target[0].node
        if isinstance(function, FunctionNode) and id(function) not in self.running and len(self.running) < DEPTH:
            inner = CommandFrame(target[0].module, within, target[3], None, frame.depth + 1)
            self._pass(value, function, frame, inner, bound=True)
            self.spent += 1
            self._run(function, inner)
        return within

    def _pass(
        self, node: ast.Call, function: FunctionNode, frame: CommandFrame, inner: CommandFrame, *, bound: bool
    ) -> None:
        names = parameters_of(function, bound=bound)
        given: dict[str, ast.expr] = {}
        rest: list[ast.expr] = []
        for index, value in enumerate(node.args):
            if isinstance(value, ast.Starred) or index >= len(names) or rest:
                rest.append(value)
            else:
                given[names[index]] = value
        more: list[CommandWord] = []
        known = {*names, *(each.arg for each in function.args.kwonlyargs)}
        for each in node.keywords:
            if each.arg is None:
                more += self._words.keys(each.value, frame) or []
            elif function.args.kwarg is not None and each.arg not in known:
                more.append(CommandWord(each.arg, each.value.lineno, each.col_offset, path=frame.module.path))
            else:
                given[each.arg] = each.value
        for name, value in {**defaults_of(function), **given}.items():
            self.bind(name, value, frame, inner, quiet=name not in given)
        if function.args.vararg is not None:
            inner.rows[function.args.vararg.arg] = [
                CommandRow([word for each in rest for word in self._words.element(each, frame)])
            ]
        if function.args.kwarg is not None and more:
            inner.dicts[function.args.kwarg.arg] = more

    def bind(self, name: str, value: ast.expr, frame: CommandFrame, inner: CommandFrame, *, quiet: bool) -> None:
        """A parameter. quiet: without a trace of values that are not known."""
        text, keys = self._words.text(value, frame), self._words.keys(value, frame)
        if keys is not None:
            inner.dicts[name] = keys if isinstance(value, ast.Name | ast.Attribute) else list(keys)
        if text is not None and " " not in text:
            inner.texts[name] = text
            return
        held = frame.rows_of(dotted_name(value)) if isinstance(value, ast.Name | ast.Attribute) else None
        rows = held if held is not None else self._words.rows(value, frame)
        if rows:
            inner.rows[name] = rows
        elif isinstance(value, ast.Name | ast.Attribute | ast.Call) and keys is None and not quiet:
            inner.rows[name] = [CommandRow([frame.hidden(value)])]
        elif isinstance(value, ast.Constant) and value.value is None and not quiet:
            inner.rows[name] = [CommandRow([])]
