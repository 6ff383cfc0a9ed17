"""Reads what every command begins with: the repository, its files, its settings, its sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.harness.platforms import chosen, hint_problems
from tooling.harness.sources import read_harness_settings, read_sources

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.cli.git import Repository
    from tooling.harness.platforms import Platform
    from tooling.harness.sources import HarnessSettings, PageFinding, Sources


@dataclass(frozen=True, slots=True)
class HarnessContext:
    """A repository as `areal-harness` sees it."""

    repository: Repository
    files: tuple[str, ...]
    policy: HarnessSettings
    sources: Sources
    platforms: tuple[Platform, ...]
    problems: tuple[PageFinding, ...]
    """Of the sources: what is named here cannot be given to a platform."""

    @property
    def root(self) -> Path:
        """Of the work tree."""
        return self.repository.root


def open_context(start: Path) -> HarnessContext:
    """Read everything. Raises UsageError where there is no repository, and for settings that make no sense."""
    repository = find_repository(start)
    policy = read_harness_settings(repository.root)
    platforms = chosen(policy.platforms, where="pyproject.toml: [tool.areal.harness] platforms")
    files = tuple(repository.files())
    sources = read_sources(repository.root, files, policy)
    problems = tuple(sorted([*sources.problems, *hint_problems(sources.experts)]))
    return HarnessContext(repository, files, policy, sources, platforms, problems)
