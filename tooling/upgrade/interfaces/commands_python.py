"""Find command lines that Python code builds: in steps, in functions that call each other, in several files.

A function is read as it stands, and again with what each caller passes. A list that is passed on, or kept in an
attribute, stays one list: what any function adds to it belongs to the command. What cannot be followed is kept as a
place of the command that hides further words.
"""

from __future__ import annotations

import ast
from dataclasses import astuple, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tooling.python.module import last_name
from tooling.python.source import FunctionNode, children, defined_names, dotted_name, module_name, string_of
from tooling.python.source_modules import NodeInModule
from tooling.upgrade.interfaces.command_words import (
    DEPTH,
    MOST_HELD,
    MOST_ROWS,
    MOST_STATEMENTS,
    MOST_WORDS,
    SAME_WORDS,
    CommandFrame,
    CommandObject,
    CommandResult,
    CommandRow,
    CommandVariable,
    CommandWords,
    defaults_of,
)
from tooling.upgrade.interfaces.commands import CommandUse, CommandWord, recognise, split_shell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.module import Module
    from tooling.upgrade.interfaces.code import RepositoryCode
    from tooling.upgrade.interfaces.commands import KnownPrograms


_TALK = frozenset(
    {"add_argument", "critical", "debug", "echo", "error", "exception", "fail", "info", "log", "print", "warn"}
) | {"warning"}
"""Calls whose strings are read by people."""
_SAID = frozenset({"description", "epilog", "help", "usage"})
"""Keywords whose strings are, too."""
MOST_STATEMENTS_IN_ALL = 100_000
"""Statements that are gone through for all files together, some seconds; for each no more than `MOST_STATEMENTS`."""
_ROUNDS = 4
"""Importers of importers that are read for what they add to a command."""


_FileAnswer = tuple[list[tuple[Any, ...]], list[tuple[str, int, int]], bool, int]


class _CutShort(Exception):
    """Files before this one left it fewer statements than it needs. Its answer is good for this run alone."""

    def __init__(self, answer: _FileAnswer) -> None:
        self.answer = answer


def python_commands(
    code: RepositoryCode, programs: KnownPrograms, paths: Iterable[str], which: str
) -> list[tuple[CommandUse, list[CommandWord]]]:
    """All commands that begin in these files, with what importers of such files add; each once, with the places that
    hide further words of it: not parameters whose callers are seen. which: tells these programs from others."""
    found: list[CommandUse] = []
    followed: set[tuple[str, int, int]] = set()
    waiting, read = list(paths), set[str]()
    left = MOST_STATEMENTS_IN_ALL
    for _ in range(_ROUNDS):
        more: list[str] = []
        for path in waiting:
            read.add(path)
            key = f"commands {which} {path} {code.digest(path)}"
            try:
                answer = code.remembered.answer(key, partial(_commands_of, code, programs, path, left))
            except _CutShort as short:
                answer = short.answer
            uses, places, goes_on, spent = answer
            left = max(0, left - spent)
            found += map(CommandUse.of, uses)
            followed.update(places)
            more += code.importers(path) if goes_on else ()
        waiting = [path for path in dict.fromkeys(more) if path not in read]
    return [
        (use, [word for word in use.hidden if (word.path, word.line, word.column) not in followed])
        for use in dict.fromkeys(found)
    ]


def _commands_of(code: RepositoryCode, programs: KnownPrograms, path: str, left: int) -> _FileAnswer:
    """Commands that begin in a file, parameters whose callers are seen, whether importers may add to it, and how many
    statements were gone through. left: how many may be. Raises _CutShort."""
    reader = _FileCommands(code, programs, min(left, MOST_STATEMENTS))
    reader.file(path)
    goes_on = any(map(programs.may_go_on, reader.found)) or reader.names_program(path)
    uses = [astuple(use) for use in dict.fromkeys(reader.found)]
    answer = uses, sorted(reader.calls.followed), goes_on, reader.calls.spent
    if reader.calls.is_spent and left < MOST_STATEMENTS:
        raise _CutShort(answer)
    return answer


