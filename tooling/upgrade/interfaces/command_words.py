"""The words that an expression gives to a command line, followed through variables, calls and files.

`CommandFrame` holds variables: lists and strings in the making, options, results of functions. `CommandWords`
evaluates; `CommandCalls` says which function of the repository a call means, and what its parameters are given.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from tooling.python.module import last_name
from tooling.python.source import FunctionNode, defined_names, dotted_name, each_parameter, string_of
from tooling.python.source_modules import NodeInModule
from tooling.upgrade.interfaces.code import HOLE, prefixed
from tooling.upgrade.interfaces.commands import CommandWord, recognise, split_shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.python.source_modules import MeantNode
    from tooling.upgrade.interfaces.code import RepositoryCode
    from tooling.upgrade.interfaces.commands import KnownPrograms


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


def defaults_of(node: FunctionNode) -> dict[str, ast.expr]:
    """Parameters with their default values."""
    return {entry.arg: default for entry, _, default in each_parameter(node.args) if default is not None}


DEPTH = 6
"""Calls that are followed into one another."""
MOST_STATEMENTS = 25_000
"""Statements that are gone through for one file, before calls in it are no longer followed."""
SAME_WORDS = frozenset({"chain", "from_iterable", "join", "list", "reversed", "shlex", "sorted", "split", "tuple"})
"""Calls that give the words of their arguments: list(x), shlex.split(x), " ".join(x), itertools.chain(x, y)."""


class CommandWords:
    """Evaluates expressions, following calls and names into other files."""

    def __init__(self, code: RepositoryCode, programs: KnownPrograms, statements: CommandStatements, most: int) -> None:
        """statements: what goes through functions and modules. most: calls that are followed."""
        self.code = code
        self.programs = programs
        self.statements = statements
        self.calls = CommandCalls(self, statements, most)
        self.called = self.calls.called

    # ------------------------------------------------------------------------------------------------------- lists

    def rows(self, node: ast.expr, frame: CommandFrame) -> list[CommandRow]:
        """The alternatives that an expression may be; [] if it is neither a list nor a string."""
        if isinstance(node, ast.IfExp):
            return [row for side in (node.body, node.orelse) for row in self.rows(side, frame)]
        if isinstance(node, ast.BoolOp):
            return [row for side in node.values for row in self.rows(side, frame)]
        if isinstance(node, ast.Await):
            return self.rows(node.value, frame)
        if isinstance(node, ast.Call):
            result = self.called(node, frame)
            if result is not None:
                return result.rows
        words = self.words(node, frame)
        return [] if words is None else [CommandRow(words)]

    def words(self, node: ast.expr, frame: CommandFrame) -> list[CommandWord] | None:
        """The words of a list or string expression; None for anything else."""
        if isinstance(node, ast.List | ast.Tuple):
            return [word for each in node.elts for word in self.element(each, frame)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and self.text(node, frame) is None:
            left, right = self.words(node.left, frame), self.words(node.right, frame)
            if left is None and right is None:
                return None
            return [
                *(left if left is not None else [frame.hidden(node.left)]),
                *(right if right is not None else [frame.hidden(node.right)]),
            ]
        if isinstance(node, ast.IfExp | ast.BoolOp):
            found = [row.words for row in self.rows(node, frame)]
            return [word for words in found for word in words] if found else None
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self.comprehended(node, frame)
        if isinstance(node, ast.Call):
            return self.words_of_call(node, frame)
        if isinstance(node, ast.Name | ast.Attribute):
            found_words = self.held(node, frame)
            if found_words is not None:
                return found_words
        text = self.text(node, frame)
        return None if text is None else self.split(text, node, frame)

    def split(self, text: str, node: ast.expr, frame: CommandFrame) -> list[CommandWord]:
        """The words of a string; of several commands, from the first that runs a program of the release."""
        commands = [[replace(word, path=frame.module.path) for word in row] for row in split_shell(text, node.lineno)]
        first = next((index for index, words in enumerate(commands) if recognise(words, self.programs)), None)
        return [word for words in commands[first:] for word in words] if first is not None else (commands or [[]])[-1]

    def words_of_call(self, node: ast.Call, frame: CommandFrame) -> list[CommandWord] | None:
        """Of the repository's functions, and of those that give what they are given."""
        result = self.called(node, frame)
        if result is not None and (result.rows or result.texts):
            texts = [] if result.rows else [word for text in result.texts for word in self.split(text, node, frame)]
            return [*joined_words(result.rows), *texts]
        name = last_name(node.func)
        if name == "split" and isinstance(node.func, ast.Attribute) and self.text(node.func.value, frame):
            return self.words(node.func.value, frame)
        if name in SAME_WORDS and node.args:
            found = [self.words(each.value if isinstance(each, ast.Starred) else each, frame) for each in node.args]
            return None if None in found else [word for words in found for word in words or ()]
        text = self.text(node, frame)
        return None if text is None else self.split(text, node, frame)

    def held(self, node: ast.Name | ast.Attribute, frame: CommandFrame) -> list[CommandWord] | None:
        """The words of a variable, an attribute, or a constant of this or another module."""
        name = dotted_name(node)
        rows = frame.find(name).rows
        if rows is not None:
            return joined_words(rows)
        owner = frame.within.owner if frame.within is not None else None
        if owner is not None and name.startswith(("self.", "cls.")) and name.count(".") == 1:
            found = self.code.attribute(owner, name.partition(".")[2])
            if found is not None and isinstance(found.node, FunctionNode):
                # A property
                result = self.called(ast.copy_location(ast.Call(node, [], []), node), frame)
                return joined_words(result.rows) if result is not None else None
        else:
            found = self.code.named(node, frame.module)
        return self.constant(found, name.rpartition(".")[2]) if found is not None else None

    def constant(self, found: MeantNode, name: str) -> list[CommandWord] | None:
        """The words of a list or tuple at the top level of a module, or of a class."""
        if not isinstance(found.node, ast.expr):
            return None
        if found.module.values.get(name) is found.node:
            home = self.statements.module_frame(found.module.path)
            rows = home.find(name).rows if home is not None else None
            if rows is not None:
                return joined_words(rows)
        if isinstance(found.node, ast.List | ast.Tuple | ast.BinOp):
            return self.words(found.node, CommandFrame(found.module))
        return None

    # ------------------------------------------------------------------------------------------------- single words

    def element(self, node: ast.expr, frame: CommandFrame) -> Iterator[CommandWord]:
        """What one element of a list adds."""
        if isinstance(node, ast.Starred):
            words = self.words(node.value, frame)
            yield from [frame.hidden(node.value)] if words is None else words
            return
        made = self.looped(node, frame)
        if made:
            yield from made
            return
        if isinstance(node, ast.IfExp) and self.text(node.body, frame) and self.text(node.orelse, frame):
            yield from self.element(node.body, frame)
            yield from self.element(node.orelse, frame)
            return
        text = self.text(node, frame)
        if text is not None:
            # An element is one word; "vllm serve x" in a list is what `bash -c` is given.
            if " " in text and any(True for words in split_shell(text, 0) if recognise(words, self.programs)):
                yield from self.split(text, node, frame)
            else:
                yield frame.word(text, node)
        elif dotted_name(node) == "sys.executable":
            yield frame.word("python", node)
        else:
            if isinstance(node, ast.List | ast.Tuple | ast.ListComp | ast.Dict | ast.Call | ast.IfExp):
                self.statements.expression(node, frame)
            yield frame.word(HOLE, node)

    def text(self, node: ast.expr, frame: CommandFrame) -> str | None:
        """A string with holes for what is not constant."""
        owner = frame.within.owner if frame.within is not None else None
        if isinstance(node, ast.Name | ast.Attribute):
            known = frame.find(dotted_name(node))
            if known.text is not None or known.rows is not None:
                return known.text
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = (node.left, node.right)
            is_literal = any(isinstance(side, ast.Constant | ast.JoinedStr) for side in sides)
            if not is_literal and any(self.text(side, frame) is None for side in sides):
                return None
        if isinstance(node, ast.Call):
            return self.text_of_call(node, frame)
        return self.code.text(node, frame.module, owner, part=lambda each: self.text(each, frame))

    def text_of_call(self, node: ast.Call, frame: CommandFrame) -> str | None:
        """`"...".format(x)`, `str(x)`, and functions of the repository that give one string."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"format", "strip"}:
            base = self.text(node.func.value, frame)
            return base.replace("{}", HOLE) if base is not None else None
        if dotted_name(node.func) == "str" and len(node.args) == 1:
            return self.text(node.args[0], frame)
        result = self.called(node, frame)
        return result.texts[0] if result is not None and len(result.texts) == 1 and not result.rows else None

    # ---------------------------------------------------------------------------------------------- dicts and loops

    def keys(self, node: ast.expr, frame: CommandFrame) -> list[CommandWord] | None:
        """The constant keys of a dict; None if it is none that is known."""
        if isinstance(node, ast.Dict):
            more = [self.keys(value, frame) for key, value in zip(node.keys, node.values, strict=True) if key is None]
            return [*(frame.literal_keys(node) or []), *(key for keys in more for key in keys or [])]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            left, right = self.keys(node.left, frame), self.keys(node.right, frame)
            return None if left is None and right is None else [*(left or []), *(right or [])]
        if isinstance(node, ast.Call):
            literal = frame.literal_keys(node)
            if literal is not None:
                return literal
            if isinstance(node.func, ast.Attribute) and node.func.attr in {"items", "keys", "copy"}:
                return self.keys(node.func.value, frame)
            if dotted_name(node.func) in {"dict", "sorted", "list"} and node.args:
                return self.keys(node.args[0], frame)
            result = self.called(node, frame)
            return result.keys or None if result is not None else None
        name = dotted_name(node)
        known = frame.find(name).keys
        if known is None and isinstance(node, ast.Name | ast.Attribute):
            owner = frame.within.owner if frame.within is not None and name.startswith("self.") else None
            found = self.code.attribute(owner, node.attr) if owner and isinstance(node, ast.Attribute) else None
            found = found or self.code.named(node, frame.module)
            if found is not None and isinstance(found.node, ast.Dict | ast.Call):
                home = self.statements.module_frame(found.module.path)
                known = home.find(name.rpartition(".")[2]).keys if home is not None else None
                return known if known is not None else CommandFrame(found.module).literal_keys(found.node)
        return known

    def loop(self, target: ast.expr, source: ast.expr, frame: CommandFrame) -> None:
        """Binds the variables of a loop over a literal, or over a dict whose keys are known."""
        keys, table = self.keys(source, frame), self.table(source, frame)
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        columns: list[list[ast.expr]] = [[] for _ in names]
        if isinstance(table, ast.List | ast.Tuple | ast.Set):
            for each in table.elts:
                row = each.elts if isinstance(each, ast.Tuple | ast.List) else []
                for column, cell in zip(columns, row if len(names) > 1 else [each], strict=False):
                    column.append(cell)
        elif isinstance(table, ast.Dict) and len(names) == 2:
            columns[1] = table.values
        for index, name in enumerate(names):
            words = [frame.word(text, cell) for cell in columns[index] if (text := self.text(cell, frame)) is not None]
            words = keys if keys and not index else words
            if isinstance(name, ast.Name) and words:
                frame.own(name.id).rounds = words

    def table(self, node: ast.expr, frame: CommandFrame) -> ast.expr | None:
        """The literal that is looped over."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items":
            node = node.func.value
        literal: ast.AST | None = node
        if isinstance(node, ast.Name | ast.Attribute):
            literal = frame.find(dotted_name(node)).table
            found = self.code.named(node, frame.module) if literal is None else None
            literal = found.node if found is not None else literal
        return literal if isinstance(literal, ast.List | ast.Tuple | ast.Set | ast.Dict) else None

    def comprehended(self, node: ast.ListComp | ast.GeneratorExp, around: CommandFrame) -> list[CommandWord] | None:
        """The words of all rounds; None where nothing of them is a flag that is known."""
        frame = CommandFrame(around.module, around.within, around.home, around, around.depth)
        frame.calls, frame.result = around.calls, around.result
        for generator in node.generators:
            inner = generator.iter
            self.loop(generator.target, inner, frame)
            if isinstance(inner, ast.List | ast.Tuple) and isinstance(generator.target, ast.Name):
                words = [word for each in inner.elts for word in self.element(each, frame)]
                frame.own(generator.target.id).rounds = words
        words = list(self.element(node.elt, frame))
        if isinstance(node.elt, ast.Name) and not words[0].text.startswith("-"):
            words = self.words(node.generators[-1].iter, frame) or []
        return words if any(word.text.startswith("-") for word in words) else None

    def looped(self, node: ast.expr, frame: CommandFrame) -> list[CommandWord]:
        """`key`, f"--{key}" and "--" + key in a loop: the flag of each round; [] for anything else."""
        if isinstance(node, ast.Name):
            return frame.find(node.id).rounds
        prefix, inner = prefixed(node)
        if prefix not in {"-", "--"}:
            return []
        rounds = [frame.find(each.id).rounds for each in ast.walk(inner) if isinstance(each, ast.Name)]
        dashes = "replace" in ast.unparse(inner)
        return [
            replace(key, text=prefix + (key.text.replace("_", "-") if dashes else key.text))
            for key in next(filter(None, rounds), [])
        ]


