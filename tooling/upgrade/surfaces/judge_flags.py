"""Commands of a repository against the parsers of two releases."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Evidence, Finding, Replacement, Severity, Verdict
from tooling.upgrade.surfaces.commands_python import PythonCommands
from tooling.upgrade.surfaces.commands_text import docker_commands, shell_commands, yaml_commands
from tooling.upgrade.surfaces.pair import What
from tooling.upgrade.surfaces.programs import Programs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.surfaces.commands import Use, Word
    from tooling.upgrade.surfaces.pair import Pair
    from tooling.upgrade.surfaces.parser_records import Flag
    from tooling.upgrade.surfaces.programs import Command
    from tooling.upgrade.surfaces.repository import SourceFile

_NAMED = re.compile(
    r"(?:use|prefer|renamed to|replaced by|in favou?r of)\W+(?:the\W+)?[`'\"]?(?P<name>--[a-z][\w-]*)", re.IGNORECASE
)


def judge_flags(files: Sequence[SourceFile], pair: Pair) -> Iterator[Finding]:
    """Findings about flags, sub-commands and programs."""
    old, new = Programs(pair.old, pair.store(pair.old)), Programs(pair.new, pair.store(pair.new))
    words = [name.encode() for name in pair.old.release.scripts()]
    words += [root.encode() + b"." for root in pair.old.release.roots()]
    for file in files:
        if not any(word in file.content for word in words):
            continue
        for use in _commands(file, old):
            if pair.is_reached(file, use.head.line):
                yield from _judge(file, use, old, new, pair)


def _commands(file: SourceFile, programs: Programs) -> list[Use]:
    if file.kind == "python":
        return PythonCommands(file.tree, programs).found if file.tree is not None else []
    readers = {"shell": shell_commands, "docker": docker_commands, "yaml": yaml_commands}
    return readers[file.kind](file.text, programs)


def _judge(file: SourceFile, use: Use, old: Programs, new: Programs, pair: Pair) -> Iterator[Finding]:
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
        finding = _judge_flag(file, use, word, before, after, pair)
        if finding is not None and pair.is_reached(file, word.line):
            yield finding


def _judge_flag(file: SourceFile, use: Use, word: Word, before: Command, after: Command, pair: Pair) -> Finding | None:
    known = before.accepts(word.text)
    if known is None or not known.flag.file:
        return None
    taken = after.accepts(word.text)
    symbol = f"{_shown(use, before)} {word.text}"
    old = Evidence(known.flag.file, known.flag.line, known.flag.source)
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
        what = What(Verdict.CLI_FLAG, severity, symbol, message, confidence)
        return pair.finding(file, place, what, old=old, replacement=_replacement(known.flag, after))
    new = Evidence(taken.flag.file, taken.flag.line, taken.flag.source)
    if taken.abbreviated and not known.abbreviated:
        message = f"{word.text} is gone, and passes as an abbreviation of {taken.flag.name} now"
        what = What(Verdict.CLI_FLAG, Severity.WARNING, symbol, message)
        replacement = Replacement(taken.flag.name, "the only flag that begins like it", certain=False)
        return pair.finding(file, place, what, old=old, new=new, replacement=replacement)
    if taken.flag.deprecated and not known.flag.deprecated:
        message = f"{word.text} is deprecated: {taken.flag.deprecated}"
        what = What(Verdict.DEPRECATED, Severity.WARNING, symbol, message)
        return pair.finding(file, place, what, old=old, new=new, replacement=_replacement(taken.flag, after))
    return None


def _refusal(after: Command) -> tuple[Severity, str, float]:
    if after.lenient:
        return Severity.WARNING, "; unknown flags are ignored there, so it has no effect", 0.8
    if after.unknown:
        place = after.unknown[0]
        return Severity.WARNING, f", as far as its parser can be read ({place} makes flags while running)", 0.6
    return Severity.BREAKING, ": the program refuses to start", 0.9


def _replacement(flag: Flag, after: Command) -> Replacement | None:
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


def _gone_program(file: SourceFile, use: Use, pair: Pair) -> Finding:
    release = pair.old.release
    is_script = use.program in release.scripts()
    where = "" if is_script else pair.old.paths.get(use.program, "")
    what = f"the program {use.program}" if is_script else f"the module {use.program}"
    old = Evidence(where, 1 if where else 0, release.scripts().get(use.program, f"python -m {use.program}"))
    place = (use.head.line, use.head.column, use.head.end_line)
    message = f"{what} is not part of {pair.distribution} {pair.new.release.origin.version}"
    return pair.finding(file, place, What(Verdict.REMOVED, Severity.BREAKING, use.program, message), old=old)


def _gone_subcommand(file: SourceFile, use: Use, before: Command, pair: Pair) -> Finding:
    name = _shown(use, before)
    place = (use.head.line, use.head.column, use.head.end_line)
    old = Evidence(pair.old.release.scripts().get(use.program, use.program), 0, name)
    message = f"`{name}` is not a command any more"
    return pair.finding(file, place, What(Verdict.CLI_FLAG, Severity.BREAKING, name, message), old=old)


def _shown(use: Use, command: Command) -> str:
    return " ".join([use.program, *use.words[: len(command.nodes) - 1]])
