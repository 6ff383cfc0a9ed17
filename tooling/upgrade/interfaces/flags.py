"""Judge the flags and console scripts that commands of a repository use."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.python.module import last_name
from tooling.python.source import children, dotted_name
from tooling.python.source_modules import as_class
from tooling.upgrade.findings import (
    AuditFinding,
    AuditSeverity,
    Evidence,
    FindingKind,
    InterfaceKind,
    Replacement,
    Unfollowed,
)
from tooling.upgrade.interfaces.code import HOLE, RepositoryCode
from tooling.upgrade.interfaces.commands import (
    docker_commands,
    recognise,
    settings_commands,
    shell_commands,
    split_shell,
    yaml_commands,
)
from tooling.upgrade.interfaces.commands_python import loaded_modules, python_commands
from tooling.upgrade.interfaces.pair import Remembered
from tooling.upgrade.interfaces.programs import ReleasePrograms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.module import Module
    from tooling.upgrade.interfaces.commands import CommandUse, CommandWord, KnownPrograms
    from tooling.upgrade.interfaces.pair import InterfacePair
    from tooling.upgrade.interfaces.parsers import Flag
    from tooling.upgrade.interfaces.programs import CheckedCommand
    from tooling.upgrade.interfaces.repository import RepositoryFile


_NAMED = re.compile(
    r"(?:use|prefer|renamed to|replaced by|in favou?r of)\W+(?:the\W+)?[`'\"]?(?P<name>--[a-z][\w-]*)", re.IGNORECASE
)
_IMPORTING = re.compile(r"^[ \t]*(?:from|import)[ \t].*$", re.MULTILINE)


def judge_flags(files: Sequence[RepositoryFile], pair: InterfacePair) -> Iterator[AuditFinding]:
    """Findings about flags, sub-commands and programs."""
    old, new = ReleasePrograms(pair.old, pair.store(pair.old)), ReleasePrograms(pair.new, pair.store(pair.new))
    code = RepositoryCode(files, Remembered(pair.remembered(f"commands of {pair.package}")))
    names = [*pair.old.release.scripts(), *pair.old.release.roots()]
    found = CommandsOfFiles(files, code, names, old, pair.old.release.digest())
    code.remembered.save()
    for use in found.uses:
        file = found.file(use.head)
        if pair.is_reached(file, use.head.line):
            _look(found, use, old, new, pair)
            yield from _judge(found, use, old, new, pair)


def _look(
    found: CommandsOfFiles, use: CommandUse, old: ReleasePrograms, new: ReleasePrograms, pair: InterfacePair
) -> None:
    """Count the flags of a command, the modules it has the program load, and what it may hold besides."""
    if not use.flags:
        return  # a name alone is mostly no command: ["vllm", "sglang"]
    before = old.command(use.program, use.words)
    shown = _shown(use, before) if before is not None else use.program
    for word in use.flags:
        known = before is None or before.accepts(word.text) is not None
        pair.look(InterfaceKind.FLAG, f"{shown} {word.text}", word.path, word.line, known=known)
    for word in found.open.get(id(use), []):
        what = f"{word.hidden}: may hold flags of {shown}"
        pair.unfollowed.add(Unfollowed(kind=InterfaceKind.FLAG, path=word.path, line=word.line, what=what))
    for path, line, dotted in loaded_modules(found.code, use):
        pair.look(InterfaceKind.PLUGIN, dotted, path, line)


class CommandsOfFiles:
    """The commands of a repository that run some of the known programs."""

    def __init__(
        self,
        files: Sequence[RepositoryFile],
        code: RepositoryCode,
        names: Sequence[str],
        programs: KnownPrograms,
        which: str,
    ) -> None:
        """names: how the names of programs begin; "vllm" is the beginning of the module "vllm.serve". which: tells
        these programs from others in what is remembered of the code."""
        self._files = {file.path: file for file in files}
        self.code = code
        self.uses: list[CommandUse] = []
        self.open: dict[int, list[CommandWord]] = {}
        if not names:
            return
        words = [name.encode() for name in names]
        named = [file for file in files if any(word in file.content for word in words)]
        which = hashlib.sha256(repr((which, sorted(names))).encode()).hexdigest()
        pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        spoken = re.compile(rf"(?<![\w.-])(?:{pattern})(?:\.\w+)*(?![\w.-])")

        def names_program(file: RepositoryFile) -> bool:
            key = f"names a program {which} {file.digest}"
            return code.remembered.answer(key, lambda: _names_program(file, spoken, programs))

        paths = [file.path for file in named if file.kind == "python" and names_program(file)]
        for use, places in python_commands(code, programs, paths, which):
            self.uses.append(use)
            self.open[id(use)] = places
        readers = {"shell": shell_commands, "docker": docker_commands, "yaml": yaml_commands}
        readers |= {"settings": settings_commands, "page": shell_commands}
        for file in named:
            if file.kind != "python":
                for use in readers[file.kind](file.text, programs):
                    flags = tuple(replace(word, path=file.path) for word in use.flags)
                    self.uses.append(replace(use, head=replace(use.head, path=file.path), flags=flags))

    def file(self, word: CommandWord) -> RepositoryFile:
        """The file of a word."""
        return self._files[word.path]


def _names_program(file: RepositoryFile, spoken: re.Pattern[str], programs: KnownPrograms) -> bool:
    """Whether a string of a Python file is a program's name, or has a command with one. Most files that mention a
    package only import it, or write about it: "transformers 5 is needed". The text is tested first, since that costs
    less than a tree."""

    def names(text: str) -> bool:
        return any(programs.is_script(each) or programs.is_module(each) for each in set(spoken.findall(text)))

    def runs(text: str) -> bool:
        commands = split_shell(f"{HOLE} {text}", 1)  # it may go on behind an interpreter that is not constant
        return names(text) and (" " not in text or any(recognise(row, programs) for row in commands))

    if not names(_IMPORTING.sub("", file.text)) or file.module is None:
        return False
    waiting: list[ast.AST] = [file.module.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and runs(node.value):
                return True
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            waiting += children(node)
    return False


def _judge(
    found: CommandsOfFiles, use: CommandUse, old: ReleasePrograms, new: ReleasePrograms, pair: InterfacePair
) -> Iterator[AuditFinding]:
    file = found.file(use.head)
    before, after = old.command(use.program, use.words), new.command(use.program, use.words)
    if not use.flags and old.is_script(use.program) and (before is None or len(before.nodes) < 2):
        return  # a name alone is mostly no command: ["vllm", "sglang"]
    if not (new.is_script(use.program) or new.is_module(use.program)):
        yield _gone_program(file, use, pair)
        return
    if before is None or after is None:
        return
    if before.known and not after.known and len(before.nodes) > 1:
        yield _gone_subcommand(file, use, before, pair)
        return
    for word in use.flags:
        place = found.file(word)
        finding = _judge_flag(place, use, word, before, after, pair)
        if finding is not None and pair.is_reached(place, word.line):
            yield finding


def _judge_flag(
    file: RepositoryFile,
    use: CommandUse,
    word: CommandWord,
    before: CheckedCommand,
    after: CheckedCommand,
    pair: InterfacePair,
) -> AuditFinding | None:
    known, was_abbreviated = before.accepts(word.text) or (None, False)
    if known is None or not known.file:
        return None
    taken, is_abbreviated = after.accepts(word.text) or (None, False)
    symbol = f"{_shown(use, before)} {word.text}"
    old = Evidence(known.file, known.line, known.source)
    place = (word.line, word.column, word.end_line)
    if taken is None:
        # Whether the new program takes its arguments apart in another way, which was not followed: a sub-command
        # that is
        # not seen any more, or a first parser that leaves the rest to a second one.
        lost = len(after.nodes) < len(before.nodes) and bool(after.unknown)
        if lost or (after.lenient and not before.lenient):
            return None
        severity, why, confidence = _refusal(after)
        message = f"`{_shown(use, before)}` has no {word.text} any more{why}"
        kind, instead = FindingKind.CLI_FLAG, _replacement(known, after)
        return pair.finding(
            file, place, kind, severity, symbol, message, old=old, confidence=confidence, replacement=instead
        )
    new = Evidence(taken.file, taken.line, taken.source)
    if is_abbreviated and not was_abbreviated:
        message = f"{word.text} is gone, and passes as an abbreviation of {taken.name} now"
        instead = Replacement(taken.name, "the only flag that begins like it", certain=False)
        kind = FindingKind.CLI_FLAG
    elif taken.deprecated and not known.deprecated:
        message = f"{word.text} is deprecated: {taken.deprecated}"
        kind, instead = FindingKind.DEPRECATED, _replacement(taken, after)
    else:
        return None
    severity = AuditSeverity.WARNING
    return pair.finding(file, place, kind, severity, symbol, message, old=old, new=new, replacement=instead)


def _refusal(after: CheckedCommand) -> tuple[AuditSeverity, str, float]:
    if after.lenient:
        return AuditSeverity.WARNING, "; unknown flags are ignored there, so it has no effect", 0.8
    if after.unknown:
        place = after.unknown[0]
        return AuditSeverity.WARNING, f", as far as its parser can be read ({place} makes flags while running)", 0.6
    return AuditSeverity.BREAKING, ": the program refuses to start", 0.9


def _replacement(flag: Flag, after: CheckedCommand) -> Replacement | None:
    """By what the flag's own deprecation said, or by an option that fills the same variable."""
    hit = _NAMED.search(flag.deprecated)
    if hit is not None and after.accepts(hit["name"]):
        return Replacement(hit["name"], "the old version's own advice", certain=False)
    same = [
        each for each in after.flags().values() if flag.dest and each.dest == flag.dest and each.name.startswith("--")
    ]
    if len({each.line for each in same}) == 1:
        return Replacement(same[0].name, "it fills the same variable", certain=True)
    return None


