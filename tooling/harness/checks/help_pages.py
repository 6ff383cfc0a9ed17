"""What our own commands understand, by asking each for its `--help` in a process of its own.

    pages = HelpPages(root, {"areal-new": "tooling.new.cli.main:main"})
    pages.page("areal-new", ("reward",)).options["--style"]       # frozenset({"exact", "boxed", ...})

Help is what a reader can ask for too; a command whose help fails is a finding, not a guess.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SECONDS = 60
_WIDTH = "200"
_OPTION = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*")
_COMMAND = re.compile(r" {2,8}(?P<name>[a-z][\w-]*)(?: {2,}\S.*)?")
_CHOICES = re.compile(r"\{([^{}\s]+)\}|(?<= )([a-z]\w*(?:\|[a-z]\w*)+)")


@dataclass(frozen=True, slots=True)
class HelpPage:
    """One page of help."""

    commands: frozenset[str] = frozenset()
    """Words that the page lists as commands below this one."""
    needs_command: bool = False
    """Whether the first word has to be one of them."""
    options: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Each with the values it is limited to; empty when it takes any, or none."""
    problem: str = ""
    """Why there is no page."""


class HelpPages:
    """Pages of a repository's console scripts, each asked for once."""

    def __init__(self, root: Path, scripts: Mapping[str, str]) -> None:
        """scripts: `[project.scripts]`, name to "module:function"."""
        self._root = root
        self.scripts = dict(scripts)
        self._pages: dict[tuple[str, ...], HelpPage] = {}

    def page(self, program: str, words: tuple[str, ...] = ()) -> HelpPage:
        """The help of a program, or of a command below it."""
        key = (program, *words)
        if key not in self._pages:
            self._pages[key] = self._asked(program, words)
        return self._pages[key]

    def _asked(self, program: str, words: tuple[str, ...]) -> HelpPage:
        module, _, function = self.scripts[program].partition(":")
        code = f"import sys; sys.argv[0] = {program!r}; from {module} import {function} as main; sys.exit(main())"
        environment = {**os.environ, "COLUMNS": _WIDTH, "PYTHONPATH": os.fspath(self._root), "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, *words, "--help"],
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return HelpPage(problem=str(error))
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return HelpPage(problem=f"exit {done.returncode}: {last}")
        return parse_help(done.stdout)


def parse_help(text: str) -> HelpPage:
    """What a page of argparse, or one laid out like it, says: definitions stand on indented lines of their own."""
    options: dict[str, frozenset[str]] = {}
    commands: set[str] = set()
    usage = text.split("\n\n", 1)[0]
    for line in text.splitlines():
        if re.match(r"\s+-", line):
            definition = re.split(r"(?<=\S) {2,}", line.strip())[0]
            values = _CHOICES.search(definition)
            limited = frozenset(re.split(r"[,|]", values[1] or values[2])) if values else frozenset[str]()
            options |= dict.fromkeys(_OPTION.findall(definition.replace(":", "")), limited)
        elif found := _COMMAND.fullmatch(line):
            commands.add(found["name"])
        elif found := re.match(r" {2,8}\{([\w,-]+)\}", line):
            commands |= set(found[1].split(","))
    needed = re.search(r"usage: \S+(?: \[[^\]]*\])* (?:COMMAND|KIND|\{)", usage) is not None
    return HelpPage(frozenset(commands), needed, options)
