"""Opens the repository that is reviewed; runs git in it without changing anything.

A revision is resolved to a hash once, and only hashes reach other commands. Only `remote` and `fetch` leave this
machine, and only --pr calls them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tooling.cli.errors import UnreachableError, UsageError
from tooling.cli.git import Git

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedClone(Git):
    """One repository, bare or not; commands run in its root."""

    bare: bool = False

    @classmethod
    def open(cls, folder: Path) -> ReviewedClone:
        """Find the repository that a folder lies in. Raises UsageError when there is none."""
        if not folder.is_dir():
            raise UsageError("no such folder", where=f"--repo {folder}", fix="name a repository")
        git = Git(folder)
        if git.text("rev-parse", "--is-bare-repository") == "true":
            return cls(folder=folder, bare=True)
        return cls(folder=Path(git.text("rev-parse", "--show-toplevel")))

    @property
    def root(self) -> Path:
        """Of the work tree; of a bare repository, the repository itself."""
        return self.folder

    def require(self, revision: str, option: str) -> str:
        """Return the hash of a revision. Raises UsageError."""
        found = self.commit(revision)
        if found is None:
            raise UsageError("no such revision", where=f"{option} {revision}", fix="name a branch, tag or commit")
        return found

    def remote(self, *arguments: str) -> str:
        """Return the output of a command that talks to a remote, as its user would.

        Raises UnreachableError when the remote cannot be reached, or refuses.
        """
        done = self.attempt(*arguments, network=True)
        if done.status:
            lines = done.complaint.splitlines()
            fatal = next((line for line in lines if "fatal" in line), lines[0])
            raise UnreachableError(
                f"`git {arguments[0]}` failed: {fatal}",
                where=os.fspath(self.folder),
                fix="check the network, the remote (`git remote -v`) and your access; --head REV needs neither",
            )
        return done.output.decode("utf-8", "surrogateescape")

    def fetch(self, remote: str, refspecs: list[str]) -> None:
        """Fetch objects and refs, and nothing else: no tags, no submodules, no FETCH_HEAD, no housekeeping."""
        quiet = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance")
        self.remote("fetch", *quiet, "--", remote, *refspecs)
