"""Find command lines in shell, Make, Docker and YAML text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tooling.upgrade.interfaces.code import HOLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class KnownPrograms(Protocol):
    """What a command may run."""

    def is_script(self, name: str) -> bool:
        """Whether a program has that name."""
        ...

    def is_module(self, dotted: str) -> bool:
        """Whether `python -m` runs it."""
        ...

    def may_go_on(self, use: CommandUse) -> bool:
        """Whether other files may give a command more flags: not where a list only begins with a program's name."""
        ...


_WRAPPERS = frozenset(
    {"-c", "bash", "env", "exec", "nice", "nohup", "pixi", "poetry", "run", "sh", "stdbuf", "sudo"}
) | {"time", "timeout", "uv"}
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "docker", "exec", "launch", "mpirun", "ray", "srun", "torchrun"})
_PYTHON = re.compile(rf"(?:.*/)?(?:python|pypy)[\d.]*$|.*{HOLE}.*")
_NUMBER = re.compile(r"\d+(\.\d+)?[smhd]?$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FLAG = re.compile(r"(?P<name>--?[A-Za-z][\w.+-]*)(?:=.*)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandWord:
    """One word of a command, with its place."""

    text: str
    line: int
    column: int = 0
    end_line: int = 0
    path: str = ""
    """Its file; empty for the file that is read."""
    hidden: str = ""
    """Source of an expression that may hold further words, which are not known."""


@dataclass(frozen=True, slots=True)
class CommandUse:
    """A program of the release with the flags it is given."""

    program: str
    """Script, or dotted module."""
    head: CommandWord
    words: tuple[str, ...]
    """Positional words right after the program."""
    flags: tuple[CommandWord, ...]
    """Text is the flag alone, without "=value"."""
    hidden: tuple[CommandWord, ...] = ()
    """Places that may give it further flags."""
    values: tuple[str, ...] = ()
    """Its other constant words: what flags are given."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> CommandUse:
        """Made again from what `astuple` made of it."""
        program, head, words, flags, hidden, values = row
        flags, hidden = (tuple(CommandWord(*each) for each in group) for group in (flags, hidden))
        return cls(program, CommandWord(*head), words, flags, hidden, values)


def recognise(words: Sequence[CommandWord], programs: KnownPrograms) -> CommandUse | None:
    """The command as a use; None if its program is none of the release's."""
    for index, word in enumerate(words):
        text = word.text
        name: str | None
        if index and words[index - 1].text in {"-m", "--module"} and programs.is_module(text):
            name = text
        else:
            script = text.rpartition("/")[2]
            name = script if programs.is_script(script) and HOLE not in text else None
        if name is not None:
            return _use(name, word, words[index + 1 :])
        if not _passes(word.text, index, words):
            return None
    return None


def _passes(text: str, index: int, words: Sequence[CommandWord]) -> bool:
    """Whether the program may still come after this word."""
    if _runs_others(text):
        return True
    # Options, and what follows them, pass only behind something that runs other programs.
    previous = words[index - 1].text if index else ""
    plain = text.startswith("-") or previous.startswith("-") or _NUMBER.match(text) is not None
    return index > 0 and _runs_others(words[0].text) and plain


def _runs_others(text: str) -> bool:
    name = text.rpartition("/")[2]
    return name in _WRAPPERS | _LAUNCHERS or bool(_ASSIGNMENT.match(text) or _PYTHON.match(text))


def _use(program: str, head: CommandWord, rest: Sequence[CommandWord]) -> CommandUse:
    words: list[str] = []
    flags: list[CommandWord] = []
    for word in rest:
        hit = _FLAG.match(word.text)
        if hit is not None and HOLE not in hit["name"]:
            flags.append(replace(word, text=hit["name"]))
        elif not flags:
            words.append(word.text)
    hidden = tuple(word for word in rest if word.hidden)
    values = tuple(word.text.rpartition("=")[2] for word in rest if HOLE not in word.text)
    return CommandUse(program, head, tuple(words), tuple(flags), hidden, values)


_TOKEN = re.compile(r"(?:[^\s\"']|\"(?:[^\"\\]|\\.)*\"|'[^']*')+")
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'")
_SEPARATOR = re.compile(r"&&|\|\||[;|]|(?<![>&])&(?![>&\d])|(?<!\\)\n")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")


def split_shell(text: str, line: int) -> Iterable[list[CommandWord]]:
    """The commands of a shell text, in order. Lines continued by a backslash are one; places are kept."""
    flat = _COMMENT.sub(lambda hit: " " * len(hit[0]), text)
    flat = re.sub(r"\\\r?\n", lambda hit: " " * len(hit[0]), flat)
    start = 0
    for end in [*(hit.start() for hit in _SEPARATOR.finditer(flat)), len(flat)]:
        row = [
            CommandWord(
                _QUOTED.sub(lambda part: part[1] if part[1] is not None else part[2], hit[0]),
                line + text.count("\n", 0, hit.start()),
            )
            for hit in _TOKEN.finditer(flat, start, end)
        ]
        if row:
            row[0] = CommandWord(row[0].text.lstrip("&|;("), row[0].line)
            yield [word for word in row if word.text]
        start = end


_ASSIGNED = r"^[ \t]*(?:local |export |declare -a )?(?P<name>\w+)(?P<more>\+?)="
_ARRAY = re.compile(_ASSIGNED + r"\((?P<body>[^)]*)\)", re.MULTILINE)
_TEXT = re.compile(_ASSIGNED + r"(?P<quote>[\"'])(?P<body>.*?)(?P=quote)", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"^\$\{?(?P<name>\w+)(?:\[[@*]\])?\}?$")
_EXEC = re.compile(r"^[ \t]*(?:CMD|ENTRYPOINT)[ \t]+(?P<row>\[[^\]]*\])", re.MULTILINE)
_INSTRUCTION = re.compile(r"^[ \t]*(?P<name>CMD|ENTRYPOINT|RUN)[ \t]+(?!\[)", re.MULTILINE)
_MOST_NODES = 50_000


def shell_commands(text: str, programs: KnownPrograms) -> list[CommandUse]:
    """Of a script. Variables that hold flags count where a command mentions them."""
    held = _held(text)
    found = []
    for words in split_shell(text, 1):
        use = recognise([each for word in words for each in _expanded(word, held)], programs)
        if use is not None:
            found.append(use)
    return found


def _held(text: str) -> dict[str, list[CommandWord]]:
    found: dict[str, list[CommandWord]] = {}
    hits = [*_ARRAY.finditer(text), *_TEXT.finditer(text)]
    for hit in sorted(hits, key=lambda each: each.start()):
        line = text.count("\n", 0, hit.start("body")) + 1
        words = [word for row in split_shell(hit["body"].replace("\n", " \\\n"), line) for word in row]
        if any(word.text.startswith("-") for word in words):
            found[hit["name"]] = [*(found.get(hit["name"], []) if hit["more"] else []), *words]
    return found


def _expanded(word: CommandWord, held: dict[str, list[CommandWord]]) -> list[CommandWord]:
    hit = _VARIABLE.match(word.text)
    return held.get(hit["name"], [word]) if hit else [word]


def docker_commands(text: str, programs: KnownPrograms) -> list[CommandUse]:
    """Of a Dockerfile: CMD and ENTRYPOINT as rows (one after the other, if both), and shell forms."""
    found = []
    rows = [words for hit in _EXEC.finditer(text) if (words := _json_row(text, hit))]
    joined = [word for row in rows for word in row]
    for row in [*rows, *([joined] if len(rows) == 2 else [])]:
        use = recognise(row, programs)
        if use is not None and use not in found:
            found.append(use)
    if len(found) > 1 and len(rows) == 2:
        found = found[-1:]
    blanked = _INSTRUCTION.sub(lambda hit: " " * len(hit[0]), text)
    return [*found, *shell_commands(blanked, programs)]


def _json_row(text: str, hit: re.Match[str]) -> list[CommandWord]:
    try:
        words = json.loads(hit["row"].replace("\\\n", " "))
    except ValueError:
        return []
    line = text.count("\n", 0, hit.start()) + 1
    found = []
    position = hit.start("row")
    for word in words:
        at = text.find(json.dumps(word), position)
        position = max(position, at)
        found.append(CommandWord(str(word), line + text.count("\n", hit.start(), position)))
    return found


def yaml_commands(text: str, programs: KnownPrograms) -> list[CommandUse]:
    """Of a YAML file: rows of words, `command` with `args` beside it, and shell texts."""
    import yaml

    found: list[CommandUse] = []
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was compiled
    try:
        for document in yaml.compose_all(text, Loader=loader):
            if document is not None:
                found += _Yaml(programs, text).walk(document)
    except (yaml.YAMLError, RecursionError, ValueError):
        return shell_commands(text, programs)  # templates of YAML: their lines are still words
    return found


class _Yaml:
    def __init__(self, programs: KnownPrograms, text: str) -> None:
        self.programs = programs
        self.text = text
        self.seen: set[int] = set()

    def walk(self, node: Any) -> Iterator[CommandUse]:
        if id(node) in self.seen or len(self.seen) > _MOST_NODES:
            return
        self.seen.add(id(node))
        if node.id == "scalar":
            yield from self.scalar(node)
        elif node.id == "sequence":
            yield from self.sequence(node)
        else:
            yield from self.mapping(node)

    def scalar(self, node: Any) -> Iterator[CommandUse]:
        if " " not in node.value:
            return
        first = node.start_mark.line + (2 if node.style in {"|", ">"} else 1)
        held = _held(node.value)
        for words in split_shell(_unfolded(node, self.text), first):
            use = recognise([each for word in words for each in _expanded(word, held)], self.programs)
            if use is not None:
                yield use

    def sequence(self, node: Any) -> Iterator[CommandUse]:
        use = recognise(_row(node), self.programs)
        if use is not None:
            yield use
            return
        for each in node.value:
            yield from self.walk(each)

    def mapping(self, node: Any) -> Iterator[CommandUse]:
        values = {key.value: value for key, value in node.value if key.id == "scalar"}
        command, arguments = (
            values.get("command") or values.get("entrypoint"),
            values.get("args") or values.get("command"),
        )
        if command is not None and arguments is not None and command is not arguments:
            use = recognise([*_row(command), *_row(arguments)], self.programs)
            if use is not None:
                self.seen |= {id(command), id(arguments)}
                yield use
        for key, value in node.value:
            yield from self.walk(key)
            yield from self.walk(value)


def _unfolded(node: Any, text: str) -> str:
    """A folded text goes on in each line; its lines keep their numbers that way."""
    if node.style != ">":
        return str(node.value)
    raw = text[node.start_mark.index : node.end_mark.index]
    return raw.partition("\n")[2].rstrip().replace("\n", " \\\n")


def _row(node: Any) -> list[CommandWord]:
    if node.id == "scalar":
        return [word for words in split_shell(node.value, node.start_mark.line + 1) for word in words]
    if node.id != "sequence":
        return []
    return [CommandWord(str(each.value), each.start_mark.line + 1) for each in node.value if each.id == "scalar"]
