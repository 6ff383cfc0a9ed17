"""Find command lines that Python code builds."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tooling.upgrade.interfaces.commands import HOLE, CommandUse, CommandWord, recognise, split_shell
from tooling.upgrade.interfaces.modules import ModuleDefinition, ReleaseModule, ReleaseModules, dotted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tooling.upgrade.interfaces.commands import KnownPrograms


Made = dict[str, tuple[str, int, bool]]
"""Flag to (file, line, whether its field is a bool)."""


class FrameLike(Protocol):
    """What is needed of the function around the loop."""

    modules: ReleaseModules
    module: ReleaseModule
    owner: ModuleDefinition | None
    values: dict[str, ast.expr]
    loops: list[ast.For | ast.comprehension]


def looped_flags(frame: FrameLike, call: ast.Call) -> Made | None:
    """The flags of `add_argument(f"--{name}")` inside loops; None if they cannot be read off."""
    spelling = next((_spelling(each) for each in call.args if _spelling(each) is not None), None)
    if spelling is None:
        return None  # `add_argument(*names, **options)`: the names come from somewhere else
    variable, write = spelling
    for loop in reversed(frame.loops):
        if variable.split(".")[0] in {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}:
            literal = _literal(frame, loop.iter)
            if literal is not None and all(write(name).startswith("-") for name in literal):
                return {write(name): (frame.module.path, loop.iter.lineno, False) for name in literal}
            classes = _classes(frame, loop.iter, 0)
            if len({id(each.node) for each in classes}) != 1:
                return None
            if not write("x").startswith("-"):
                return None
            fields = frame.modules.fields(classes[0])
            return {
                write(name): (file, line, kind in {"bool", "Optional[bool]", "bool | None"})
                for name, (file, line, kind) in fields.items()
            } or None
    return None


def _spelling(node: ast.expr) -> tuple[str, Callable[[str], str]] | None:
    """(variable, how a flag is written from its value) of f"--{name}", f"--{name.replace('_', '-')}", "--" + name, and
    of `name` itself."""
    prefix, inner = "", None
    if isinstance(node, ast.Name):
        return node.id, str
    if isinstance(node, ast.JoinedStr) and len(node.values) == 2:
        first, second = node.values
        if isinstance(first, ast.Constant) and isinstance(second, ast.FormattedValue):
            prefix, inner = str(first.value), second.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):
        prefix, inner = str(node.left.value), node.right
    if inner is None or not prefix.startswith("-"):
        return None
    dashes = False
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "replace":
        dashes = [each.value for each in inner.args if isinstance(each, ast.Constant)] == ["_", "-"]
        inner = inner.func.value
    variable = dotted_name(inner)
    if variable is None:
        return None
    return variable, lambda name: prefix + (name.replace("_", "-") if dashes else name)


def _literal(frame: FrameLike, node: ast.expr) -> Sequence[str] | None:
    if isinstance(node, ast.Name) and node.id in frame.values:
        node = frame.values[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"items", "keys"}:
        node = frame.values.get(dotted_name(node.func.value) or "", node.func.value)
    parts: Sequence[ast.expr | None] = []
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in node.elts]
    elif isinstance(node, ast.Dict):
        parts = node.keys
    names = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return names if names and len(names) == len(parts) else None


def _classes(frame: FrameLike, node: ast.expr, depth: int) -> list[ModuleDefinition]:
    """Classes with fields that an expression mentions, local variables followed to what they were assigned."""
    found: list[ModuleDefinition] = []
    if depth > 4:
        return found
    for each in ast.walk(node):
        if not isinstance(each, ast.Name):
            continue
        if each.id == "cls" and frame.owner is not None:
            found.append(frame.owner)
        elif each.id in frame.values and frame.values[each.id] is not node:
            found += _classes(frame, frame.values[each.id], depth + 1)
        else:
            definition = frame.modules.named(each, frame.module)
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                found.append(definition)
    return found


_TALK = frozenset(
    {
        "add_argument",
        "critical",
        "debug",
        "echo",
        "error",
        "exception",
        "fail",
        "info",
        "log",
        "print",
        "warn",
        "warning",
    }
)
"""Calls whose strings are read by people."""
_MOST_WORDS = 400


@dataclass(slots=True)
class _CommandRow:
    """A list or string that is being built."""

    words: list[CommandWord]
    block: tuple[int, ...]
    text: bool = False
    """It is one string, not a list."""


@dataclass(slots=True)
class _LoopScope:
    rows: dict[str, list[_CommandRow]] = field(default_factory=dict)
    dicts: dict[str, list[CommandWord]] = field(default_factory=dict)
    """Literal dicts: their keys."""
    loops: dict[str, list[CommandWord]] = field(default_factory=dict)
    """Variables of loops over such dicts."""


class PythonCommands:
    """The commands of one file."""

    def __init__(self, tree: ast.Module, programs: KnownPrograms) -> None:
        self.programs = programs
        self.found: list[CommandUse] = []
        self._module = _LoopScope()
        self._seen: set[tuple[int, int]] = set()
        self._scope(tree.body, self._module, ())

    def _scope(self, body: list[ast.stmt], scope: _LoopScope, block: tuple[int, ...]) -> None:
        self._block(body, scope, block)
        for rows in scope.rows.values():
            for row in rows:
                self._recognise(row)

    def _recognise(self, row: _CommandRow) -> None:
        use = recognise(row.words[:_MOST_WORDS], self.programs)
        if use is not None:
            self.found.append(use)

    # ------------------------------------------------------------------------------------------------- statements

    def _block(self, body: list[ast.stmt], scope: _LoopScope, block: tuple[int, ...]) -> None:
        for node in body:
            self._statement(node, scope, block)

    def _statement(self, node: ast.stmt, scope: _LoopScope, block: tuple[int, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._scope(node.body, _LoopScope(), (id(node),))
        elif isinstance(node, ast.ClassDef):
            self._block(node.body, _LoopScope(), (id(node),))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self._assign([name for target in targets if (name := dotted_name(target))], node.value, scope, block)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            self._grow(dotted_name(node.target) or "", self._words(node.value, scope), scope, block)
        elif isinstance(node, ast.Expr):
            self._expression(node.value, scope, block)
        else:
            if isinstance(node, ast.For):
                # `for key, value in options.items()`: the keys of a literal dict
                keys = self._keys(node.iter, scope)
                target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
                if keys and isinstance(target, ast.Name):
                    scope.loops[target.id] = keys
            self._nested(node, scope, block)

    def _keys(self, node: ast.expr, scope: _LoopScope) -> list[CommandWord]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"items", "keys"}:
            node = node.func.value
        name = dotted_name(node) or ""
        return _dict_keys(node) or scope.dicts.get(name) or self._module.dicts.get(name) or []

    def _nested(self, node: ast.stmt, scope: _LoopScope, block: tuple[int, ...]) -> None:
        if isinstance(node, ast.Raise | ast.Assert):
            return
        for name, part in ast.iter_fields(node):
            if isinstance(part, ast.expr):
                self._expression(part, scope, block)
            elif isinstance(part, list):
                for each in part:
                    if isinstance(each, ast.stmt):
                        self._statement(each, scope, (*block, hash((id(node), name))))
                    elif isinstance(each, ast.ExceptHandler | ast.match_case):
                        self._block(each.body, scope, (*block, id(each)))

    def _assign(self, names: list[str], value: ast.expr, scope: _LoopScope, block: tuple[int, ...]) -> None:
        keys = _dict_keys(value)
        for name in names:
            if keys is not None:
                scope.dicts[name] = keys
            row = self._row(value, scope, block)
            if row is None:
                continue
            kept = [other for other in scope.rows.get(name, []) if other.block[: len(block)] != block]
            for other in scope.rows.get(name, []):
                if other not in kept:
                    self._recognise(other)
            scope.rows[name] = [*kept, row]
        if keys is None and self._row(value, scope, block) is None:
            self._expression(value, scope, block)

    def _grow(self, name: str, words: list[CommandWord] | None, scope: _LoopScope, block: tuple[int, ...]) -> None:
        for row in scope.rows.get(name, []):
            row.words += words or []

    # ------------------------------------------------------------------------------------------------ expressions

    def _expression(self, node: ast.expr, scope: _LoopScope, block: tuple[int, ...]) -> None:
        """Lists and strings that are used where they stand, and methods that make lists longer."""
        if isinstance(node, ast.Constant):
            return  # a docstring, or nothing
        if isinstance(node, ast.Call):
            self._call(node, scope, block)
            return
        row = self._row(node, scope, block)
        if row is not None:
            self._recognise(row)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child, scope, block)

    def _call(self, node: ast.Call, scope: _LoopScope, block: tuple[int, ...]) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted_name(node.func) or ""
        if name in _TALK:
            return
        if isinstance(node.func, ast.Attribute):
            receiver = dotted_name(node.func.value) or ""
            if name in {"append", "insert", "extend"} and receiver in scope.rows and node.args:
                value = node.args[-1]
                words = self._words(value, scope)
                if name != "extend" and words is None:
                    words = [_word(HOLE, value)]
                self._grow(receiver, words, scope, block)
                return
            self._expression(node.func.value, scope, block)
        for each in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self._argument(each, scope, block)
        # `build_command("sglang.launch_server", options)`: a module's name beside a dict of options
        texts = [each for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        modules = [each for each in texts if "." in str(each.value) and self.programs.is_module(str(each.value))]
        if len(modules) != 1:
            return
        keys: list[CommandWord] = []
        for each in [*node.args, *(keyword.value for keyword in node.keywords)]:
            keys += _dict_keys(each) or scope.dicts.get(dotted_name(each) or "", [])
        flags = [CommandWord(f"--{key.text.replace('_', '-')}", key.line, key.column, key.end_line) for key in keys]
        if flags:
            self.found.append(CommandUse(str(modules[0].value), _word("", modules[0]), (), tuple(flags)))

    def _argument(self, node: ast.expr, scope: _LoopScope, block: tuple[int, ...]) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for words in split_shell(node.value, node.lineno):
                self._recognise(_CommandRow(words, block))
            return
        self._expression(node, scope, block)

    def _row(self, node: ast.expr, scope: _LoopScope, block: tuple[int, ...]) -> _CommandRow | None:
        words = self._words(node, scope)
        return None if words is None else _CommandRow(list(words), block)

    def _words(self, node: ast.expr, scope: _LoopScope) -> list[CommandWord] | None:
        """The words of a list or string expression; None for anything else."""
        if isinstance(node, ast.List | ast.Tuple):
            return [word for each in node.elts for word in self._element(each, scope)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._words(node.left, scope), self._words(node.right, scope)
            if left is None and right is None:
                return None
            return [*(left or []), *(right or [])]
        if isinstance(node, ast.IfExp):
            sides = [self._words(side, scope) for side in (node.body, node.orelse)]
            return [word for side in sides for word in side or []] if any(sides) else None
        if isinstance(node, ast.ListComp):
            return self._comprehended(node, scope)
        if isinstance(node, ast.Name | ast.Attribute):
            rows = scope.rows.get(dotted_name(node) or "") or self._module.rows.get(dotted_name(node) or "")
            return list(rows[-1].words) if rows else None
        text = _text(node)
        if text is None:
            return None
        commands = list(split_shell(text, node.lineno))
        first = next((index for index, words in enumerate(commands) if recognise(words, self.programs)), None)
        return [word for words in commands[first:] for word in words] if first is not None else (commands or [[]])[-1]

    def _element(self, node: ast.expr, scope: _LoopScope) -> Iterator[CommandWord]:
        if isinstance(node, ast.Starred):
            yield from self._words(node.value, scope) or []
            return
        made = _made_of(node, scope)
        if made:
            yield from made
            return
        text = _text(node)
        if text is not None:
            # An element is one word; "vllm serve x" in a list is what `bash -c` is given.
            if " " in text and any(True for words in split_shell(text, 0) if recognise(words, self.programs)):
                for words in split_shell(text, node.lineno):
                    yield from words
            else:
                yield CommandWord(text, node.lineno, node.col_offset, node.end_lineno or node.lineno)
        elif dotted_name(node) == "sys.executable":
            yield _word("python", node)
        else:
            yield _word(HOLE, node)

    def _comprehended(self, node: ast.ListComp, scope: _LoopScope) -> list[CommandWord] | None:
        """[f"--{key}" for key, value in options.items()]: the keys of a literal dict."""
        for generator in node.generators:
            keys = self._keys(generator.iter, scope)
            if keys and "--" in ast.unparse(node.elt):
                dashes = "replace" in ast.unparse(node.elt)
                return [_flag_of(key, dashes=dashes) for key in keys]
        return None


def _made_of(node: ast.expr, scope: _LoopScope) -> list[CommandWord]:
    """f"--{key}" in a loop over a literal dict."""
    if not isinstance(node, ast.JoinedStr) or len(node.values) < 2:
        return []
    first, second = node.values[:2]
    if not isinstance(first, ast.Constant) or first.value != "--" or not isinstance(second, ast.FormattedValue):
        return []
    names = {each.id for each in ast.walk(second.value) if isinstance(each, ast.Name)}
    keys = next((scope.loops[name] for name in names if name in scope.loops), [])
    return [_flag_of(key, dashes="replace" in ast.unparse(second.value)) for key in keys]


def _flag_of(key: CommandWord, *, dashes: bool) -> CommandWord:
    text = key.text.replace("_", "-") if dashes else key.text
    return CommandWord(f"--{text}", key.line, key.column, key.end_line)


def _word(text: str, node: ast.expr) -> CommandWord:
    return CommandWord(text, node.lineno, node.col_offset, node.end_lineno or node.lineno)


def _dict_keys(node: ast.expr) -> list[CommandWord] | None:
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        return [_word(str(key.value), key) for key in keys]
    if isinstance(node, ast.Call) and dotted_name(node.func) == "dict" and not node.args:
        return [CommandWord(each.arg, each.value.lineno, each.col_offset) for each in node.keywords if each.arg]
    return None


def _text(node: ast.expr) -> str | None:
    """A string with holes for what is not constant."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else HOLE for each in node.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"format", "strip"}:
        base = _text(node.func.value)
        return base.replace("{}", HOLE) if base is not None else None
    return None
