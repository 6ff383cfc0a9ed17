"""Find command lines in shell, Make, Docker and YAML text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise
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


_NAMES = (
    "-c bash command conda env eval exec hatch mamba micromamba nice nohup pdm pipenv pipx pixi poetry run rye set sh"
    " stdbuf sudo time timeout uv uvx xargs ! { do elif else if then until while"
)
_WRAPPERS = frozenset(_NAMES.split())
_CONTAINERS = frozenset({"docker", "kubectl", "nerdctl", "oc", "podman"})
"""What runs the rest of its words inside of something that it names."""
_READERS = frozenset({"bash", "dash", "eval", "screen", "sh", "ssh", "su", "tmux", "watch", "zsh"})
"""What is given a command in one word."""
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "docker", "exec", "launch", "mpirun", "ray", "srun", "torchrun"})
_PYTHON = re.compile(rf"(?:.*/)?(?:python|pypy)[\d.]*$|.*{HOLE}.*|\$[({{]?\w+[)}}]?$")
"""Also what is not known: a variable."""
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
            script = text.rpartition("/")[2] if index else text.rpartition("/")[2].lstrip("@-+")
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
    names = [word.text.rpartition("/")[2] for word in words[: index + 1]]
    if "ssh" in names or (_CONTAINERS.intersection(names) and (index < 2 or {"run", "exec"}.intersection(names))):
        return not any(name in _READERS for name in names[-1:])
    # Options, and what follows them, pass only behind something that runs other programs.
    previous = words[index - 1].text if index else ""
    plain = text.startswith("-") or previous.startswith("-") or _NUMBER.match(text) is not None
    return index > 0 and _runs_others(words[0].text) and plain


def _runs_others(text: str) -> bool:
    name = text.rpartition("/")[2]
    return name in _WRAPPERS | _LAUNCHERS or bool(_ASSIGNMENT.match(text) or _PYTHON.match(text))


def recognised(words: Sequence[CommandWord], programs: KnownPrograms) -> Iterator[CommandUse]:
    """The command, or those that a word of it holds: `bash -c "vllm serve x"`."""
    use = recognise(words, programs)
    if use is not None:
        yield use
    elif any(word.text.rpartition("/")[2] in _READERS for word in words):
        for word in words:
            for row in split_shell(word.text, word.line) if " " in word.text else ():
                yield from recognised(row, programs)


def _use(program: str, head: CommandWord, rest: Sequence[CommandWord]) -> CommandUse:
    words: list[str] = []
    flags: list[CommandWord] = []
    ends = next((index for index, word in enumerate(rest) if word.text == "--"), len(rest))
    for word in rest[:ends]:  # `ray job submit --address x -- python train.py --lr 1`
        hit = _FLAG.match(word.text)
        if hit is not None and HOLE not in hit["name"]:
            flags.append(replace(word, text=hit["name"]))
        elif not flags:
            words.append(word.text)
    hidden = tuple(word for word in rest[:ends] if word.hidden)
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
    flat = _OPENING.sub(lambda hit: " " * len(hit[0]), flat)
    for hit in _INNER.finditer(flat):
        yield from split_shell(hit[1] or hit[2], line + text.count("\n", 0, hit.start()))
    flat = _INNER.sub(lambda hit: re.sub(r"[^\n]", "x", hit[0]), flat)
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
            row[0] = CommandWord(row[0].text.lstrip("&|;(@"), row[0].line)
            yield [word for word in row if word.text]
        start = end


_INNER = re.compile(r"\$\(([^()]* [^()]*)\)|`([^`]*)`")
"""`$(command)`, no `$(VARIABLE)` of make."""
_OPENING = re.compile(r"(?m)^[ \t]*(?:(?:function[ \t]+)?[\w-]+[ \t]*\(\)[ \t]*\{|[\w*|.\"'-]+\)(?=[ \t])|\$(?=[ \t]))")
"""Of a function, of a case, and the prompt of a page."""
_ASSIGNED = (
    r"^[ \t]*(?:local |export |readonly |declare -\w+ |ENV |ARG )?(?P<name>\w+)"
    r"(?:[ \t]*(?P<more>\+?)[:?]=[ \t]*|(?P<add>\+?)=)"
)
_ARRAY = re.compile(_ASSIGNED + r"\((?P<body>[^)]*)\)", re.MULTILINE)
_TEXT = re.compile(_ASSIGNED + r"(?P<quote>[\"'])(?P<body>.*?)(?P=quote)", re.MULTILINE | re.DOTALL)
_WORDS = re.compile(
    _ASSIGNED + r"(?P<body>[\w./-][^\s;\"']*)$|^(?P<made>\w+)[ \t]*[:?]?=[ \t](?P<rest>[^\"'\n]+)$", re.MULTILINE
)
"""One word without quotes; in make all of the line."""
_VARIABLE = re.compile(
    r"^\$\{?(?P<name>\w+)(?:\[[@*]\])?(?::-[^}]*)?\}?$|^\$\((?P<made>\w+)\)$|^\{\{(?P<just>\w+)\}\}$"
)
_EXEC = re.compile(r"^[ \t]*(?P<name>CMD|ENTRYPOINT)[ \t]+(?P<row>\[[^\]]*\])", re.MULTILINE)
_STAGE = re.compile(r"^(?=FROM\b)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^[ \t]*(?P<name>CMD|ENTRYPOINT|RUN)[ \t]+(?!\[)", re.MULTILINE)
_MOST_NODES = 50_000


def shell_commands(text: str, programs: KnownPrograms, line: int = 1) -> list[CommandUse]:
    """Of a script that begins on a line. Variables that hold flags count where a command mentions them."""
    held = _held(text, programs)
    return [
        use
        for words in split_shell(text, line)
        for use in recognised([each for word in words for each in _expanded(word, held)], programs)
    ]


def _held(text: str, programs: KnownPrograms) -> dict[str, list[CommandWord]]:
    """Variables that hold flags, or a program's name."""
    found: dict[str, list[CommandWord]] = {}
    hits = [*_ARRAY.finditer(text), *_TEXT.finditer(text), *_WORDS.finditer(text)]
    for hit in sorted(hits, key=lambda each: each.start()):
        given = hit.groupdict()
        part = "body" if given["body"] is not None else "rest"
        line = text.count("\n", 0, hit.start(part)) + 1
        words = [word for row in split_shell(hit[part].replace("\n", " \\\n"), line) for word in row]
        name = given["name"] or given["made"]
        known = len(words) == 1 and (programs.is_script(words[0].text) or programs.is_module(words[0].text))
        if known or any(word.text.startswith("-") for word in words):
            found[name] = [*(found.get(name, []) if given["more"] or given["add"] else []), *words]
    return found


