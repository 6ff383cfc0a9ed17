"""Applies a plan to the disk: all of it, or nothing, also when the process is killed at any moment.

    with transaction(repository, wait_seconds=10, note=tell):
        plan = ...                       # planned under the lock, so nobody else changes the ground meanwhile
        apply_plan(repository, plan)

The order is what makes it safe. Old content and the journal reach the medium first; new content is written beside its
targets; only then are targets replaced and removed, one atomic step each; removing the journal ends the apply. Whoever
finds a journal takes everything back. The index of git is never touched, and no file whose bytes were not read.
A folder that becomes a link on the way is noticed before each write, but not between that look and the write itself.
Files are replaced, not written into: mode and owner are kept, extended attributes are not, and hard links to the old
file keep the old content.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, ToolError, WriteError
from tooling.kit.change import journal as record
from tooling.kit.change.disk import Disk, ignore
from tooling.kit.change.journal import pending
from tooling.kit.change.lock import repository_lock
from tooling.kit.change.plan import read_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tooling.cli.git import Repository
    from tooling.kit.change.disk import Observe
    from tooling.kit.change.journal import Journal, JournalEntry
    from tooling.kit.change.plan import PathChange, Plan

__all__ = ["apply_plan", "pending", "preview_recovery", "recover", "transaction"]

_REMEDIES = {
    errno.ENOSPC: "free some space and run it again",
    errno.EDQUOT: "free some of your quota and run it again",
    errno.EFBIG: "raise the limit on file sizes (`ulimit -f`) and run it again",
    errno.EROFS: "make the file system writable and run it again",
    errno.EACCES: "make it writable and run it again",
    errno.EPERM: "make it writable and run it again (`lsattr` shows whether it is immutable)",
}


@contextmanager
def transaction(repository: Repository, *, wait_seconds: float, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the repository's lock, after rolling back what an interrupted run left; `note` gets a line for each file.

    Raises LockedError when another process holds the lock for `wait_seconds`, else like `recover`.
    """
    with repository_lock(repository, wait_seconds=wait_seconds):
        for line in recover(repository):
            note(line)
        yield


def apply_plan(repository: Repository, plan: Plan, *, observe: Observe = ignore) -> None:
    """Make the disk what the plan says. The caller holds the lock.

    Modified files keep their mode; folders that lose their last file go. Raises ConflictError, before anything is
    touched, when a file is not what the plan was made from; WriteError when the disk refuses, naming the file. Whatever
    is raised, everything is as it was; `observe` gets each step before it happens.
    """
    if plan.root.resolve() != repository.root:
        raise ConflictError(f"the plan was made for {os.fspath(plan.root)}", where=os.fspath(repository.root))
    # Deleting first frees names: on a disk that ignores case, "Foo.py" and "foo.py" are one.
    changes = sorted(plan.changes, key=lambda change: change.after is not None)
    if not changes:
        return
    if pending(repository):
        raise ConflictError("an interrupted run has not been rolled back", fix="run `areal-new recover` first")
    _check(repository.root, changes)
    disk, touched = Disk(observe), list[int]()
    journal = record.draft(repository.root, changes)
    try:
        record.commit(repository, journal, changes, disk)
        _stage(repository.root, journal, changes, disk)
        _swap(repository.root, journal, disk, touched)
        # Remove folders that lost their last file, and wait until all names are on the medium
        for folder in journal.emptied:
            disk.remove_folder(repository.root / folder)
        _sync(repository.root, journal, disk)
        record.close(repository, disk)
    except BaseException as error:
        _take_back(repository, journal, disk, touched, error)
        raise


def recover(repository: Repository, *, observe: Observe = ignore) -> list[str]:
    """Roll an interrupted apply back; returns one line per file put back, nothing when there was none.

    The caller holds the lock. A file that somebody edited since is copied to <state>/rescued first, and the line says
    so. Raises ConflictError when the journal is damaged or a folder is where a file belongs, WriteError when the disk
    refuses; the journal stays then, and so does everything in it.
    """
    disk = Disk(observe)
    try:
        if not pending(repository):
            record.clear(repository, disk)
            return []
        journal = record.load(repository)
        return _roll_back(repository, journal, disk, _touched(repository, journal))
    except OSError as error:
        raise _refusal(repository.root, error, "an interrupted run could not be rolled back") from error


def preview_recovery(repository: Repository) -> list[str]:
    """Return what `recover` would do now, one line per file.

    Nothing is written and no lock is taken, so that a run which is still going on looks like an interrupted one. Raises
    ConflictError when the journal is damaged.
    """
    if not pending(repository):
        return []
    journal = record.load(repository)
    entries = [journal.entries[number] for number in _touched(repository, journal)]
    return [
        f"{entry.path}: would be {'removed again' if entry.backup is None else 'put back'}"
        for entry in entries
        if _differs(repository, entry)
    ]


def _touched(repository: Repository, journal: Journal) -> list[int]:
    """Return the entries whose new content is not waiting beside its target any more."""
    numbers = range(len(journal.entries))
    return [number for number in numbers if not journal.temporary(repository.root, number).exists()]


def _check(root: Path, changes: Iterable[PathChange]) -> None:
    """Refuse, naming every file, when the ground has moved since the plan was made or a file is write-protected."""
    moved = [change.path for change in changes if read_inside(root, change.path) != change.before]
    if moved:
        raise ConflictError("changed since the plan was made", where=", ".join(moved), fix="make the plan again")
    for change in changes:
        target = root / change.path
        # Replacing needs no permission on the file itself, but write protection says what its owner wants.
        if change.before is not None and not (target.stat().st_mode & 0o222 and os.access(target, os.W_OK)):
            raise WriteError("is write-protected; nothing was changed", where=change.path, fix="make it writable")