class _FileCommands:
    """Follows what one file does with commands, through the others."""

    def __init__(self, code: RepositoryCode, programs: KnownPrograms, most: int) -> None:
        self.code, self.programs = code, programs
        self.words = CommandWords(code, programs, self, most)
        self.calls = self.words.calls
        self.found: list[CommandUse] = []
        self._frames: dict[str, CommandFrame] = {}

    def names_program(self, path: str) -> bool:
        """Whether a file has a constant that other files may run."""
        module = self.code.at(path)
        texts = map(string_of, module.values.values() if module else ())
        return any(text and (self.programs.is_module(text) or self.programs.is_script(text)) for text in texts)

    def file(self, path: str) -> None:
        """Run everything in a file."""
        frame = self.module_frame(path)
        if frame is None:
            return
        self._definitions(frame.module.tree.body, frame)
        self._finish(frame.names)

    def module_frame(self, path: str) -> CommandFrame | None:
        """See `CommandStatements`."""
        if path not in self._frames:
            module = self.code.at(path)
            if module is None:
                return None
            frame = self._frames[path] = CommandFrame(module)
            self._block(module.tree.body, frame, ())
        return self._frames[path]

    def _definitions(self, body: list[ast.stmt], frame: CommandFrame) -> None:
        """Functions and classes, wherever they stand, each run by itself."""
        for node in body:
            if isinstance(node, FunctionNode):
                self._alone(node, frame)
            elif isinstance(node, ast.ClassDef):
                self._class(node, frame)
            else:
                for part in children(node):
                    if isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case):
                        self._definitions([part] if isinstance(part, ast.stmt) else part.body, frame)

    def _alone(self, node: FunctionNode, frame: CommandFrame, within: CommandObject | None = None) -> None:
        inner = CommandFrame(frame.module, within or frame.within, frame.home, frame)
        for parameter in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if parameter.arg not in {"self", "cls"}:
                inner.own(parameter.arg).rows = [CommandRow([inner.hidden(parameter)])]
        for name, value in defaults_of(node).items():
            self.calls.bind(name, value, frame, inner, quiet=True)
        self.run(node, inner)
        self._definitions(node.body, inner)

    def run(self, function: FunctionNode, frame: CommandFrame) -> CommandResult:
        """See `CommandStatements`."""
        if id(function) in self.calls.running or len(self.calls.running) > DEPTH:
            return frame.result
        self.calls.running.append(id(function))
        self._block(function.body, frame, ())
        self._finish(frame.names)
        self.calls.running.pop()
        return frame.result

    def _class(self, node: ast.ClassDef, frame: CommandFrame) -> None:
        """All methods on one object, `__init__` first; inherited ones too, since they call those of this class."""
        owner = NodeInModule(frame.module, node)
        within = CommandObject(owner)
        self._block([each for each in node.body if not isinstance(each, FunctionNode)], CommandFrame(frame.module), ())
        methods: dict[str, tuple[FunctionNode, Module, ast.ClassDef]] = {}
        for module, each in self.code.bases(owner):
            for name, method in defined_names(each.body):
                if isinstance(method, FunctionNode):
                    methods.setdefault(name, (method, module, each))
        for name in sorted(methods, key=lambda name: name != "__init__"):
            method, module, each = methods[name]
            around = frame if module is frame.module else CommandFrame(module)
            home = CommandFrame(module, within, each, around)
            self._alone(method, home, within)
        self._finish(within.names)
        self._definitions([each for each in node.body if isinstance(each, ast.ClassDef)], frame)

    def _finish(self, names: dict[str, CommandVariable]) -> None:
        for row in [row for each in names.values() for row in each.rows or ()]:
            self._recognise(row)

    def _recognise(self, row: CommandRow) -> None:
        use = recognise(row.words[:MOST_WORDS], self.programs)
        if use is not None:
            self.found.append(use)

    # ------------------------------------------------------------------------------------------------- statements

    def _block(self, body: list[ast.stmt], frame: CommandFrame, block: tuple[int, ...]) -> None:
        for node in body:
            self._statement(node, frame, block)

    def _statement(self, node: ast.stmt, frame: CommandFrame, block: tuple[int, ...]) -> None:
        frame.calls.clear()
        self.calls.spent += 1
        if isinstance(node, FunctionNode):
            frame.own(node.name).function = node, frame
        elif isinstance(node, ast.ClassDef | ast.Raise | ast.Assert):
            return
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._assign(target, node.value, frame, block)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            self._grow(dotted_name(node.target), self._added(node.value, frame), frame)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
            self._grow_keys(dotted_name(node.target), self.words.keys(node.value, frame), frame)
        elif isinstance(node, ast.Return):
            self._return(node.value, frame)
        elif isinstance(node, ast.Expr):
            self.expression(node.value, frame)
        else:
            if isinstance(node, ast.For):
                self.words.loop(node.target, node.iter, frame)
            self._nested(node, frame, block)

    def _nested(self, node: ast.stmt, frame: CommandFrame, block: tuple[int, ...]) -> None:
        for name, part in ast.iter_fields(node):
            if isinstance(part, ast.expr):
                self.expression(part, frame)
            for each in part if isinstance(part, list) else ():
                if isinstance(each, ast.stmt):
                    self._statement(each, frame, (*block, hash((id(node), name))))
                elif isinstance(each, ast.ExceptHandler | ast.match_case):
                    self._block(each.body, frame, (*block, id(each)))
                elif isinstance(each, ast.withitem):
                    self.expression(each.context_expr, frame)

    def _return(self, value: ast.expr | None, frame: CommandFrame) -> None:
        if value is None:
            return
        text, keys = self.words.text(value, frame), self.words.keys(value, frame)
        frame.result.keys += keys or []
        if text is not None and " " not in text:
            frame.result.texts.append(text)
            return
        if isinstance(value, ast.Tuple) and not any(self.words.text(each, frame) for each in value.elts):
            parts = [self.words.rows(each, frame) if not isinstance(each, ast.Starred) else [] for each in value.elts]
            frame.result.parts = parts
            for row in [row for rows in parts for row in rows]:
                self._recognise(row)
        rows = self.words.rows(value, frame)
        frame.result.rows[:] = [*frame.result.rows, *rows][-MOST_ROWS:]
        for row in rows:
            self._recognise(row)
        if not rows and keys is None:
            self.expression(value, frame)

    def _assign(self, target: ast.expr, value: ast.expr, frame: CommandFrame, block: tuple[int, ...]) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, frame, block)
            return
        if isinstance(target, ast.Subscript):
            self._subscript(target, value, frame)
            return
        name = dotted_name(target)
        if not name:
            return
        made = self.calls.made(value, frame)
        if made is not None:
            frame.own(name).instance = made
        self._assign_rows(name, value, self.words.rows(value, frame), frame, block)
        keys = self.words.keys(value, frame)
        if keys is not None:
            frame.own(name).keys = list(keys)
        if isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Dict):
            frame.own(name).table = value

    def _assign_rows(
        self, name: str, value: ast.expr, rows: list[CommandRow], frame: CommandFrame, block: tuple[int, ...]
    ) -> None:
        """Those of other branches stay alternatives; those that are replaced were commands as they were."""
        text = self.words.text(value, frame)
        shared = frame.find(dotted_name(value)).rows if len(rows) == 1 else None
        present = frame.find(name).rows or []
        variable = frame.own(name)
        variable.rounds = self.words.looped(value, frame) if isinstance(value, ast.JoinedStr | ast.BinOp) else []
        if variable.rounds:  # `flag = f"--{name}"` in a loop over names
            variable.rows = None
            return
        variable.text = text if text is not None and " " not in text else None
        if variable.text is not None:
            return
        if not rows:
            self.expression(value, frame)
            return
        made = shared or [CommandRow(list(row.words), block) for row in rows]
        kept = [*(row for row in present if row.block[: len(block)] != block), *made][-MOST_ROWS:]
        for row in present:
            if row not in kept:
                self._recognise(row)
        variable.rows = kept

    def _unpack(self, targets: list[ast.expr], value: ast.expr, frame: CommandFrame, block: tuple[int, ...]) -> None:
        """`arguments, environment = command(...)`, `a, b = x, y`."""
        if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
            for target, each in zip(targets, value.elts, strict=True):
                self._assign(target, each, frame, block)
            return
        result = self.words.called(value, frame) if isinstance(value, ast.Call) else None
        for target, rows in zip(targets, result.parts if result is not None else [], strict=False):
            name = dotted_name(target)
            if name and rows:
                frame.own(name).rows = [CommandRow(list(row.words), block) for row in rows]
        if result is None:
            self.expression(value, frame)

    def _subscript(self, target: ast.Subscript, value: ast.expr, frame: CommandFrame) -> None:
        """`options["port"] = 1`, `command[2:2] = ["--port"]`."""
        if isinstance(target.slice, ast.Slice):
            self._grow(dotted_name(target.value), self._added(value, frame), frame)
        key = string_of(target.slice)
        if key is not None:
            self._grow_keys(dotted_name(target.value), [frame.word(key, target.slice)], frame)
        self.expression(value, frame)

    def _grow_keys(self, name: str, keys: list[CommandWord] | None, frame: CommandFrame) -> None:
        present = frame.find(name).keys
        if present is not None:
            present += keys or []

    def _added(self, node: ast.expr, frame: CommandFrame) -> list[CommandWord]:
        words = self.words.words(node, frame)
        return [frame.hidden(node)] if words is None else words

    def _grow(self, name: str, words: list[CommandWord], frame: CommandFrame, *, first: bool = False) -> None:
        for row in frame.find(name).rows or []:
            if len(row.words) < MOST_HELD:
                row.words[:] = [*words, *row.words] if first else [*row.words, *words]

    # ------------------------------------------------------------------------------------------------ expressions

    def expression(self, node: ast.expr, frame: CommandFrame) -> None:
        """Lists and strings that are used where they stand, and methods that make lists longer."""
        if isinstance(node, ast.Constant | ast.Name):
            return  # a docstring, or nothing
        if isinstance(node, ast.Yield | ast.YieldFrom) and node.value is not None:
            one = isinstance(node, ast.Yield)
            words = list(self.words.element(node.value, frame)) if one else self._added(node.value, frame)
            if not frame.result.rows:
                frame.result.rows.append(CommandRow([]))
            frame.result.rows[0].words[:] = [*frame.result.rows[0].words, *words][:MOST_HELD]
            return
        if isinstance(node, ast.Call):
            self._call(node, frame)
            return
        rows = self.words.rows(node, frame)
        for row in rows:
            self._recognise(row)
        if isinstance(node, ast.List | ast.Tuple) or not rows:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr) and not isinstance(child, ast.Constant):
                    self.expression(child, frame)

    def _call(self, node: ast.Call, frame: CommandFrame) -> None:
        name = last_name(node.func)
        if name in _TALK:
            return
        one_by_one = any(map(self._is_program, node.args[:3]))
        if one_by_one or name == "format" or name in SAME_WORDS:
            # `"app {}".format(x)`, and words: `session.run("app", "--port", "1")`, `os.execlp("app", "app", "--port")`
            last = max((index for index, each in enumerate(node.args[:3]) if self._is_program(each)), default=0)
            first = last if last and string_of(node.args[last - 1]) == string_of(node.args[last]) else 0
            listed = ast.List(node.args[first:], ast.Load(), lineno=node.lineno, col_offset=node.col_offset)
            for row in self.words.rows(listed if one_by_one else node, frame):
                self._recognise(row)
        if isinstance(node.func, ast.Attribute):
            receiver = dotted_name(node.func.value)
            if name in {"append", "insert", "extend"} and frame.find(receiver).rows is not None and node.args:
                value = node.args[-1]
                words = self._added(value, frame) if name == "extend" else list(self.words.element(value, frame))
                at_front = name == "insert" and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
                self._grow(receiver, words, frame, first=at_front)
                return
            if name == "update" and frame.find(receiver).keys is not None:
                given = [key for each in node.args for key in self.words.keys(each, frame) or []]
                self._grow_keys(receiver, [*frame.keyword_names(node), *given], frame)
                return
            self.expression(node.func.value, frame)
        result = self.words.called(node, frame)
        for row in result.rows if result is not None else ():
            self._recognise(row)
        for each in [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg not in _SAID)]:
            self._argument(each, frame)
        if result is None:
            self._built_elsewhere(node, frame)

    def _is_program(self, node: ast.expr) -> bool:
        text = string_of(node)
        return text is not None and (text == "-m" or self.programs.is_script(text))

    def _built_elsewhere(self, node: ast.Call, frame: CommandFrame) -> None:
        """`build_command("sglang.launch_server", options)`: a module's name beside a dict of options."""
        texts = [(each, string_of(each) or "") for each in node.args]
        modules = [(each, text) for each, text in texts if "." in text and self.programs.is_module(text)]
        if len(modules) != 1:
            return
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        keys = [key for each in values for key in self.words.keys(each, frame) or []]
        flags = [
            CommandWord(f"--{key.text.replace('_', '-')}", key.line, key.column, key.end_line, key.path) for key in keys
        ]
        if flags:
            head = frame.word("", modules[0][0])
            self.found.append(CommandUse(modules[0][1], head, (), tuple(flags)))

    def _argument(self, node: ast.expr, frame: CommandFrame) -> None:
        text = string_of(node) or ""
        for words in split_shell(text, node.lineno) if " " in text else ():
            self._recognise(CommandRow([replace(word, path=frame.module.path) for word in words]))
        if " " not in text:
            self.expression(node.value if isinstance(node, ast.Starred) else node, frame)


