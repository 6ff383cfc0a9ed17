"""Commands of a repository whose program belongs to a release.

A command is a row of words; its program is found at a place where a shell would look for one: first, after variables
and wrappers (`env X=1 nohup uv run vllm serve`), or after `python -m`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Programs(Protocol):
    """What a command may run."""

    def is_script(self, name: str) -> bool:
        """Whether a program has that name."""
        ...

    def is_module(self, dotted: str) -> bool:
        """Whether `python -m` runs it."""
        ...


HOLE = "\ufffc"
"""Stands for a part that is not constant."""
_WRAPPERS = frozenset(
    {"-c", "bash", "env", "exec", "nice", "nohup", "pixi", "poetry", "run", "sh", "stdbuf", "sudo"}
) | {"time", "timeout", "uv"}
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "docker", "exec", "launch", "mpirun", "ray", "srun", "torchrun"})
_PYTHON = re.compile(rf"(?:.*/)?(?:python|pypy)[\d.]*$|.*{HOLE}.*")
_NUMBER = re.compile(r"\d+(\.\d+)?[smhd]?$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FLAG = re.compile(r"(?P<name>--?[A-Za-z][\w.+-]*)(?:=.*)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, with its place."""

    text: str
    line: int
    column: int = 0
    end_line: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """A program of the release with the flags it is given."""

    program: str
    """Script, or dotted module."""
    head: Word
    words: tuple[str, ...]
    """Positional words right after the program."""
    flags: tuple[Word, ...]
    """Text is the flag alone, without "=value"."""
    conditional: bool = False


def recognise(words: Sequence[Word], programs: Programs) -> Use | None:
    """The command as a use; None if its program is none of the release's."""
    for index, word in enumerate(words):
        name = _program(words, index, programs)
        if name is not None:
            return _use(name, word, words[index + 1 :])
        if not _passes(word.text, index, words):
            return None
    return None


def _program(words: Sequence[Word], index: int, programs: Programs) -> str | None:
    text = words[index].text
    if index and words[index - 1].text in {"-m", "--module"} and programs.is_module(text):
        return text
    script = text.rpartition("/")[2]
    return script if programs.is_script(script) and HOLE not in text else None


def _passes(text: str, index: int, words: Sequence[Word]) -> bool:
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


def _use(program: str, head: Word, rest: Sequence[Word]) -> Use:
    words: list[str] = []
    flags: list[Word] = []
    for word in rest:
        hit = _FLAG.match(word.text)
        if hit is not None and HOLE not in hit["name"]:
            flags.append(Word(hit["name"], word.line, word.column, word.end_line))
        elif not flags:
            words.append(word.text)
    return Use(program, head, tuple(words), tuple(flags))


_TOKEN = re.compile(r"(?:[^\s\"']|\"(?:[^\"\\]|\\.)*\"|'[^']*')+")
_SEPARATOR = re.compile(r"&&|\|\||[;|]|(?<![>&])&(?![>&\d])|(?<!\\)\n")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")


def split_shell(text: str, line: int) -> Iterable[list[Word]]:
    """The commands of a shell text, in order. Lines continued by a backslash are one; places are kept."""
    flat = _COMMENT.sub(lambda hit: " " * len(hit[0]), text)
    flat = re.sub(r"\\\r?\n", lambda hit: " " * len(hit[0]), flat)
    start = 0
    for end in [*(hit.start() for hit in _SEPARATOR.finditer(flat)), len(flat)]:
        row = [
            Word(_unquoted(hit[0]), line + text.count("\n", 0, hit.start()))
            for hit in _TOKEN.finditer(flat, start, end)
        ]
        if row:
            row[0] = Word(row[0].text.lstrip("&|;("), row[0].line)
            yield [word for word in row if word.text]
        start = end


def _unquoted(text: str) -> str:
    return re.sub(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'", lambda hit: hit[1] if hit[1] is not None else hit[2], text)
