"""What a page, a skill and an expert are, once read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.harness.findings import Finding

READ: Final = "read"
"""An expert that reads and searches, and does nothing else."""
RUN: Final = "run"
"""An expert that also runs the commands it names, and edits nothing."""


@dataclass(frozen=True, slots=True)
class Page:
    """A Markdown file with a head of YAML between two lines of `---`."""

    path: str
    head: str
    """The head as written, without its `---` lines."""
    values: Mapping[str, Any]
    """The head's keys and values."""
    body: str
    body_line: int
    """1-based line of the file that the body begins on."""

    @property
    def lines(self) -> int:
        """Of the whole file."""
        return self.body_line - 1 + len(self.body.splitlines())


@dataclass(frozen=True, slots=True)
class Skill:
    """One task: how an agent does it with this repository's commands."""

    page: Page
    name: str
    description: str
    resources: tuple[str, ...]
    """Further files that travel with it, relative to its folder, sorted: "references/errors.md"."""
    local: tuple[str, ...]
    """Folders beside SKILL.md that stay where they are."""

    @property
    def folder(self) -> str:
        """Example: "skills/add-reward"."""
        return self.page.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Expert:
    """One adviser: what it is asked, what it owns, what it may do."""

    page: Page
    name: str
    description: str
    """When to ask it."""
    scope: str
    """READ or RUN."""
    commands: tuple[str, ...]
    """What an expert of scope RUN may run; a "*" stands for the rest of a command line."""
    owns: tuple[str, ...]
    """Globs of the files it answers for."""
    hints: Mapping[str, Mapping[str, Any]]
    """Settings of single platforms: {"claude": {"model": "opus"}}."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All of them, sorted by name, and what is wrong with those that are left out."""

    skills: tuple[Skill, ...] = ()
    experts: tuple[Expert, ...] = ()
    problems: tuple[Finding, ...] = field(default=())
