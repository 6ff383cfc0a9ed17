"""What every command begins with: the repository, its files, its settings, its sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.harness.platforms.table import chosen, hint_problems
from tooling.harness.policy import read_policy
from tooling.harness.sources.read import read_sources

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.cli.git import Repository
    from tooling.harness.findings import Finding
    from tooling.harness.platforms.records import Platform
    from tooling.harness.policy import Policy
    from tooling.harness.sources.records import Sources


@dataclass(frozen=True, slots=True)
class Context:
    """A repository as this command sees it."""

    repository: Repository
    files: tuple[str, ...]
    policy: Policy
    sources: Sources
    platforms: tuple[Platform, ...]
    problems: tuple[Finding, ...]
    """Of the sources: no platform could be given what is named here."""

    @property
    def root(self) -> Path:
        """Of the work tree."""
        return self.repository.root


def open_context(start: Path) -> Context:
    """Reads everything. Raises UsageError where there is no repository, and for settings that mean nothing."""
    repository = find_repository(start)
    policy = read_policy(repository.root)
    platforms = chosen(policy.platforms, where="pyproject.toml, [tool.areal.harness] platforms")
    files = tuple(repository.files())
    sources = read_sources(repository.root, files, policy)
    problems = tuple(sorted([*sources.problems, *hint_problems(sources.experts)]))
    return Context(repository, files, policy, sources, platforms, problems)