def _gone_program(file: RepositoryFile, use: CommandUse, pair: InterfacePair) -> AuditFinding:
    release = pair.old.release
    is_script = use.program in release.scripts()
    where = "" if is_script else pair.old.paths.get(use.program, "")
    what = f"the program {use.program}" if is_script else f"the module {use.program}"
    old = Evidence(where, 1 if where else 0, release.scripts().get(use.program, f"python -m {use.program}"))
    place = (use.head.line, use.head.column, use.head.end_line)
    message = f"{what} is not part of {pair.distribution} {pair.new.release.origin.version}"
    return pair.finding(file, place, FindingKind.REMOVED, AuditSeverity.BREAKING, use.program, message, old=old)


def _gone_subcommand(
    file: RepositoryFile, use: CommandUse, before: CheckedCommand, pair: InterfacePair
) -> AuditFinding:
    name = _shown(use, before)
    place = (use.head.line, use.head.column, use.head.end_line)
    old = Evidence(pair.old.release.scripts().get(use.program, use.program), 0, name)
    message = f"`{name}` is not a command any more"
    return pair.finding(file, place, FindingKind.CLI_FLAG, AuditSeverity.BREAKING, name, message, old=old)


def _shown(use: CommandUse, command: CheckedCommand) -> str:
    return " ".join([use.program, *use.words[: len(command.nodes) - 1]])


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

    def __init__(self, files: Sequence[RepositoryFile], pair: InterfacePair) -> None:
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

    def may_go_on(self, use: CommandUse) -> bool:
        """See `KnownPrograms`."""
        return True

    def of(self, use: CommandUse, text: str) -> Script | None:
        """The one that a command runs; None if several could be meant."""
        if use.program in self.by_module:
            return self.by_module[use.program]
        parts = [part for part in text.split("/") if part not in {"", ".", ".."} and "$" not in part]
        same = self.by_name.get(use.program, [])
        best = [script for script in same if script.path.split("/")[-len(parts) :] == parts] or same
        return best[0] if len(best) == 1 else None