CalledFunction = tuple[NodeInModule[FunctionNode], CommandFrame | None, CommandObject | None, ast.AST | None]
"""(function, frame it sees, object it is called on, class that defines it)."""


class CommandCalls:
    """Evaluates calls. words: what evaluates their arguments. most: statements to go through."""

    def __init__(self, words: CommandWords, statements: CommandStatements, most: int) -> None:
        self._words, self._code, self._run = words, words.code, statements.run
        self.followed: set[tuple[str, int, int]] = set()
        """Places of parameters that callers were seen to give values."""
        self.running: list[int] = []
        """Functions that are gone through at the moment."""
        self._known: dict[tuple[int, int], CommandResult] = {}
        self.spent = 0
        """Statements that were gone through."""
        self._most = most
        self._speaking: dict[str, bool] = {}

    @property
    def is_spent(self) -> bool:
        """Whether no further call is followed."""
        return self.spent >= self._most

    def called(self, node: ast.Call, frame: CommandFrame) -> CommandResult | None:
        """What a call gives; None for a function that is not the repository's."""
        if id(node) not in frame.calls:
            frame.calls[id(node)] = None  # of a call inside its own arguments nothing is known
            frame.calls[id(node)] = self._followed(node, frame)
        return frame.calls[id(node)]

    def _followed(self, node: ast.Call, frame: CommandFrame) -> CommandResult | None:
        target = self._target(node.func, frame)
        if target is None or self.is_spent:
            return None
        definition, seen, within, home = target
        function = definition.node
        if id(function) in self.running or len(self.running) >= DEPTH:
            return CommandResult()
        inner = CommandFrame(definition.module, within, home, seen, frame.depth + 1)
        is_static = any(dotted_name(each) == "staticmethod" for each in function.decorator_list)
        bound = within is not None and home is not None and not is_static
        self._pass(node, function, frame, inner, bound=bound)
        if not self._leads_to_commands(inner):
            return CommandResult()
        plain = not inner.names
        key = (id(function), id(within) if within is not None else 0)
        if plain and key in self._known:
            return self._known[key]
        self.followed |= {(inner.module.path, each.lineno, each.col_offset) for each in ast.walk(function.args)
                          if isinstance(each, ast.arg)}  # fmt: skip
        result = self._run(function, inner)
        if plain and seen is None and within is None:
            self._known[key] = result
        return result

    def _leads_to_commands(self, inner: CommandFrame) -> bool:
        """Whether a function can have to do with commands: it is given one, or its module, or one that this imports,
        has words that begin like flags."""
        held = inner.names.values()
        given = (word for each in held for row in each.rows or () for word in row.words[:MOST_WORDS])
        if any(each.keys is not None for each in held) or any(
            word.text.startswith("-") or self._words.programs.is_module(word.text) for word in given
        ):
            return True
        path = inner.module.path
        if path not in self._speaking:
            sources = {
                self._code.path(each, path) or self._code.path(each.rpartition(".")[0], path)
                for each in self._code.imported(inner.module)
            }
            self._speaking[path] = any(self._code.has_flags(each) for each in {path, *sources} if each)
        return self._speaking[path]

    def _target(self, node: ast.expr, frame: CommandFrame) -> CalledFunction | None:
        if isinstance(node, ast.Name):
            local = frame.find(node.id).function
            if local is not None:
                return NodeInModule(local[1].module, local[0]), local[1], frame.within, None
        if isinstance(node, ast.Attribute):
            receiver = dotted_name(node.value)
            within = frame.within if receiver in {"self", "cls"} else frame.find(receiver).instance
            if within is not None:
                return self._method(within, node.attr)
            is_super = isinstance(node.value, ast.Call) and dotted_name(node.value.func) == "super"
            if is_super and frame.within is not None:
                return self._method(frame.within, node.attr, after=frame.home)
        found = self._code.named(node, frame.module)
        if found is None or not isinstance(found.node, FunctionNode):
            return None
        return NodeInModule(found.module, found.node), None, None, None

    def _method(self, within: CommandObject, name: str, after: ast.AST | None = None) -> CalledFunction | None:
        classes = self._code.bases(within.owner)
        first = next((index + 1 for index, each in enumerate(classes) if each.node is after), 0)
        for module, owner in classes[first:]:
            for found, node in defined_names(owner.body):
                if found == name and isinstance(node, FunctionNode):
                    return NodeInModule(module, node), None, within, owner
        return None

    def made(self, value: ast.expr, frame: CommandFrame) -> CommandObject | None:
        """The object that a class of the repository makes, after its `__init__`."""
        owner = self._code.class_named(value.func, frame.module) if isinstance(value, ast.Call) else None
        if owner is None or not isinstance(value, ast.Call):
            return None
        within = CommandObject(owner)
        target = self._method(within, "__init__") if not self.is_spent else None
        if target is not None and id(target[0].node) not in self.running and len(self.running) < DEPTH:
            inner = CommandFrame(target[0].module, within, target[3], None, frame.depth + 1)
            self._pass(value, target[0].node, frame, inner, bound=True)
            self._run(target[0].node, inner)
        return within

    def _pass(
        self, node: ast.Call, function: FunctionNode, frame: CommandFrame, inner: CommandFrame, *, bound: bool
    ) -> None:
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        names = names[1:] if bound else names
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
            words = [word for each in rest for word in self._words.element(each, frame)]
            inner.own(function.args.vararg.arg).rows = [CommandRow(words)]
        if function.args.kwarg is not None and more:
            inner.own(function.args.kwarg.arg).keys = more

    def bind(self, name: str, value: ast.expr, frame: CommandFrame, inner: CommandFrame, *, quiet: bool) -> None:
        """A parameter. quiet: without a trace of values that are not known."""
        text, keys = self._words.text(value, frame), self._words.keys(value, frame)
        if keys is not None:
            inner.own(name).keys = keys if isinstance(value, ast.Name | ast.Attribute) else list(keys)
        if text is not None and " " not in text:
            inner.own(name).text = text
            return
        held = frame.find(dotted_name(value)).rows if isinstance(value, ast.Name | ast.Attribute) else None
        rows = held if held is not None else self._words.rows(value, frame)
        if rows:
            inner.own(name).rows = rows
        elif isinstance(value, ast.Name | ast.Attribute | ast.Call) and keys is None and not quiet:
            inner.own(name).rows = [CommandRow([frame.hidden(value)])]
        elif isinstance(value, ast.Constant) and value.value is None and not quiet:
            inner.own(name).rows = [CommandRow([])]
