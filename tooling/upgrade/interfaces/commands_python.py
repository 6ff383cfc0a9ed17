"""Find command lines that Python code builds: in steps, in functions that call each other, in several files.

A function is read as it stands, and again with what each caller passes. A list that is passed on, or kept in an
attribute, stays one list: what any function adds to it belongs to the command. What cannot be followed is kept as a
place of the command that hides further words.
"""

from __future__ import annotations

import ast
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any

from tooling.python.source import FunctionNode, defined_names, dotted_name, module_name
from tooling.python.source_modules import NodeInModule
from tooling.upgrade.interfaces.command_calls import DEPTH, MOST_CALLS, CommandCalls
from tooling.upgrade.interfaces.command_frames import (
    MOST_HELD,
    MOST_ROWS,
    MOST_WORDS,
    CommandFrame,
    CommandObject,
    CommandResult,
    CommandRow,
    defaults_of,
)
from tooling.upgrade.interfaces.command_words import CommandWords
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
MOST_CALLS_IN_ALL = 100_000
"""Calls that are followed from all files together; from each no more than `MOST_CALLS`."""
_ROUNDS = 4
"""Importers of importers that are read for what they add to a command."""


_FileAnswer = tuple[list[tuple[Any, ...]], list[tuple[str, int, int]], bool, int]


