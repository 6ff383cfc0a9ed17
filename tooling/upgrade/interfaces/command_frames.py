"""Variables of Python code that builds commands: lists and strings in the making, options, results of functions."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tooling.python.source import dotted_name, each_parameter, string_of
from tooling.upgrade.interfaces.code import HOLE
from tooling.upgrade.interfaces.commands import CommandWord

if TYPE_CHECKING:
    from tooling.python.module import Module
    from tooling.python.source import FunctionNode
    from tooling.python.source_modules import NodeInModule


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
class CommandVariable:
    """What a variable or an attribute is, as far as commands go."""

    rows: list[CommandRow] | None = None
    """A list, or a string of several words: the alternatives."""
    text: str | None = None
    """One word."""
    keys: list[CommandWord] | None = None
    """Of a dict of options."""
    table: ast.expr | None = None
    """A literal list, tuple or dict."""
    rounds: list[CommandWord] = field(default_factory=list)
    """Of a variable of a loop over such a literal: all its values."""
    instance: CommandObject | None = None
    function: tuple[FunctionNode, CommandFrame] | None = None
    """A function with the frame that it sees."""


@dataclass(slots=True, eq=False)
class CommandObject:
    """An object of a class of the repository, as far as it holds commands."""

    owner: NodeInModule[ast.ClassDef]
    names: dict[str, CommandVariable] = field(default_factory=dict)
    """By "self.name"."""


_NOTHING = CommandVariable()


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
    names: dict[str, CommandVariable] = field(default_factory=dict)
    result: CommandResult = field(default_factory=CommandResult)
    calls: dict[int, CommandResult | None] = field(default_factory=dict)
    """What the calls of the statement at hand gave: none is followed twice."""

    def find(self, name: str) -> CommandVariable:
        """What a variable or attribute is; nothing is known of one that was not seen."""
        if self.within is not None and name.startswith("self."):
            return self.within.names.get(name, _NOTHING)
        if name in self.names or self.parent is None:
            return self.names.get(name, _NOTHING)
        return self.parent.find(name)

    def own(self, name: str) -> CommandVariable:
        """A variable of this function, or an attribute of its object, to be assigned to."""
        held = self.within.names if self.within is not None and name.startswith("self.") else self.names
        return held.setdefault(name, CommandVariable())

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
            return [self.word(text, key) for key in node.keys if key and (text := string_of(key)) is not None]
        if isinstance(node, ast.Call) and dotted_name(node.func) == "dict" and not node.args:
            return self.keyword_names(node)
        return None

    def keyword_names(self, node: ast.Call) -> list[CommandWord]:
        """The names of keyword arguments."""
        named = [(each.arg, each.value.lineno, each.col_offset) for each in node.keywords if each.arg]
        return [CommandWord(*each, path=self.module.path) for each in named]


class CommandStatements(Protocol):
    """What goes through the statements of functions and modules."""

    def run(self, function: FunctionNode, frame: CommandFrame) -> CommandResult:
        """Go through a function; what it returns."""
        ...

    def module_frame(self, path: str) -> CommandFrame | None:
        """The variables of a module, whose top level is gone through once."""
        ...

    def expression(self, node: ast.expr, frame: CommandFrame) -> None:
        """Look for commands in an expression that stands by itself."""
        ...


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
