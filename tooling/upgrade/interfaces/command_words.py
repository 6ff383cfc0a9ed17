"""The words that an expression gives to a command line, followed through variables, calls and files."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.python.source import FunctionNode, dotted_name
from tooling.upgrade.interfaces.code import HOLE
from tooling.upgrade.interfaces.command_frames import CommandFrame, CommandResult, CommandRow, joined_words
from tooling.upgrade.interfaces.commands import CommandWord, recognise, split_shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.source_modules import MeantNode
    from tooling.upgrade.interfaces.code import RepositoryCode
    from tooling.upgrade.interfaces.commands import KnownPrograms

_SAME_WORDS = frozenset({"chain", "from_iterable", "join", "list", "reversed", "shlex", "sorted", "split", "tuple"})
"""Calls that give the words of their arguments: list(x), shlex.split(x), " ".join(x), itertools.chain(x, y)."""
_PERCENT = re.compile(r"%[sdrif]")


class CommandWords:
    """Evaluates expressions. `called` is what follows a call into a function."""

    def __init__(self, code: RepositoryCode, programs: KnownPrograms) -> None:
        self.code = code
        self.programs = programs

    def called(self, node: ast.Call, frame: CommandFrame) -> CommandResult | None:
        """What a call gives; None for a function that is not the repository's."""
        raise NotImplementedError

    def module_frame(self, module_path: str) -> CommandFrame | None:
        """The variables of a module."""
        raise NotImplementedError

    def nested(self, node: ast.expr, frame: CommandFrame) -> None:
        """An element that may be a whole command itself."""
        raise NotImplementedError

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
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted_name(node.func)
        if name == "split" and isinstance(node.func, ast.Attribute) and self.text(node.func.value, frame):
            return self.words(node.func.value, frame)
        if name in _SAME_WORDS and node.args:
            found = [self.words(each.value if isinstance(each, ast.Starred) else each, frame) for each in node.args]
            return None if None in found else [word for words in found for word in words or ()]
        text = self.text(node, frame)
        return None if text is None else self.split(text, node, frame)

    def held(self, node: ast.Name | ast.Attribute, frame: CommandFrame) -> list[CommandWord] | None:
        """The words of a variable, an attribute, or a constant of this or another module."""
        name = dotted_name(node)
        rows = frame.rows_of(name)
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
            home = self.module_frame(found.module.path)
            rows = home.rows.get(name) if home is not None else None
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
                self.nested(node, frame)
            yield frame.word(HOLE, node)

    def text(self, node: ast.expr, frame: CommandFrame) -> str | None:
        """A string with holes for what is not constant."""
        owner = frame.within.owner if frame.within is not None else None
        if isinstance(node, ast.JoinedStr):
            parts = [
                str(each.value)
                if isinstance(each, ast.Constant)
                else (self.text(each.value, frame) if isinstance(each, ast.FormattedValue) else None) or HOLE
                for each in node.values
            ]
            return "".join(parts)
        if isinstance(node, ast.Name | ast.Attribute):
            name = dotted_name(node)
            known = frame.text_of(name)
            if known is not None or frame.rows_of(name) is not None:
                return known
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            base = self.text(node.left, frame)
            return _PERCENT.sub(HOLE, base) if base is not None else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.text(node.left, frame), self.text(node.right, frame)
            if left is None or right is None:
                literal = [isinstance(side, ast.Constant | ast.JoinedStr) for side in (node.left, node.right)]
                if not any(literal) or (left is None and right is None):
                    return None
            return (left if left is not None else HOLE) + (right if right is not None else HOLE)
        if isinstance(node, ast.Call):
            return self.text_of_call(node, frame)
        return self.code.text(node, frame.module, owner)

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
        known = frame.keys_of(name)
        if known is None and isinstance(node, ast.Name | ast.Attribute):
            owner = frame.within.owner if frame.within is not None and name.startswith("self.") else None
            found = self.code.attribute(owner, node.attr) if owner and isinstance(node, ast.Attribute) else None
            found = found or self.code.named(node, frame.module)
            if found is not None and isinstance(found.node, ast.Dict | ast.Call):
                home = self.module_frame(found.module.path)
                known = home.dicts.get(name.rpartition(".")[2]) if home is not None else None
                return known if known is not None else CommandFrame(found.module).literal_keys(found.node)
        return known

    def loop(self, target: ast.expr, source: ast.expr, frame: CommandFrame) -> None:
        """Binds the variables of a loop over a literal, or over a dict whose keys are known."""
        keys = self.keys(source, frame)
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        table = self.table(source, frame)
        if isinstance(table, ast.List | ast.Tuple | ast.Set):
            for column, name in enumerate(names):
                cells = [each.elts[column] for each in table.elts if isinstance(each, ast.Tuple | ast.List)
                         and column < len(each.elts)] if len(names) > 1 else table.elts  # fmt: skip
                values = [frame.word(text, cell) for cell in cells if (text := self.text(cell, frame)) is not None]
                if isinstance(name, ast.Name) and values:
                    frame.loops[name.id] = values
        if keys and isinstance(names[0], ast.Name):
            frame.loops[names[0].id] = keys
        if isinstance(table, ast.Dict) and len(names) == 2 and isinstance(names[1], ast.Name):
            values = [frame.word(text, each) for each in table.values if (text := self.text(each, frame)) is not None]
            if values:
                frame.loops[names[1].id] = values

    def table(self, node: ast.expr, frame: CommandFrame) -> ast.expr | None:
        """The literal that is looped over."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items":
            node = node.func.value
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            return node
        name = dotted_name(node)
        seen: CommandFrame | None = frame
        while seen is not None:
            if name in seen.tables:
                return seen.tables[name]
            seen = seen.parent
        found = self.code.named(node, frame.module) if isinstance(node, ast.Name | ast.Attribute) else None
        literal = found.node if found is not None else None
        return literal if isinstance(literal, ast.List | ast.Tuple | ast.Set | ast.Dict) else None

    def comprehended(self, node: ast.ListComp | ast.GeneratorExp, frame: CommandFrame) -> list[CommandWord] | None:
        """The words of all rounds; None where nothing of them is a flag that is known."""
        before = dict(frame.loops)
        for generator in node.generators:
            inner = generator.iter
            self.loop(generator.target, inner, frame)
            if isinstance(inner, ast.List | ast.Tuple) and isinstance(generator.target, ast.Name):
                frame.loops[generator.target.id] = [word for each in inner.elts for word in self.element(each, frame)]
        words = list(self.element(node.elt, frame))
        if isinstance(node.elt, ast.Name) and not words[0].text.startswith("-"):
            words = self.words(node.generators[-1].iter, frame) or []
        frame.loops = before
        return words if any(word.text.startswith("-") for word in words) else None

    def looped(self, node: ast.expr, frame: CommandFrame) -> list[CommandWord]:
        """`key`, f"--{key}" and "--" + key in a loop: the flag of each round; [] for anything else."""
        if isinstance(node, ast.Name):
            return frame.loops.get(node.id, [])
        prefix, inner = "", node
        if isinstance(node, ast.JoinedStr) and len(node.values) >= 2:
            first, second = node.values[:2]
            if isinstance(first, ast.Constant) and isinstance(second, ast.FormattedValue):
                prefix, inner = str(first.value), second.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):
            prefix, inner = str(node.left.value), node.right
        if prefix not in {"-", "--"}:
            return []
        names = [each.id for each in ast.walk(inner) if isinstance(each, ast.Name) and each.id in frame.loops]
        dashes = "replace" in ast.unparse(inner)
        return [
            replace(key, text=prefix + (key.text.replace("_", "-") if dashes else key.text))
            for name in names[:1]
            for key in frame.loops[name]
        ]