def judge_scripts(files: Sequence[RepositoryFile], pair: InterfacePair) -> Iterator[AuditFinding]:
    """Findings about flags in commands that run such scripts."""
    scripts = Scripts(files, pair)
    names = [*scripts.by_name, *scripts.by_module]
    found = CommandsOfFiles(files, RepositoryCode(files), names, scripts, "scripts")
    for use in found.uses:
        script = scripts.of(use, use.head.text)
        for word in use.flags if script is not None else ():
            file = found.file(word)
            finding = _judge_option(file, word, script, pair) if script is not None else None
            if finding is not None and pair.is_reached(file, word.line):
                yield finding


def _judge_option(file: RepositoryFile, word: CommandWord, script: Script, pair: InterfacePair) -> AuditFinding | None:
    name = word.text.lstrip("-").replace("-", "_")
    if name not in script.old:
        name = name.removeprefix("no_")
    if name not in script.old or name in script.new or name in script.own:
        return None
    where, line, annotation = script.old[name]
    longer = [other for other in (*script.new, *script.own) if other.startswith(name)]
    if script.lenient or not script.whole or len(longer) == 1:
        severity, confidence = AuditSeverity.WARNING, 0.6
        fate = f"it passes as an abbreviation of --{longer[0]}" if len(longer) == 1 else "as far as can be seen"
    else:
        severity, confidence, fate = AuditSeverity.BREAKING, 0.85, "the script refuses it"
    message = (
        f"{script.path} takes its flags from classes of {pair.distribution}, and none has {name!r} any more: {fate}"
    )
    place, symbol = (word.line, word.column, word.end_line), f"{script.path} {word.text}"
    old = Evidence(where, line, f"{name}: {annotation}")
    return pair.finding(file, place, FindingKind.CLI_FLAG, severity, symbol, message, old=old, confidence=confidence)