def loaded_modules(code: RepositoryCode, use: CommandUse) -> Iterator[tuple[str, int, str]]:
    """(path, line, dotted name) of each module that a command's words name, and of those it imports when it runs.

    A program of another environment gets copies of them, so what they import of the repository belongs to it too."""
    for text in use.values:
        dotted = text.replace(":", ".")
        path = code.path(dotted) or code.path(dotted.rpartition(".")[0])
        if path is not None and "." in dotted:
            for each in imported_closure(code, path):
                yield each, 1, module_name(each)[0]


def imported_closure(code: RepositoryCode, path: str) -> list[str]:
    """A file and those of the repository that it imports when it runs, directly or not. Packages around them and
    imports for type checkers are left out."""
    found: list[str] = []
    waiting = [path]
    while waiting:
        current = waiting.pop(0)
        module = code.at(current)
        if current in found or module is None:
            continue
        found.append(current)
        for node in _run_imports(module.tree.body):
            names = [alias.name for alias in node.names]
            base = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            asked = [f"{base}.{name}" for name in names] if base else names
            for each in asked:
                named = code.path(each, current) or (code.path(base, current) if base else None)
                if named is not None:
                    waiting.append(named)
    return found


def _run_imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _run_imports(node.orelse)
        else:
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(node, name, [])
                if isinstance(inner, list):
                    yield from _run_imports([each for each in inner if isinstance(each, ast.stmt)])
