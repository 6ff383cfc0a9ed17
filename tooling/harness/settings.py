"""Reads limits and platforms of a repository: `[tool.areal.harness]` of pyproject.toml, every key optional."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PositiveInt

from tooling.cli.settings import Settings, Strings, read_settings

if TYPE_CHECKING:
    from pathlib import Path


class HarnessSettings(Settings):
    """What a page may take, and which platforms get one."""

    agents_lines: PositiveInt = 120
    """Of AGENTS.md: every session of every agent reads all of it."""
    skill_lines: PositiveInt = 80
    """Of one SKILL.md."""
    expert_lines: PositiveInt = 80
    """Of one agents/<name>.md."""
    skill_tokens: PositiveInt = 1500
    """Of one SKILL.md, estimated; references are loaded on demand and do not count."""
    platforms: Strings = ()
    """Names of the platforms that are compiled for; none named: all."""
    local_folders: Strings = ()
    """Folders of skills that are not copied to the platforms: other commands write them, too often to be copied."""


def read_harness_settings(root: Path) -> HarnessSettings:
    """Read the settings of the repository at `root`. Raises UsageError for unknown keys and wrong values."""
    return read_settings(HarnessSettings, root, "harness")
