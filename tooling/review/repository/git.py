"""Reading git without running anything that a repository may have configured: no hooks, filters, external diffs or
monitors. Arguments are lists; a revision is resolved to a hash once, and only hashes reach other commands. Only
`remote` and `fetch` leave this machine, and only --pr calls them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_OF_A_REPOSITORY = frozenset(
    f"GIT_{name}"
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "OBJECT_DIRECTORY", "COMMON_DIR", "NAMESPACE", "PREFIX")
)
"""Variables that would send a command to another repository than the one that was named."""
REMOTE_SECONDS = 300
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


class Git:
    """One repository, bare or not."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError when the folder is in no repository."""
        self.folder = folder
        if not folder.is_dir():
            raise UsageError("no such folder", where=f"--repo {folder}", fix="name a repository")
        self.bare = self.text("rev-parse", "--is-bare-repository").strip() == "true"
        self.root = folder if self.bare else Path(self.text("rev-parse", "--show-toplevel").rstrip("\n"))

    def run(self, *arguments: str, allowed: tuple[int, ...] = (0,), folder: Path | None = None) -> bytes:
        """Standard output. Raises UsageError with git's own words."""
        # Only the settings above: a pager, password question or refreshed index would be a side effect.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}
        environment |= {"GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
        try:
            done = subprocess.run(
                ["git", *_QUIET, *arguments],
                cwd=folder or self.folder,
                env=environment,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except FileNotFoundError as error:
            raise UsageError("the `git` program was not found", fix="install git") from error
        if done.returncode not in allowed:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise UsageError(
                f"`git {arguments[0]}` failed: {said[-1] if said else 'no reason given'}",
                where=os.fspath(self.folder),
                fix="name a repository with --repo, and revisions that it has",
            )
        return done.stdout

    def remote(self, *arguments: str) -> str:
        """Standard output of a command that talks to a remote, as its user would: with their ssh and credentials.
        Raises UsageError when the remote cannot be reached."""
        environment = {key: value for key, value in os.environ.items() if key not in _OF_A_REPOSITORY}
        environment |= {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": environment.get("GIT_ASKPASS", "true"),
            "LC_ALL": "C",
        }
        environment.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
        try:
            done = subprocess.run(
                ["git", *_QUIET, "-c", "protocol.ext.allow=never", *arguments],
                cwd=self.root,
                env=environment,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=REMOTE_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise UsageError("the `git` program was not found", fix="install git") from error
        except subprocess.TimeoutExpired as error:
            message = f"the remote did not answer within {REMOTE_SECONDS} s"
            raise UsageError(
                message, where=f"git {arguments[0]}", fix="try again, or fetch by hand and use --head"
            ) from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise UsageError(
                f"`git {arguments[0]}` failed: {next((each for each in said if 'fatal' in each), 'no reason given')}",
                where=os.fspath(self.folder),
                fix="check the network, the remote (`git remote -v`) and your access; --head REV needs neither",
            )
        return done.stdout.decode("utf-8", "surrogateescape")

    def fetch(self, remote: str, refspecs: list[str]) -> None:
        """Objects and refs, and nothing else: no tags, no submodules, no FETCH_HEAD, no housekeeping."""
        quiet = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance")
        self.remote("fetch", *quiet, "--", remote, *refspecs)

    def text(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> str:
        """Standard output as text; bytes that are none survive as surrogates."""
        return self.run(*arguments, allowed=allowed).decode("utf-8", "surrogateescape")

    def listed(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> list[str]:
        """NUL-separated output; paths of the whole work tree, relative to its root."""
        output = self.run(*arguments, allowed=allowed, folder=self.root)
        return [os.fsdecode(name) for name in output.split(b"\0") if name]

    def commit(self, revision: str) -> str | None:
        """Hash of a revision; None if there is none."""
        found = self.text(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", allowed=(0, 1, 128)
        )
        return found.strip() or None

    def require(self, revision: str, option: str) -> str:
        """Hash of a revision. Raises UsageError."""
        found = self.commit(revision)
        if found is None:
            raise UsageError("no such revision", where=f"{option} {revision}", fix="name a branch, tag or commit")
        return found

    def merge_base(self, one: str, other: str) -> str | None:
        """Where two commits parted; None when they share nothing."""
        return self.text("merge-base", one, other, allowed=(0, 1)).strip() or None

    def absent(self, names: list[str]) -> set[str]:
        """Those objects that this repository names and does not hold."""
        asked = "".join(f"{name}\n" for name in names if set(name) != {"0"}).encode()
        done = subprocess.run(
            ["git", *_QUIET, "cat-file", "--batch-check"],
            cwd=self.root,
            input=asked,
            env={**os.environ, "GIT_NO_LAZY_FETCH": "1"},
            capture_output=True,
            check=False,
        )
        return {line.split(" ")[0] for line in done.stdout.decode().splitlines() if line.endswith(" missing")}

    def blobs(self, names: list[str]) -> list[bytes | None]:
        """Contents of objects by their hashes; None for what does not exist."""
        asked = "".join(f"{name}\n" for name in names).encode()
        done = subprocess.run(
            ["git", *_QUIET, "cat-file", "--batch"], cwd=self.root, input=asked, capture_output=True, check=False
        )
        answers = _answers(done.stdout)
        return [next(answers, None) for _ in names]


def _answers(output: bytes) -> Iterator[bytes | None]:
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        head = output[at:end].split(b" ")
        at = end + 1
        if len(head) == 3 and head[2].isdigit() and head[1] in {b"blob", b"tree", b"commit", b"tag"}:
            size = int(head[2])
            yield output[at : at + size] if head[1] == b"blob" else None
            at += size + 1
        else:
            yield None
