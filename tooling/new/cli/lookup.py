"""Which kinds there are where a command is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.kit.template.kinds import KindSource


def find_root(repo: str | None) -> Path | None:
    """The repository of `--repo`, else of the current folder; None when the current folder lies in none. Raises
    UsageError when `repo` does not lead to one."""
    from tooling.cli.git import find_repository

    try:
        return find_repository(Path.cwd() if repo is None else Path(repo)).root
    except UsageError:
        if repo is not None:
            raise
        return None


def find_kinds(repo: str | None) -> Mapping[str, KindSource]:
    """The kinds that can be generated here; outside a repository, those that `areal-new` brings along."""
    from tooling.kit.template.kinds import discover

    return discover(find_root(repo))
