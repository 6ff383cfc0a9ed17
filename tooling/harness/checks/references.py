"""Finds what a page mentions in code, and judges each mention: a command line, a path, a link or a name of the code.

Code blocks and code spans are found as CommonMark says: a fence is closed by one at least as long, a span by as many
backticks as opened it, also on a later line of its paragraph.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tooling.harness.checks.commands import SHELLS, command_lines, joined
from tooling.harness.checks.paths import path_in
from tooling.harness.checks.symbols import name_in
from tooling.harness.sources import PageFinding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.harness.checks.commands import Commands
    from tooling.harness.checks.paths import FileTree
    from tooling.harness.checks.symbols import Symbols


_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_TICKS = re.compile(r"`+")
_LINK = re.compile(r"\]\((?P<target>[^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class Mention:
    """One piece of code or one link's target."""

    kind: Literal["span", "code", "link"]
    """code: one line of a block."""
    text: str
    line: int
    """1-based, in the file."""
    language: str = ""
    """Of a block: the first word behind its fence."""


def mentions(text: str, first_line: int) -> Iterator[Mention]:
    """Yield all mentions of a page's body, in order; `first_line` is the line of the file that the body begins on."""
    paragraph: list[str] = []
    fence, language = "", ""
    number = first_line
    for number, line in enumerate(text.split("\n"), first_line):
        found = _FENCE.match(line)
        if fence:
            if found and found["fence"].startswith(fence) and not found["info"].strip():
                fence = ""
            else:
                yield Mention("code", line, number, language)
        elif found:
            yield from _prose(paragraph, number)
            paragraph = []
            fence, language = found["fence"], (found["info"].split() or [""])[0]
        elif line.strip():
            paragraph.append(line)
        else:
            yield from _prose(paragraph, number)
            paragraph = []
    yield from _prose(paragraph, number + 1)


def _prose(paragraph: list[str], after: int) -> Iterator[Mention]:
    """Yield the spans and links of one paragraph, which ended before line `after`."""
    text, start = "\n".join(paragraph), after - len(paragraph)
    position, plain = 0, []
    while found := _TICKS.search(text, position):
        ends = (other.start() for other in _TICKS.finditer(text, found.end()) if len(other[0]) == len(found[0]))
        closing = next(ends, None)
        if closing is None:
            position = found.end()
            continue
        span = text[found.end() : closing].replace("\n", " ")
        yield Mention("span", span.strip(), start + text.count("\n", 0, found.start()))
        plain.append((found.start(), closing + len(found[0])))
        position = closing + len(found[0])
    for link in _LINK.finditer(text):
        if not any(begin <= link.start() < end for begin, end in plain):
            yield Mention("link", link["target"], start + text.count("\n", 0, link.start()))


@dataclass(slots=True)
class MentionJudge:
    """What mentions are held against, and how many were."""

    tree: FileTree
    commands: Commands
    symbols: Symbols
    known_files: frozenset[str]
    """Names of files and metrics that the code itself writes or reads: texts of it."""
    promised: frozenset[str] = frozenset()
    """Folders that other commands write and keep true: what is in them is theirs to check."""
    judged: Counter[str] = field(default_factory=Counter)
    """By kind; "plain" are words that say nothing of what they name."""

    def page(self, path: str, body: str, first_line: int) -> Iterator[PageFinding]:
        """Yield all findings of one page."""
        found = list(mentions(body, first_line))
        for mention in found:
            if mention.kind == "link":
                yield from self._link(path, mention)
            elif mention.kind == "span":
                yield from self._span(path, mention)
        lines = [(one.line, one.text) for one in found if one.kind == "code" and one.language in SHELLS]
        for line, text in joined(lines):
            commands = _words(text)
            if commands is None:
                yield PageFinding(path, line, "command", "a quote is not closed", "close it")
                continue
            for command in commands:
                yield from self._command(path, line, command)

    def _link(self, path: str, mention: Mention) -> Iterator[PageFinding]:
        target = mention.text.split("#")[0]
        if not target or "://" in target or target.startswith("mailto:"):
            return
        self.judged["link"] += 1
        folder = path.rpartition("/")[0]
        if not self._exists(target, folder):
            yield PageFinding(path, mention.line, "link", f"{target} does not exist", self.tree.suggestion(target))
        elif path.endswith("/SKILL.md") and target.startswith(".."):
            message = f"{target} leads out of the skill's folder, and nowhere from its copies"
            yield PageFinding(path, mention.line, "link", message, "write the path from the root, in backticks")

    def _span(self, path: str, mention: Mention) -> Iterator[PageFinding]:
        text = mention.text
        words = _words(text)
        if words and self.commands.is_command(words[0]):
            for command in words:
                yield from self._command(path, mention.line, command)
            return
        if name_in(text) and self.symbols.problem(name_in(text) or "") is None:
            self.judged["symbol"] += 1
            return
        mentioned = path_in(text)
        if mentioned is not None and "." not in mentioned and mentioned in self.known_files:
            self.judged["symbol"] += 1  # a name with a slash that the code itself writes, e.g. of a metric
            return
        if mentioned is not None:
            yield from self._path(path, mention.line, mentioned)
            return
        name = name_in(text)
        if name is None:
            self.judged["plain"] += 1
            return
        self.judged["symbol"] += 1
        problem = self.symbols.problem(name)
        if problem is not None:
            yield PageFinding(path, mention.line, "symbol", *problem)

    def _path(self, path: str, line: int, mentioned: str) -> Iterator[PageFinding]:
        self.judged["path"] += 1
        folder = path.rpartition("/")[0]
        bare = "/" not in mentioned
        if self._exists(mentioned, folder) or (
            bare and (self.tree.has_name(mentioned) or mentioned in self.known_files)
        ):
            return
        yield PageFinding(path, line, "path", f"{mentioned} does not exist", self.tree.suggestion(mentioned))

    def _exists(self, mentioned: str, folder: str) -> bool:
        if self.tree.has(mentioned, near=folder):
            return True
        return any(
            f"{folder}/{mentioned}".startswith(f"{kept}/") or mentioned.startswith(f"{kept}/") for kept in self.promised
        )

    def _command(self, path: str, line: int, words: list[str]) -> Iterator[PageFinding]:
        self.judged["command"] += 1
        for rule, message, fix in self.commands.problems(words):
            yield PageFinding(path, line, rule, message, fix)
        for word in words[1:]:
            # Arguments may be files of the reader's; those that begin with a folder of ours are ours.
            mentioned = path_in(word)
            if mentioned and "/" in mentioned and mentioned.split("/")[0] in self.tree.top:
                yield from self._path(path, line, mentioned)


def _words(text: str) -> list[list[str]] | None:
    """Return the simple commands of a line; None when its quotes are not closed."""
    try:
        return command_lines(text)
    except ValueError:
        return None
