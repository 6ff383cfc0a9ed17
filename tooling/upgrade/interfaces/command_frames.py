"""Variables of Python code that builds commands: lists and strings in the making, options, results of functions."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.python.source import dotted_name, each_parameter
from tooling.upgrade.interfaces.code import HOLE
from tooling.upgrade.interfaces.commands import CommandWord

if TYPE_CHECKING:
    from tooling.python.module import Module
    from tooling.python.source import FunctionNode
    from tooling.python.source_modules import MeantNode


MOST_WORDS = 400
"""Words of a command that are looked at."""
MOST_ROWS = 16
"""Alternatives that are kept of one variable, and of what one function returns: the last ones, which have most."""
MOST_HELD = 4 * MOST_WORDS
"""Words that a list may grow to."""


@dataclass(slots=True, eq=False)
class CommandRow:
    """A list or string that is being built. Functions that are given it make the same one longer."""

    words: list[CommandWord]
    block: tuple[int, ...] = ()
    """Branches it was made under."""


@dataclass(slots=True, eq=False)
class CommandResult:
    """What a call gives."""

    rows: list[CommandRow] = field(default_factory=list)
    """Alternatives."""
    parts: list[list[CommandRow]] = field(default_factory=list)
    """Of a tuple: alternatives of each element."""
    keys: list[CommandWord] = field(default_factory=list)
    """Of a dict."""
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class CommandObject:
    """An object of a class of the repository, as far as it holds commands."""

    owner: MeantNode
    rows: dict[str, list[CommandRow]] = field(default_factory=dict)
    """By "self.name"."""
    dicts: dict[str, list[CommandWord]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class CommandFrame:
    """One function's variables, or a module's."""

    module: Module
    within: CommandObject | None = None
    """What `self` is."""
    home: ast.AST | None = None
    """Class that defines the function."""
    parent: CommandFrame | None = None
    """Function around it, whose variables it sees."""
    depth: int = 0
    rows: dict[str, list[CommandRow]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    dicts: dict[str, list[CommandWord]] = field(default_factory=dict)
    """Keys of dicts of options."""
    tables: dict[str, ast.expr] = field(default_factory=dict)
    """Literal lists, tuples and dicts."""
    loops: dict[str, list[CommandWord]] = field(default_factory=dict)
    """Variables of loops over such literals: all their values."""
    functions: dict[str, FunctionNode] = field(default_factory=dict)
    objects: dict[str, CommandObject] = field(default_factory=dict)
    result: CommandResult = field(default_factory=CommandResult)
    calls: dict[int, CommandResult | None] = field(default_factory=dict)
    """What the calls of the statement at hand gave: none is followed twice."""

    def rows_of(self, name: str) -> list[CommandRow] | None:
        """The rows that a variable or attribute may be; None if it is none."""
        if self.within is not None and name.startswith("self."):
            return self.within.rows.get(name)
        found = self.rows.get(name)
        return self.parent.rows_of(name) if found is None and self.parent is not None else found

    def keep_rows(self, name: str, rows: list[CommandRow]) -> None:
        """Assign."""
        held = self.within.rows if self.within is not None and name.startswith("self.") else self.rows
        held[name] = rows

    def text_of(self, name: str) -> str | None:
        """The string that a variable or attribute is."""
        if self.within is not None and name.startswith("self."):
            return self.within.texts.get(name)
        found = self.texts.get(name)
        return self.parent.text_of(name) if found is None and self.parent is not None else found

    def keys_of(self, name: str) -> list[CommandWord] | None:
        """The keys of the dict that a variable or attribute is."""
        if self.within is not None and name.startswith("self."):
            return self.within.dicts.get(name)
        found = self.dicts.get(name)
        return self.parent.keys_of(name) if found is None and self.parent is not None else found

    def keep_keys(self, name: str, keys: list[CommandWord]) -> None:
        """Assign a dict."""
        held = self.within.dicts if self.within is not None and name.startswith("self.") else self.dicts
        held[name] = keys

    def function_of(self, name: str) -> tuple[FunctionNode, CommandFrame] | None:
        """A function that is defined in this one or around it, with the frame that it sees."""
        if name in self.functions:
            return self.functions[name], self
        return self.parent.function_of(name) if self.parent is not None else None

    def word(self, text: str, node: ast.expr) -> CommandWord:
        """A word that stands at a node."""
        return CommandWord(text, node.lineno, node.col_offset, node.end_lineno or node.lineno, self.module.path)

    def hidden(self, node: ast.expr | ast.arg) -> CommandWord:
        """What may be any number of words."""
        source = node.arg if isinstance(node, ast.arg) else " ".join(ast.unparse(node).split())
        end = node.end_lineno or node.lineno
        return CommandWord(HOLE, node.lineno, node.col_offset, end, self.module.path, source[:80])

    def literal_keys(self, node: ast.expr) -> list[CommandWord] | None:
        """The constant keys of `{...}` or `dict(...)`; None for other expressions."""
        if isinstance(node, ast.Dict):
            keys = [key for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            return [self.word(str(key.value), key) for key in keys]
        if isinstance(node, ast.Call) and dotted_name(node.func) == "dict" and not node.args:
            named = [each for each in node.keywords if each.arg]
            return [
                CommandWord(each.arg or "", each.value.lineno, each.col_offset, path=self.module.path) for each in named
            ]
        return None


def joined_words(rows: list[CommandRow]) -> list[CommandWord]:
    """The words of all alternatives, as far as `MOST_HELD` goes. One that others go on from is in those already:
    without that, `if a: words = words + ["--a"]` would double them each time."""
    found: list[CommandWord] = []
    for index, row in enumerate(rows):
        size = len(row.words)
        if not any(
            other.words[:size] == row.words and (len(other.words) > size or place > index)
            for place, other in enumerate(rows)
            if other is not row
        ):
            found += row.words
        if len(found) >= MOST_HELD:
            break
    return found[:MOST_HELD]


def parameters_of(node: FunctionNode, *, bound: bool) -> list[str]:
    """Names that positional arguments land on. bound: without the first one, which is the object."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if bound and names else names


def defaults_of(node: FunctionNode) -> dict[str, ast.expr]:
    """Parameters with their default values."""
    return {entry.arg: default for entry, _, default in each_parameter(node.args) if default is not None}
