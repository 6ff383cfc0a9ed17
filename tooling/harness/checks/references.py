"""Every mention of a page, judged by what it is: a command line, a path, a link or a name of the code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.harness.checks.mentions import Mention, mentions
from tooling.harness.checks.paths import path_in
from tooling.harness.checks.shell import SHELLS, command_lines, joined
from tooling.harness.checks.symbols import name_in
from tooling.harness.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.harness.checks.commands import Commands
    from tooling.harness.checks.paths import FileTree
    from tooling.harness.checks.symbols import Symbols


@dataclass(slots=True)
class Judge:
    """What mentions are held against, and how many were."""

    tree: FileTree
    commands: Commands
    symbols: Symbols
    known_files: frozenset[str]
    """Names of files that the code itself writes or reads: texts of it."""
    promised: frozenset[str] = frozenset()
    """Folders that other commands write and keep true: what is in them is theirs to check."""
    judged: Counter[str] = field(default_factory=Counter)
    """By kind; "plain" are words that say nothing of what they name."""

    def page(self, path: str, body: str, first_line: int) -> Iterator[Finding]:
        """All findings of one page."""
        found = list(mentions(body, first_line))
        for mention in found:
            if mention.kind == "link":
                yield from self._link(path, mention)
            elif mention.kind == "span":
                yield from self._span(path, mention)
        yield from self._blocks(path, found)

    def _link(self, path: str, mention: Mention) -> Iterator[Finding]:
        target = mention.text.split("#")[0]
        if not target or "://" in target or target.startswith("mailto:"):
            return
        self.judged["link"] += 1
        folder = path.rpartition("/")[0]
        if not self._exists(target, folder):
            yield Finding(path, mention.line, "link", f"{target} does not exist", self.tree.suggestion(target))
        elif path.endswith("/SKILL.md") and target.startswith(".."):
            message = f"{target} leads out of the skill's folder, and nowhere from its copies"
            yield Finding(path, mention.line, "link", message, "write the path from the root, in backticks")

    def _span(self, path: str, mention: Mention) -> Iterator[Finding]:
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
            yield Finding(path, mention.line, "symbol", *problem)

    def _path(self, path: str, line: int, mentioned: str) -> Iterator[Finding]:
        self.judged["path"] += 1
        folder = path.rpartition("/")[0]
        bare = "/" not in mentioned
        if self._exists(mentioned, folder) or (bare and self._is_known_name(mentioned)):
            return
        yield Finding(path, line, "path", f"{mentioned} does not exist", self.tree.suggestion(mentioned))

    def _exists(self, mentioned: str, folder: str) -> bool:
        if self.tree.has(mentioned, near=folder):
            return True
        return any(
            f"{folder}/{mentioned}".startswith(f"{kept}/") or mentioned.startswith(f"{kept}/") for kept in self.promised
        )

    def _is_known_name(self, name: str) -> bool:
        return self.tree.has_name(name) or name in self.known_files

    def _blocks(self, path: str, found: Iterable[Mention]) -> Iterator[Finding]:
        lines = [(one.line, one.text) for one in found if one.kind == "code" and one.language in SHELLS]
        for line, text in joined(lines):
            commands = _words(text)
            if commands is None:
                yield Finding(path, line, "command", "a quote is not closed", "close it")
                continue
            for command in commands:
                yield from self._command(path, line, command)

    def _command(self, path: str, line: int, words: list[str]) -> Iterator[Finding]:
        self.judged["command"] += 1
        for rule, message, fix in self.commands.problems(words):
            yield Finding(path, line, rule, message, fix)
        for word in words[1:]:
            # Arguments may be files of the reader's; those that begin with a folder of ours are ours.
            mentioned = path_in(word)
            if mentioned and "/" in mentioned and mentioned.split("/")[0] in self.tree.top:
                yield from self._path(path, line, mentioned)


def _words(text: str) -> list[list[str]] | None:
    """The simple commands of a line; None when it is none, as its quotes are not closed."""
    try:
        return command_lines(text)
    except ValueError:
        return None
