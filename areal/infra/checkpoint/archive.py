"""Move what a run left in its directory out of the way of a new start; nothing is ever deleted.

    runs/math/default/archived/0001/        checkpoints/, metrics.jsonl, final/, ... of the first start over

The whole directory is moved by renames into a folder that gets its final name last. A process that is killed in the
middle leaves that folder under its temporary name, and the next start on the directory completes the move before it
does anything else. Both happen under the lock of the run, so nobody writes meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from areal.api import CheckpointError, UsageError
from areal.infra.checkpoint.run_control import LOCK_NAME
from areal.utils.atomic import fsync_directory

ARCHIVE_FOLDER: Final = "archived"
_PARTIAL: Final = re.compile(r"\.(\d+)\.partial")
INPUTS_FOLDER: Final = "inputs"
"""Rows that a Python program gave, in files named by their content: a new start reads the same ones."""
_STAYS: Final = frozenset({ARCHIVE_FOLDER, INPUTS_FOLDER, LOCK_NAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """What would be moved where."""

    target: Path
    entries: tuple[str, ...]
    """Names in the run directory."""


def plan_archive(directory: Path) -> ArchivePlan | None:
    """Return what `archive_run` would do; None when there is nothing to move.

    Raises UsageError for a directory that holds the current folder: it is not the run's own.
    """
    entries = _entries(directory)
    if not entries:
        return None
    if Path.cwd().is_relative_to(directory.resolve()):
        raise UsageError(
            f"the run directory {directory} holds the current folder, so moving all of it aside would move files that "
            f"are not the run's",
            where=str(directory),
            fix="set output_dir to a folder of the run's own, or move the old run aside by hand",
        )
    folder = directory / ARCHIVE_FOLDER
    taken = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()] if folder.is_dir() else []
    return ArchivePlan(target=folder / f"{max(taken, default=0) + 1:04d}", entries=entries)


def archive_run(directory: Path) -> Path | None:
    """Move all of the run in `directory` into a new folder in `archived/` and return that; None when there is nothing.

    The caller holds the run's lock. Raises CheckpointError when the disk refuses; a part may be moved already, and
    `complete_archive` goes on with it.
    """
    plan = plan_archive(directory)
    if plan is None:
        return None
    try:
        (plan.target.parent / f".{plan.target.name}.partial").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot archive the run in {directory}: {error}") from error
    return complete_archive(directory)


def complete_archive(directory: Path) -> Path | None:
    """Complete a move that was interrupted and return the folder; None when there is none to complete."""
    folder = directory / ARCHIVE_FOLDER
    entries = folder.iterdir() if folder.is_dir() else ()
    partial = next((entry for entry in entries if _PARTIAL.fullmatch(entry.name)), None)
    if partial is None:
        return None
    target = folder / partial.name[1:].removesuffix(".partial")
    try:
        for name in _entries(directory):
            (directory / name).rename(partial / name)
        fsync_directory(partial)
        fsync_directory(directory)
        partial.rename(target)
        fsync_directory(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot move {directory} to {target}: {error}. Nothing is lost: what was moved is in {partial}, and the "
            f"next start goes on moving"
        ) from error
    return target


def _entries(directory: Path) -> tuple[str, ...]:
    found = directory.iterdir() if directory.is_dir() else ()
    return tuple(sorted(entry.name for entry in found if entry.name not in _STAYS))