def _expanded(word: CommandWord, held: dict[str, list[CommandWord]]) -> list[CommandWord]:
    hit = _VARIABLE.match(word.text)
    known = held.get(hit["name"] or hit["made"] or hit["just"]) if hit else None
    # A program is named where it is called
    return [each if each.text.startswith("-") else replace(each, line=word.line) for each in known or [word]]


def docker_commands(text: str, programs: KnownPrograms) -> list[CommandUse]:
    """Of a Dockerfile: CMD and ENTRYPOINT of a stage as rows (one after the other, if both), and shell forms."""
    found: list[CommandUse] = []
    starts = [0, *(hit.start() for hit in _STAGE.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        rows = {hit["name"]: words for hit in _EXEC.finditer(text, start, end) if (words := _json_row(text, hit))}
        joined = [*rows.get("ENTRYPOINT", []), *rows.get("CMD", [])]
        found += list(recognised(joined, programs)) or [
            use for words in rows.values() for use in recognised(words, programs)
        ]
    blanked = _INSTRUCTION.sub(lambda hit: " " * len(hit[0]), text)
    return [*found, *shell_commands(blanked, programs)]


def settings_commands(text: str, programs: KnownPrograms) -> list[CommandUse]:
    """Of settings in TOML or INI, of services and process lists: values that are commands, or lists of words."""
    said = re.compile(rf"(?m)^[ \t]*(?:{'|'.join(sorted(_SPOKEN))})[ \t]*[:=].*$")
    flat = _KEY.sub(lambda hit: " " * len(hit[0]), said.sub("", text))
    flat = _QUOTED.sub(_unquoted, re.sub(r"[\[\]{},]", " ", flat))
    return shell_commands(flat, programs)


_KEY = re.compile(r"(?m)(?:^[ \t]*|(?<=[{,])[ \t]*)[\"']?(?P<key>[\w.-]+)[\"']?[ \t]*[:=](?![=:])[ \t]*")
_SPOKEN = frozenset({"description", "help", "name", "summary", "title"})
"""Keys of what people read."""


def _unquoted(hit: re.Match[str]) -> str:
    """A string with spaces stands for itself, others are words of one command."""
    around = ";" if " " in hit[0] else " "
    return f"{around}{hit[0][1:-1]}{around}"


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
    # Templates of YAML are YAML where their own lines are left out
    plain = _TEMPLATE.sub(lambda hit: ("x" if hit[0].startswith("{{") else " ") * len(hit[0]), text)
    for version in dict.fromkeys((text, plain)):
        try:
            found = []
            for document in yaml.compose_all(version, Loader=loader):
                if document is not None:
                    found += _Yaml(programs, version).walk(document)
            return found
        except (yaml.YAMLError, RecursionError, ValueError):
            continue
    return shell_commands(text, programs)  # its lines are still words


_TEMPLATE = re.compile(r"(?m)^[ \t]*\{\{[^\n]*\}\}[ \t]*$|\{\{.*?\}\}")


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
        yield from shell_commands(_unfolded(node, self.text), self.programs, first)

    def sequence(self, node: Any) -> Iterator[CommandUse]:
        uses = list(recognised(_row(node), self.programs))
        if uses:
            yield from uses
            return
        for each in node.value:
            yield from self.walk(each)

    def mapping(self, node: Any) -> Iterator[CommandUse]:
        values = {key.value: value for key, value in node.value if key.id == "scalar"}
        for each in [values["<<"]] if "<<" in values else ():
            values = {**{key.value: value for key, value in getattr(each, "value", ()) if key.id == "scalar"}, **values}
        head = values.get("entrypoint") or values.get("command")
        tail = values.get("args") or values.get("command")
        if head is not None and tail is not None and head is not tail:
            uses = list(recognised([*_row(head), *_row(tail)], self.programs))
            if uses:
                self.seen |= {id(head), id(tail)}
                yield from uses
        for key, value in node.value:
            yield from self.walk(key)
            if key.value not in _SPOKEN:
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
    scalars = [each for each in node.value if each.id == "scalar"]
    return [
        CommandWord(str(each.value), each.start_mark.line + (2 if each.style in {"|", ">"} else 1)) for each in scalars
    ]