class _CutShort(Exception):
    """Files before this one left it fewer calls than it needs. Its answer is good for this run alone."""

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
    left = MOST_CALLS_IN_ALL
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
    calls were followed. left: how many may be. Raises _CutShort."""
    reader = _FileCommands(code, programs, min(left, MOST_CALLS))
    reader.file(path)
    goes_on = any(map(programs.may_go_on, reader.found)) or reader.names_program(path)
    uses = [astuple(use) for use in dict.fromkeys(reader.found)]
    answer = uses, sorted(reader.followed), goes_on, reader.calls.spent
    if reader.calls.is_spent and left < MOST_CALLS:
        raise _CutShort(answer)
    return answer


class _FileCommands(CommandWords):
    """Follows what one file does with commands, through the others."""

    def __init__(self, code: RepositoryCode, programs: KnownPrograms, most: int) -> None:
        super().__init__(code, programs)
        self.calls = CommandCalls(self, self._run, most)
        self.followed = self.calls.followed
        self.found: list[CommandUse] = []
        self._frames: dict[str, CommandFrame] = {}

    def names_program(self, path: str) -> bool:
        """Whether a file has a constant that other files may run."""
        module = self.code.at(path)
        texts = [node.value for node in (module.values.values() if module else ()) if isinstance(node, ast.Constant)]
        return any(
            isinstance(text, str) and (self.programs.is_module(text) or self.programs.is_script(text)) for text in texts
        )

    def file(self, path: str) -> None:
        """Run everything in a file."""
        frame = self.module_frame(path)
        if frame is None:
            return
        self._definitions(frame.module.tree.body, frame)
        self._finish(frame)

    def module_frame(self, module_path: str) -> CommandFrame | None:
        """See `CommandWords`: the top level is run once."""
        if module_path not in self._frames:
            module = self.code.at(module_path)
            if module is None:
                return None
            frame = self._frames[module_path] = CommandFrame(module)
            self._block(module.tree.body, frame, ())
        return self._frames[module_path]

    def _definitions(self, body: list[ast.stmt], frame: CommandFrame) -> None:
        """Functions and classes, wherever they stand, each run by itself."""
        for node in body:
            if isinstance(node, FunctionNode):
                self._alone(node, frame)
            elif isinstance(node, ast.ClassDef):
                self._class(node, frame)
            else:
                for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                    inner = getattr(node, name, [])
                    for part in inner:
                        self._definitions([part] if isinstance(part, ast.stmt) else part.body, frame)

    def _alone(self, node: FunctionNode, frame: CommandFrame, within: CommandObject | None = None) -> None:
        inner = CommandFrame(frame.module, within or frame.within, frame.home, frame)
        for parameter in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if parameter.arg not in {"self", "cls"}:
                inner.rows[parameter.arg] = [CommandRow([inner.hidden(parameter)])]
        for name, value in defaults_of(node).items():
            self.calls.bind(name, value, frame, inner, quiet=True)
        self._run(node, inner)
        self._definitions(node.body, inner)

    def _run(self, node: FunctionNode, frame: CommandFrame) -> CommandResult:
        if id(node) in self.calls.running or len(self.calls.running) > DEPTH:
            return frame.result
        self.calls.running.append(id(node))
        self._block(node.body, frame, ())
        self._finish(frame)
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
        for rows in within.rows.values():
            for row in rows:
                self._recognise(row)
        self._definitions([each for each in node.body if isinstance(each, ast.ClassDef)], frame)

    def _finish(self, frame: CommandFrame) -> None:
        for rows in frame.rows.values():
            for row in rows:
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
        if isinstance(node, FunctionNode):
            frame.functions[node.name] = node
        elif isinstance(node, ast.ClassDef | ast.Raise | ast.Assert):
            return
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._assign(target, node.value, frame, block)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            self._grow(dotted_name(node.target), self._added(node.value, frame), frame)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
            self._grow_keys(dotted_name(node.target), self.keys(node.value, frame), frame)
        elif isinstance(node, ast.Return):
            self._return(node.value, frame)
        elif isinstance(node, ast.Expr):
            self._expression(node.value, frame)
        else:
            if isinstance(node, ast.For):
                self.loop(node.target, node.iter, frame)
            self._nested(node, frame, block)

    def _nested(self, node: ast.stmt, frame: CommandFrame, block: tuple[int, ...]) -> None:
        for name, part in ast.iter_fields(node):
            if isinstance(part, ast.expr):
                self._expression(part, frame)
            for each in part if isinstance(part, list) else ():
                if isinstance(each, ast.stmt):
                    self._statement(each, frame, (*block, hash((id(node), name))))
                elif isinstance(each, ast.ExceptHandler | ast.match_case):
                    self._block(each.body, frame, (*block, id(each)))
                elif isinstance(each, ast.withitem):
                    self._expression(each.context_expr, frame)

    def _return(self, value: ast.expr | None, frame: CommandFrame) -> None:
        if value is None:
            return
        text, keys = self.text(value, frame), self.keys(value, frame)
        frame.result.keys += keys or []
        if text is not None and " " not in text:
            frame.result.texts.append(text)
            return
        if isinstance(value, ast.Tuple) and not any(self.text(each, frame) for each in value.elts):
            parts = [self.rows(each, frame) if not isinstance(each, ast.Starred) else [] for each in value.elts]
            frame.result.parts = parts
            for row in [row for rows in parts for row in rows]:
                self._recognise(row)
        rows = self.rows(value, frame)
        frame.result.rows[:] = [*frame.result.rows, *rows][-MOST_ROWS:]
        for row in rows:
            self._recognise(row)
        if not rows and keys is None:
            self._expression(value, frame)

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
            frame.objects[name] = made
        self._assign_rows(name, value, self.rows(value, frame), frame, block)
        keys = self.keys(value, frame)
        if keys is not None:
            frame.keep_keys(name, list(keys))
        if isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Dict):
            frame.tables[name] = value

    def _assign_rows(
        self, name: str, value: ast.expr, rows: list[CommandRow], frame: CommandFrame, block: tuple[int, ...]
    ) -> None:
        """Those of other branches stay alternatives; those that are replaced were commands as they were."""
        text = self.text(value, frame)
        texts = frame.within.texts if frame.within is not None and name.startswith("self.") else frame.texts
        if text is not None and " " not in text:
            texts[name] = text
            return
        texts.pop(name, None)
        if not rows:
            self._expression(value, frame)
            return
        present = frame.rows_of(name) or []
        name_of_one = (dotted_name(value)) if len(rows) == 1 else ""
        shared = frame.rows_of(name_of_one) if name_of_one else None
        made = shared or [CommandRow(list(row.words), block) for row in rows]
        kept = [*(row for row in present if row.block[: len(block)] != block), *made][-MOST_ROWS:]
        for row in present:
            if row not in kept:
                self._recognise(row)
        frame.keep_rows(name, kept)

    def _unpack(self, targets: list[ast.expr], value: ast.expr, frame: CommandFrame, block: tuple[int, ...]) -> None:
        """`arguments, environment = command(...)`, `a, b = x, y`."""
        if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
            for target, each in zip(targets, value.elts, strict=True):
                self._assign(target, each, frame, block)
            return
        result = self.called(value, frame) if isinstance(value, ast.Call) else None
        for target, rows in zip(targets, result.parts if result is not None else [], strict=False):
            name = dotted_name(target)
            if name and rows:
                frame.keep_rows(name, [CommandRow(list(row.words), block) for row in rows])
        if result is None:
            self._expression(value, frame)

    def _subscript(self, target: ast.Subscript, value: ast.expr, frame: CommandFrame) -> None:
        """`options["port"] = 1`."""
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            word = frame.word(target.slice.value, target.slice)
            self._grow_keys(dotted_name(target.value), [word], frame)
        self._expression(value, frame)

    def _grow_keys(self, name: str, keys: list[CommandWord] | None, frame: CommandFrame) -> None:
        present = frame.keys_of(name)
        if present is not None:
            present += keys or []

    def _added(self, node: ast.expr, frame: CommandFrame) -> list[CommandWord]:
        words = self.words(node, frame)
        return [frame.hidden(node)] if words is None else words

    def _grow(self, name: str, words: list[CommandWord], frame: CommandFrame, *, first: bool = False) -> None:
        for row in frame.rows_of(name) or []:
            if len(row.words) < MOST_HELD:
                row.words[:] = [*words, *row.words] if first else [*row.words, *words]

    # ------------------------------------------------------------------------------------------------ expressions

    def called(self, node: ast.Call, frame: CommandFrame) -> CommandResult | None:
        """See `CommandWords`."""
        return self.calls.called(node, frame)

    def nested(self, node: ast.expr, frame: CommandFrame) -> None:
        """See `CommandWords`."""
        self._expression(node, frame)

    def _expression(self, node: ast.expr, frame: CommandFrame) -> None:
        """Lists and strings that are used where they stand, and methods that make lists longer."""
        if isinstance(node, ast.Constant | ast.Name):
            return  # a docstring, or nothing
        if isinstance(node, ast.Yield | ast.YieldFrom) and node.value is not None:
            one = isinstance(node, ast.Yield)
            words = list(self.element(node.value, frame)) if one else self._added(node.value, frame)
            if not frame.result.rows:
                frame.result.rows.append(CommandRow([]))
            frame.result.rows[0].words[:] = [*frame.result.rows[0].words, *words][:MOST_HELD]
            return
        if isinstance(node, ast.Call):
            self._call(node, frame)
            return
        rows = self.rows(node, frame)
        for row in rows:
            self._recognise(row)
        if isinstance(node, ast.List | ast.Tuple) or not rows:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr) and not isinstance(child, ast.Constant):
                    self._expression(child, frame)

    def _call(self, node: ast.Call, frame: CommandFrame) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted_name(node.func)
        if name in _TALK:
            return
        if isinstance(node.func, ast.Attribute):
            receiver = dotted_name(node.func.value)
            if name in {"append", "insert", "extend"} and frame.rows_of(receiver) is not None and node.args:
                value = node.args[-1]
                words = self._added(value, frame) if name == "extend" else list(self.element(value, frame))
                at_front = name == "insert" and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
                self._grow(receiver, words, frame, first=at_front)
                return
            if name == "update" and frame.keys_of(receiver) is not None:
                named = [CommandWord(each.arg, each.value.lineno, each.col_offset, path=frame.module.path)
                         for each in node.keywords if each.arg]  # fmt: skip
                given = [key for each in node.args for key in self.keys(each, frame) or []]
                self._grow_keys(receiver, [*named, *given], frame)
                return
            self._expression(node.func.value, frame)
        result = self.called(node, frame)
        for row in result.rows if result is not None else ():
            self._recognise(row)
        for each in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self._argument(each, frame)
        if result is None:
            self._built_elsewhere(node, frame)

    def _built_elsewhere(self, node: ast.Call, frame: CommandFrame) -> None:
        """`build_command("sglang.launch_server", options)`: a module's name beside a dict of options."""
        texts = [each for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        modules = [each for each in texts if "." in str(each.value) and self.programs.is_module(str(each.value))]
        if len(modules) != 1:
            return
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        keys = [key for each in values for key in self.keys(each, frame) or []]
        flags = [
            CommandWord(f"--{key.text.replace('_', '-')}", key.line, key.column, key.end_line, key.path) for key in keys
        ]
        if flags:
            head = frame.word("", modules[0])
            self.found.append(CommandUse(str(modules[0].value), head, (), tuple(flags)))

    def _argument(self, node: ast.expr, frame: CommandFrame) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for words in split_shell(node.value, node.lineno):
                placed = [CommandWord(word.text, word.line, word.column, word.end_line, frame.module.path)
                          for word in words]  # fmt: skip
                self._recognise(CommandRow(placed))
            return
        self._expression(node.value if isinstance(node, ast.Starred) else node, frame)


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
