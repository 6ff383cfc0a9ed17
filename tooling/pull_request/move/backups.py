"""Backups: references to what a branch was, below refs/areal-pr/backup/. They keep the commits from being collected,
and no push sends them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.suggest import did_you_mean

if TYPE_CHECKING:
    from tooling.pull_request.git import Git
    from tooling.pull_request.situation import Branch

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


def reserve(branch: Branch) -> Backup:
    """A new backup of a branch, not written yet."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return Backup(branch=branch.name, id=now, commit=branch.tip, subject="")


def write(git: Git, backup: Backup) -> None:
    """Make the reference. Raises ConflictError when git refuses its name."""
    zero = "0" * len(backup.commit)
    done = git.attempt("update-ref", "--no-deref", backup.reference, backup.commit, zero)
    if done.status != 0:
        raise ConflictError(
            f"the backup cannot be made: {done.complaint}", where=backup.reference, fix="nothing was changed"
        )


def backups(git: Git, branch: str | None = None) -> tuple[Backup, ...]:
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


def find(git: Git, wanted: str, branch: Branch) -> Backup:
    """A backup by its id or full name; for "" the newest that the branch is not already. Raises UsageError."""
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
