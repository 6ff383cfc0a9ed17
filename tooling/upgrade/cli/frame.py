"""What both command lines share: finding the repository, and the lock around writing."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.report import say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tooling.cli.git import Repository
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.context import UpgradeContext


def context_of(arguments: argparse.Namespace) -> UpgradeContext:
    """The context that the shared options describe."""
    from tooling.upgrade.operations.context import open_context

    cache, offline = arguments.cache, arguments.offline is not None
    if arguments.offline:
        folder = Path(arguments.offline)
        if not folder.is_dir():
            raise UsageError("no such cache", where=f"--offline {folder}", fix="name a folder that a run has filled")
        cache = folder
    if cache is not None and cache.exists() and not cache.is_dir():
        raise UsageError("is no folder", where=f"--cache {cache}", fix="name a folder; it is made if it is not there")
    root = repository_root(arguments.repo)
    return open_context(root, cache=cache, offline=offline, report=_progress)


def check_summary(root: Path, path: str) -> None:
    """Raises UsageError for a summary that would lie outside the repository, or replace another file."""
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.operations.summary import is_summary

    try:
        present = Plan(root).read(path) if path else None
    except ToolError as error:
        fix = "name a file inside the repository, relative to its root; or --no-summary"
        raise UsageError(error.message, where=f"--summary {path}", fix=fix) from error
    if present is not None and not is_summary(present):
        fix = "name another file, or --no-summary"
        raise UsageError("that file is no summary of an upgrade: it is kept", where=f"--summary {path}", fix=fix)


def repository_root(path: Path) -> Path:
    """The work tree that a folder lies in; the folder itself where there is no git."""
    from tooling.cli.git import find_repository

    if not path.is_dir():
        raise UsageError("no such folder", where=f"--repo {path}", fix="name a repository")
    try:
        return find_repository(path).root
    except UsageError:
        return path.resolve()


@contextmanager
def writing(root: Path, arguments: argparse.Namespace) -> Iterator[Repository]:
    """The repository, locked. Raises UsageError where there is no git, BusyError, and what a rollback raises."""
    from tooling.cli.git import find_repository
    from tooling.kit.change.transaction import transaction

    repository = find_repository(root)
    with transaction(repository, wait_seconds=arguments.wait, note=lambda line: say(f"rolled back: {line}")):
        yield repository


def half_written(root: Path) -> list[str]:
    """A warning, if the tree is one that a killed run left, or another one is writing right now."""
    from tooling.cli.git import find_repository
    from tooling.kit.change.transaction import pending

    try:
        is_pending = pending(find_repository(root))
    except UsageError:
        return []
    found = "an interrupted run left files half written, and this is about them as they are: `areal-new recover` first"
    return [found] if is_pending else []


def apply(repository: Repository, plan: Plan) -> None:
    """Write a plan: all of it or nothing."""
    from tooling.kit.change.transaction import apply_plan

    if plan:
        apply_plan(repository, plan)


def _progress(line: str) -> None:
    """One line that the next one replaces, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line[:100]}")
        sys.stderr.flush()


def end_progress() -> None:
    """Remove the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
