"""Records an apply in progress on disk, so that the next process can roll it back: the journal.

    <state>/journal/0000-registry.py   the old content of each file, written first, mode and owner included
    <state>/journal/journal.json       written last, atomically: while it exists, an apply is in progress
    <folder>/.areal-new-<token>-0000.tmp   the new content of each file, beside its target until it replaces it

Reading and writing of the record only; `tooling.kit.change.transaction` decides what to do with it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.change.plan import safe_path, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.cli.git import Repository
    from tooling.kit.change.disk import Disk
    from tooling.kit.change.plan import PathChange

_FORMAT = "areal-new-journal"
_VERSION = 1
_NAME = "journal.json"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One file of the apply. `before` and `after` are SHA-256 of its content, None where it did or will not exist."""

    path: str
    before: str | None
    after: str | None
    backup: str | None
    """Name in the journal's folder of the old content, e.g. "0003-registry.py"; None exactly when `before` is."""


@dataclass(frozen=True, slots=True)
class Journal:
    """An apply, as far as it takes to undo it. Paths are relative to the repository root."""

    token: str
    """Random; part of the temporary names, so that they belong to nobody else."""
    entries: tuple[JournalEntry, ...]
    created: tuple[str, ...]
    """Folders that did not exist, parents first."""
    emptied: dict[str, int]
    """Folders that may become empty, deepest first, with their modes."""

    def temporary(self, root: Path, number: int) -> Path:
        """Return where the new content of entry `number` lies until it replaces the old one."""
        return (root / self.entries[number].path).parent / f".areal-new-{self.token}-{number:04d}.tmp"


def folder_of(repository: Repository) -> Path:
    """Return the journal's folder; outside of an apply it does not exist."""
    return repository.state / "journal"


def pending(repository: Repository) -> bool:
    """Check whether an interrupted apply waits for `recover`."""
    return (folder_of(repository) / _NAME).exists()


def draft(root: Path, changes: Iterable[PathChange]) -> Journal:
    """Return the journal of an apply that has not begun: the folders are those of the disk right now."""
    changes = tuple(changes)
    entries = tuple(
        JournalEntry(
            path=change.path,
            before=None if change.before is None else sha256(change.before),
            after=None if change.after is None else sha256(change.after),
            backup=None if change.before is None else f"{number:04d}-{PurePosixPath(change.path).name[-50:]}",
        )
        for number, change in enumerate(changes)
    )
    written = {parent for change in changes if change.after is not None for parent in _parents(change.path)}
    deleted = {parent for change in changes if change.after is None for parent in _parents(change.path)}
    return Journal(
        token=os.urandom(6).hex(),
        entries=entries,
        created=tuple(sorted(folder for folder in written if not (root / folder).exists())),
        emptied={
            folder: stat.S_IMODE((root / folder).stat().st_mode) for folder in sorted(deleted - written, reverse=True)
        },
    )


def commit(repository: Repository, journal: Journal, changes: Iterable[PathChange], disk: Disk) -> None:
    """Put the old content of all files and then the journal on the medium; from here on the apply is in progress."""
    folder = folder_of(repository)
    clear(repository, disk)
    disk.make_folder(repository.state)
    disk.make_folder(folder)
    for entry, change in zip(journal.entries, changes, strict=True):
        if entry.backup is not None and change.before is not None:
            like = (repository.root / entry.path).lstat()
            disk.create(folder / entry.backup, change.before, like=like)
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(journal)}, indent=1)
    draft_file = folder / f"{_NAME}.tmp"
    disk.create(draft_file, text.encode())
    disk.sync_folder(folder)
    disk.replace(draft_file, folder / _NAME)
    for holder in (folder, repository.state, repository.git_dir):
        disk.sync_folder(holder)


def close(repository: Repository, disk: Disk) -> None:
    """End the apply: first the record, so that nobody undoes what is complete, then the old content."""
    folder = folder_of(repository)
    disk.remove(folder / _NAME)
    # Complete from here on: what cannot be tidied up now is tidied up by the next run.
    with suppress(OSError):
        disk.sync_folder(folder)
        clear(repository, disk)


def clear(repository: Repository, disk: Disk) -> None:
    """Remove what a process left that was killed before it recorded the apply, or after it had ended it."""
    folder = folder_of(repository)
    if folder.is_dir() and not pending(repository):
        for leftover in sorted(folder.iterdir()):
            disk.remove(leftover)
        disk.remove_folder(folder)


def load(repository: Repository) -> Journal:
    """Return the journal of the apply in progress.

    Raises ConflictError when it, or old content that is needed, is damaged: nothing is changed or removed then.
    """
    path = folder_of(repository) / _NAME
    try:
        journal = _parsed(json.loads(path.read_bytes()))
        for place in (*(entry.path for entry in journal.entries), *journal.created, *journal.emptied):
            refuse_links(repository.root, place)
        _check_backups(repository, journal)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConflictError(
            f"the journal of an interrupted run is damaged ({error})",
            where=os.fspath(path),
            fix=f"the old content of its files lies in {os.fspath(path.parent)}: copy back what you need, then delete "
            "that folder",
        ) from error
    return journal


def content_hash(root: Path, path: str) -> str | None:
    """Return the SHA-256 of the file `root/path`, None when there is none.

    Raises ConflictError for a link or a folder in its place, and for a link in the place of a folder above it.
    """
    refuse_links(root, path)
    target = root / path
    if not os.path.lexists(target):
        return None
    if not target.is_file():
        raise _not_regular(target)
    return sha256(target.read_bytes())


def refuse_links(root: Path, path: str) -> None:
    """Raise ConflictError when `root/path`, or a folder between the two, is a link: writes would land elsewhere."""
    place = root
    for part in PurePosixPath(path).parts:
        place = place / part
        if place.is_symlink():
            raise _not_regular(place)


def _not_regular(place: Path) -> ConflictError:
    return ConflictError(
        "is not a regular file any more, or a folder became a link: nothing is written or rolled back there",
        where=os.fspath(place),
        fix="move it away, then run `areal-new recover`",
    )


def _parents(path: str) -> list[str]:
    return [parent.as_posix() for parent in PurePosixPath(path).parents][:-1]


def _parsed(data: Any) -> Journal:
    if (data["format"], data["version"]) != (_FORMAT, _VERSION):
        raise ValueError("unknown format or version")
    if not re.fullmatch("[0-9a-f]{12}", data["token"]):
        raise ValueError("unusable token")
    journal = Journal(
        token=data["token"],
        entries=tuple(JournalEntry(**entry) for entry in data["entries"]),
        created=tuple(data["created"]),
        emptied={folder: int(mode) for folder, mode in data["emptied"].items()},
    )
    for path in (*(entry.path for entry in journal.entries), *journal.created, *journal.emptied):
        safe_path(path)
    return journal


def _check_backups(repository: Repository, journal: Journal) -> None:
    for entry in journal.entries:
        if (entry.before is None) != (entry.backup is None):
            raise UsageError("names no old content", where=entry.path)
        if entry.backup is None:
            continue
        backup = content_hash(folder_of(repository), safe_path(entry.backup))
        # A backup that is gone was moved back by a recovery that was itself interrupted.
        needed = backup is not None or content_hash(repository.root, entry.path) == entry.after
        if needed and backup != entry.before:
            raise UsageError("its old content is not what was recorded", where=entry.path)
