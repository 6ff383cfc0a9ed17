"""Keeps what a branch was: backups as references, and the record of a move in progress.

While the record .git/areal-pr/move.json exists, a move was begun and not ended.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.suggest import did_you_mean
from tooling.kit.change.disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.cli.git import Repository
    from tooling.pull_request.branch import CheckedOutBranch
    from tooling.pull_request.git import WorkTree


FOLDER: Final = "refs/areal-pr/backup/"
_ID: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """One of them. Example: Backup(branch="topic", id="20260102T030405.000006Z", commit="1f...", subject="feat: x")."""

    branch: str
    id: str
    commit: str
    subject: str

    @property
    def reference(self) -> str:
        """Its full name."""
        return f"{FOLDER}{self.branch}/{self.id}"


def reserve(branch: CheckedOutBranch) -> Backup:
    """Return a new backup of a branch, not written yet."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return Backup(branch=branch.name, id=now, commit=branch.tip, subject="")


def write(git: WorkTree, backup: Backup) -> None:
    """Make the reference. Raises ConflictError when git refuses its name."""
    zero = "0" * len(backup.commit)
    done = git.attempt("update-ref", "--no-deref", backup.reference, backup.commit, zero)
    if done.status != 0:
        raise ConflictError(
            f"the backup cannot be made: {done.complaint}", where=backup.reference, fix="nothing was changed"
        )


def backups(git: WorkTree, branch: str | None = None) -> tuple[Backup, ...]:
    """Every backup (of a branch), newest first."""
    shape = "--format=%(refname)%00%(objectname)%00%(contents:subject)%00"
    output = git.run("for-each-ref", shape, FOLDER).decode(errors="surrogateescape")
    found = []
    for line in output.split("\0\n"):
        if not line.strip("\n"):
            continue
        name, commit, subject = line.lstrip("\n").split("\0")[:3]
        owner, _, identifier = name.removeprefix(FOLDER).rpartition("/")
        if _ID.fullmatch(identifier) and branch in {None, owner}:
            found.append(Backup(branch=owner, id=identifier, commit=commit, subject=subject))
    return tuple(sorted(found, key=lambda each: (each.id, each.branch), reverse=True))


def find(git: WorkTree, wanted: str, branch: CheckedOutBranch) -> Backup:
    """Return a backup by its id or full name; for "" the newest that differs from the branch. Raises UsageError."""
    known = backups(git, branch.name)
    if not wanted:
        if not known:
            raise UsageError(f"there is no backup of {branch.name!r}", where="restore", fix="`areal-pr backups --all`")
        return next((each for each in known if each.commit != branch.tip), known[0])
    found = next((each for each in known if wanted in {each.id, each.reference}), None)
    if found is None:
        elsewhere = next((each for each in backups(git) if wanted in {each.id, each.reference}), None)
        if elsewhere is not None:
            fix = f"`git switch {elsewhere.branch}` first"
            raise UsageError(f"is a backup of another branch, {elsewhere.branch!r}", where=wanted, fix=fix)
        names = [each.id for each in known]
        fix = did_you_mean(wanted, names) or "`areal-pr backups` lists them"
        raise UsageError(f"there is no such backup of {branch.name!r}", where=wanted, fix=fix)
    return found


_FORMAT: Final = "areal-pr-move"
_VERSION: Final = 1
_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRecord:
    """What was to be done."""

    reference: str
    """Full name of the branch."""
    before: str
    after: str
    backup: str
    """Id of the backup that holds `before`."""


def state_folder(repository: Repository) -> Path:
    """Return the folder of what this command keeps for one work tree."""
    return repository.git_dir / "areal-pr"


def write_state(repository: Repository, name: str, content: bytes | None) -> None:
    """Replace a file of that folder as a whole, or remove it (None); it is on the medium when this returns."""
    disk, folder = Disk(), state_folder(repository)
    disk.make_folder(folder)
    if content is None:
        disk.remove(folder / name, missing_ok=True)
    else:
        draft = folder / f"{name}.tmp"
        disk.remove(draft, missing_ok=True)
        disk.create(draft, content)
        disk.replace(draft, folder / name)
    disk.sync_folder(folder)
    disk.sync_folder(repository.git_dir)


def path_of(repository: Repository) -> Path:
    """Return the place of the record."""
    return state_folder(repository) / "move.json"


def save_record(repository: Repository, record: PushRecord) -> None:
    """Write it, on the medium when this returns."""
    content = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(record)})
    write_state(repository, path_of(repository).name, content.encode())


def load_record(repository: Repository) -> PushRecord | None:
    """Read the record; None without one. Raises ConflictError when it is damaged."""
    path = path_of(repository)
    try:
        data = json.loads(path.read_bytes())
        if (data.pop("format"), data.pop("version")) != (_FORMAT, _VERSION):
            raise ValueError("unknown format or version")
        record = PushRecord(**data)
        if not _HASH.fullmatch(record.before) or not _HASH.fullmatch(record.after):
            raise ValueError("no hashes")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConflictError(
            f"the record of an interrupted run is damaged ({error})",
            where=os.fspath(path),
            fix="compare `git status` with `areal-pr backups`, then remove this file",
        ) from error
    return record


def remove_record(repository: Repository) -> None:
    """Note that the move has ended."""
    write_state(repository, path_of(repository).name, None)