def _stage(root: Path, journal: Journal, changes: Sequence[PathChange], disk: Disk) -> None:
    """Write all new content beside its targets: what takes space and time fails here, before any target changes."""
    for folder in journal.created:
        disk.make_folder(root / folder)
    for number, change in enumerate(changes):
        if change.after is not None:
            target = root / change.path
            record.refuse_links(root, change.path)
            with _about(target):
                like = None if change.before is None else target.lstat()
                disk.create(journal.temporary(root, number), change.after, like=like)


def _swap(root: Path, journal: Journal, disk: Disk, touched: list[int]) -> None:
    """Put every target into its new state; `touched` gets the number of each before it happens."""
    for number, entry in enumerate(journal.entries):
        target = root / entry.path
        with _about(target):
            if record.content_hash(root, entry.path) != entry.before:
                raise ConflictError("changed while the plan was applied", where=entry.path, fix="make the plan again")
            touched.append(number)
            if entry.after is None:
                disk.remove(target)
            else:
                disk.replace(journal.temporary(root, number), target)


def _sync(root: Path, journal: Journal, disk: Disk) -> None:
    folders = {(root / entry.path).parent for entry in journal.entries}
    for name in (*journal.created, *journal.emptied):
        folders |= {root / name, (root / name).parent}
    for folder in sorted(folders):
        disk.sync_folder(folder)


def _take_back(repository: Repository, journal: Journal, disk: Disk, touched: list[int], error: BaseException) -> None:
    """Roll back after a failed apply. Raises WriteError when the disk was the reason, or refuses this too."""
    try:
        if pending(repository):
            lines = _roll_back(repository, journal, disk, touched)
            for line in lines:
                error.add_note(line)
        else:
            record.clear(repository, disk)
    except (OSError, ToolError) as second:
        raise WriteError(
            f"{error}; and it could not be rolled back: {second}",
            fix="when the disk can be written again, run `areal-new recover`: nothing is lost",
        ) from error
    if isinstance(error, OSError) and not isinstance(error, ToolError):
        raise _refusal(repository.root, error, "cannot be written; nothing was changed") from error


def _roll_back(repository: Repository, journal: Journal, disk: Disk, touched: Sequence[int]) -> list[str]:
    """Undo the touched entries, last first. Every step leaves a state that this function can begin with again."""
    root, lines = repository.root, list[str]()
    for number in range(len(journal.entries)):
        disk.remove(journal.temporary(root, number), missing_ok=True)
    for folder, mode in reversed(journal.emptied.items()):
        record.refuse_links(root, folder)
        disk.make_folder(root / folder, mode=mode)
    rescue = _Rescue(repository, disk)
    for number in reversed(touched):
        entry = journal.entries[number]
        lines += _restore(repository, journal, number, disk, rescue) if _differs(repository, entry) else []
    for folder in reversed(journal.created):
        disk.remove_folder(root / folder)
    _sync(root, journal, disk)
    record.close(repository, disk)
    return lines


def _differs(repository: Repository, entry: JournalEntry) -> bool:
    """Check whether a file is not what it was.

    A backup that is gone was put back already, by a recovery that was killed: what the file holds since is not ours.
    """
    if entry.backup is not None and not (record.folder_of(repository) / entry.backup).exists():
        return False
    return record.content_hash(repository.root, entry.path) != entry.before


def _restore(repository: Repository, journal: Journal, number: int, disk: Disk, rescue: _Rescue) -> list[str]:
    entry = journal.entries[number]
    target = repository.root / entry.path
    lines = []
    if record.content_hash(repository.root, entry.path) not in {entry.after, None}:
        lines.append(f"{entry.path}: edited since; your version was kept as {rescue.keep(entry.path)}")
    if entry.backup is None:
        disk.remove(target, missing_ok=True)
        return [*lines, f"{entry.path}: removed again"]
    backup = record.folder_of(repository) / entry.backup
    try:
        disk.replace(backup, target)  # takes no space, so that a full disk can be rolled back
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = journal.temporary(repository.root, number)
        disk.create(temporary, backup.read_bytes(), like=backup.stat())
        disk.replace(temporary, target)
    return [*lines, f"{entry.path}: put back"]


class _Rescue:
    """Keeps copies of what a rollback would overwrite, in a folder of its own below <state>/rescued."""

    def __init__(self, repository: Repository, disk: Disk) -> None:
        self._root = repository.root
        self._parent = repository.state / "rescued"
        self._disk = disk
        self._folder: Path | None = None

    def keep(self, path: str) -> Path:
        """Copy a file of the repository; returns where the copy is."""
        if self._folder is None:
            stamp, number = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), 1
            while (self._parent / f"{stamp}-{number}").exists():
                number += 1
            self._folder = self._parent / f"{stamp}-{number}"
        copy = self._folder / path
        for folder in reversed(copy.relative_to(self._parent).parents):
            self._disk.make_folder(self._parent / folder)
        source = self._root / path
        self._disk.create(copy, source.read_bytes(), like=source.stat())
        return copy


@contextmanager
def _about(target: Path) -> Iterator[None]:
    """Let an OSError name the file it is about instead of a temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(target)
        raise


def _refusal(root: Path, error: OSError, what: str) -> WriteError:
    where = os.fspath(error.filename) if error.filename is not None else os.fspath(root)
    return WriteError(
        f"{what}: {error.strerror or error}",
        where=where.removeprefix(f"{os.fspath(root)}/"),
        fix=_REMEDIES.get(error.errno or 0, "see the reason, then run it again"),
    )
