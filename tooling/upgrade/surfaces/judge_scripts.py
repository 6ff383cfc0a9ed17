"""The repository's own scripts whose flags are the fields of a release's classes.

    parser = HfArgumentParser((ScriptArguments, TrainingArguments))       # train.py
    torchrun --nproc_per_node 8 train.py --evaluation_strategy steps      # run.sh

A field that the class lost is a flag that the script refuses.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Evidence, Finding, Severity, Verdict
from tooling.upgrade.surfaces.commands_python import PythonCommands
from tooling.upgrade.surfaces.commands_text import docker_commands, shell_commands, yaml_commands
from tooling.upgrade.surfaces.modules import Definition, Module, Modules, dotted_name
from tooling.upgrade.surfaces.pair import What

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.surfaces.commands import Use, Word
    from tooling.upgrade.surfaces.pair import Pair
    from tooling.upgrade.surfaces.repository import SourceFile

_PARSERS = ("HfArgumentParser", "TrlParser")
Fields = dict[str, tuple[str, int, str]]


@dataclass(frozen=True, slots=True)
class Script:
    """A script with the fields that it has from old and new, and those of its own classes."""

    path: str
    old: Fields
    new: Fields
    own: frozenset[str]
    whole: bool
    """Whether all bases of the new classes are in sight."""
    lenient: bool
    """Whether it goes on with flags that it does not know."""


class Scripts:
    """Those of a repository, as programs of commands: by file name, or by module."""

    def __init__(self, files: Sequence[SourceFile], pair: Pair) -> None:
        found = [script for file in files if (script := _script(file, pair)) is not None]
        self.by_name: dict[str, list[Script]] = {}
        for script in found:
            self.by_name.setdefault(script.path.rpartition("/")[2], []).append(script)
        self.by_module = {script.path.removesuffix(".py").replace("/", "."): script for script in found}

    def is_script(self, name: str) -> bool:
        """Whether one of them has that file name."""
        return name in self.by_name

    def is_module(self, dotted: str) -> bool:
        """Whether `python -m dotted` runs one of them."""
        return dotted in self.by_module

    def of(self, use: Use, text: str) -> Script | None:
        """The one that a command runs; None if several could be meant."""
        if use.program in self.by_module:
            return self.by_module[use.program]
        parts = [part for part in text.split("/") if part not in {"", ".", ".."} and "$" not in part]
        same = self.by_name.get(use.program, [])
        best = [script for script in same if script.path.split("/")[-len(parts) :] == parts] or same
        return best[0] if len(best) == 1 else None


def judge_scripts(files: Sequence[SourceFile], pair: Pair) -> Iterator[Finding]:
    """Findings about flags in commands that run such scripts."""
    scripts = Scripts(files, pair)
    names = [name.encode() for name in (*scripts.by_name, *scripts.by_module)]
    for file in files if names else ():
        if any(name in file.content for name in names):
            for use in _commands(file, scripts):
                script = scripts.of(use, use.head.text)
                for word in use.flags if script is not None else ():
                    finding = _judge(file, word, script, pair) if script is not None else None
                    if finding is not None and pair.is_reached(file, word.line):
                        yield finding


def _commands(file: SourceFile, scripts: Scripts) -> list[Use]:
    if file.kind == "python":
        return PythonCommands(file.tree, scripts).found if file.tree is not None else []
    readers = {"shell": shell_commands, "docker": docker_commands, "yaml": yaml_commands}
    return readers[file.kind](file.text, scripts)


def _judge(file: SourceFile, word: Word, script: Script, pair: Pair) -> Finding | None:
    name = word.text.lstrip("-").replace("-", "_")
    if name not in script.old:
        name = name.removeprefix("no_")
    if name not in script.old or name in script.new or name in script.own:
        return None
    where, line, annotation = script.old[name]
    longer = [other for other in (*script.new, *script.own) if other.startswith(name)]
    if script.lenient or not script.whole or len(longer) == 1:
        severity, confidence = Severity.WARNING, 0.6
        fate = f"it passes as an abbreviation of --{longer[0]}" if len(longer) == 1 else "as far as can be seen"
    else:
        severity, confidence, fate = Severity.BREAKING, 0.85, "the script refuses it"
    message = (
        f"{script.path} takes its flags from classes of {pair.distribution}, and none has {name!r} any more: {fate}"
    )
    what = What(Verdict.CLI_FLAG, severity, f"{script.path} {word.text}", message, confidence)
    old = Evidence(where, line, f"{name}: {annotation}")
    return pair.finding(file, (word.line, word.column, word.end_line), what, old=old)


# ------------------------------------------------------------------------------------------------------------- scripts


def _script(file: SourceFile, pair: Pair) -> Script | None:
    if file.kind != "python" or not any(name.encode() in file.content for name in _PARSERS) or file.tree is None:
        return None
    module = Module(file.path.removesuffix(".py").replace("/", "."), file.path, file.tree)
    calls = [node for node in ast.walk(file.tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if (dotted_name(call.func) or "").rpartition(".")[2] in _PARSERS]
    classes = [each for call in made for each in _given(call)]
    if not classes:
        return None
    old, new, own, whole = _fields(classes, module, pair)
    if not old:
        return None
    texts = [ast.unparse(call) for call in calls if isinstance(call.func, ast.Attribute) and "parse" in call.func.attr]
    lenient = any("return_remaining_strings=True" in text or "parse_known_args" in text for text in texts)
    return Script(file.path, old, new, frozenset(own), whole, lenient)


def _given(call: ast.Call) -> list[ast.expr]:
    values = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "dataclass_types")]
    return [part for value in values for part in (value.elts if isinstance(value, ast.Tuple | ast.List) else [value])]


def _fields(classes: list[ast.expr], module: Module, pair: Pair) -> tuple[Fields, Fields, set[str], bool]:
    """Fields from the old and the new release, own ones, and whether nothing of the new is out of sight."""
    old: Fields = {}
    new: Fields = {}
    own: set[str] = set()
    whole = True
    waiting = list(classes)
    seen: set[str] = set()
    while waiting:
        name = dotted_name(waiting.pop()) or ""
        local = module.definitions.get(name)
        if name in seen:
            continue
        seen.add(name)
        if isinstance(local, ast.ClassDef):
            targets = [each.target for each in local.body if isinstance(each, ast.AnnAssign)]
            own |= {target.id for target in targets if isinstance(target, ast.Name)}
            waiting += local.bases
            continue
        head, _, rest = name.partition(".")
        dotted = ".".join([module.imports.get(head, ""), *([rest] if rest else [])])
        before, after = pair.old.find(dotted), pair.new.find(dotted)
        if before is None:
            # Of another package, or of another file: what it has is not known.
            whole = whole and name in {"object", "ABC"}
            continue
        old.update(pair.old.fields(before))
        if after is not None:
            new.update(pair.new.fields(after))
            whole = whole and _in_sight(pair.new, after)
    return old, new, own, whole


def _in_sight(modules: Modules, definition: Definition) -> bool:
    for each in modules.bases(definition):
        for base in getattr(each.node, "bases", []):
            if modules.named(base, each.module) is None and dotted_name(base) not in {"object", "ABC"}:
                return False
    return True