# ------------------------------------------------------------------------------------------------------------- scripts


def _script(file: RepositoryFile, pair: InterfacePair) -> Script | None:
    module = file.module if any(name.encode() in file.content for name in _PARSERS) else None
    if module is None:
        return None
    calls = list(module.nodes(ast.Call))
    made = [call for call in calls if last_name(call.func) in _PARSERS]
    given = [
        value
        for call in made
        for value in (*call.args[:1], *(each.value for each in call.keywords if each.arg == "dataclass_types"))
    ]
    classes = [each for value in given for each in (value.elts if isinstance(value, ast.Tuple | ast.List) else [value])]
    if not classes:
        return None
    old, new, own, whole = _fields(classes, module, pair)
    if not old:
        return None
    texts = [ast.unparse(call) for call in calls if isinstance(call.func, ast.Attribute) and "parse" in call.func.attr]
    lenient = any("return_remaining_strings=True" in text or "parse_known_args" in text for text in texts)
    return Script(file.path, old, new, frozenset(own), whole, lenient)


def _fields(classes: list[ast.expr], module: Module, pair: InterfacePair) -> tuple[Fields, Fields, set[str], bool]:
    """Fields from the old and the new release, own ones, and whether nothing of the new is out of sight."""
    old: Fields = {}
    new: Fields = {}
    own: set[str] = set()
    whole = True
    waiting = list(classes)
    seen: set[str] = set()
    while waiting:
        name = dotted_name(waiting.pop())
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
        dotted = ".".join([module.imported.get(head, ""), *([rest] if rest else [])])
        before, after = as_class(pair.old.find(dotted)), as_class(pair.new.find(dotted))
        if before is None:
            # Of another package, or of another file: what it has is not known.
            whole = whole and name in {"object", "ABC"}
            continue
        old.update(pair.old.fields(before))
        if after is not None:
            new.update(pair.new.fields(after))
            bases = [(home, base) for home, node in pair.new.bases(after) for base in node.bases]
            whole = whole and all(
                pair.new.named(base, home) is not None or dotted_name(base) in {"object", "ABC"} for home, base in bases
            )
    return old, new, own, whole
