"""Command lines of a page, as the words a shell would make of them. Nothing is run here.

command_lines("OMP_NUM_THREADS=1 areal train run.yaml | head  # why")   # [["areal", "train", "run.yaml"], ["head"]]
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHELLS = frozenset({"bash", "console", "sh", "shell", "zsh"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_CONNECTORS = frozenset({"&&", "||", "|", ";", "&"})
_REDIRECTIONS = frozenset({">", ">>", "<", "2>", "&>", "<<<"})


def joined(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines of a block with those that end in a backslash put together; prompts are dropped."""
    begun: tuple[int, str] | None = None
    for number, line in lines:
        bare = re.sub(r"^\s*\$ ", "", line)
        first, text = (begun[0], begun[1] + bare) if begun else (number, bare)
        if text.endswith("\\"):
            begun = (first, text[:-1] + " ")
            continue
        begun = None
        if text.strip():
            yield first, text
    if begun:
        yield begun


def command_lines(text: str) -> list[list[str]]:
    """The simple commands of one line, each as its words, without variables set before it and redirections. Raises
    ValueError for quotes that are not closed."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if word in _CONNECTORS:
            commands.append([])
        elif word in _REDIRECTIONS:
            skip = True
        elif skip:
            skip = False
        elif commands[-1] or not _ASSIGNMENT.fullmatch(word):
            commands[-1].append(word)
    return [command for command in commands if command]


def is_placeholder(word: str) -> bool:
    """Whether a word stands for something: NAME, KIND, <name>, [options], ..., PACKAGE==VERSION."""
    return bool(re.fullmatch(r"[A-Z][A-Z_]*(?:==.*|\[.*)?|<.*>|\[.*|.*\]|\.\.\.", word))
