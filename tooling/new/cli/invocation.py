"""One call of `areal-new`, as the commands see it: its arguments, its repository, and a voice for people."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.report import progress, say

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from tooling.cli.git import Repository
    from tooling.kit.template.kinds import KindSource
    from tooling.new.unit.context import Workspace


@dataclass(frozen=True)
class Invocation:
    """What a command is called with. Repository and workspace are looked up when they are first needed."""

    command: str
    """The command or kind, as in `areal-new reward`."""
    arguments: Namespace
    as_json: bool
    kind: KindSource | None = None
    """The kind to generate, when the word was not a command."""

    @property
    def start(self) -> Path:
        """Where the search for the repository begins: `--repo`, else the current folder."""
        return Path(self.arguments.repo) if self.arguments.repo is not None else Path.cwd()

    @cached_property
    def repository(self) -> Repository:
        """The repository of `--repo`, else of the current folder. Raises UsageError outside one."""
        from tooling.cli.git import find_repository

        return find_repository(self.start)

    @cached_property
    def workspace(self) -> Workspace:
        """The repository with its settings and kinds."""
        from tooling.new.unit.context import open_workspace

        return open_workspace(self.start)

    def option(self, name: str) -> Any:
        """An option that not every command has; None where it is missing."""
        return getattr(self.arguments, name, None)

    @property
    def writes(self) -> bool:
        """Whether the repository may be changed: neither a dry run nor a plan that is only saved."""
        return not (self.option("dry_run") or self.option("plan_out"))

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """A part of the work: shown on a terminal while it lasts, its seconds with `--verbose`."""
        started = time.perf_counter()
        with progress(what):
            yield
        if self.arguments.verbose:
            say(f"{what}: {time.perf_counter() - started:.3f} s")
