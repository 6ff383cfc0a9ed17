"""The only place of this package that runs git: argument lists, never a shell, and nothing that a repository's own
configuration could start (hooks, file system monitors, external diffs, filters of text)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
_LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_EXTERNAL_DIFF")
_FIELD = "\x02"
_RECORD = "\x01"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file of a commit or of the index. Example: ChangedFile("a/b.py", "M", 3, 1)."""

    path: str
    status: str
    """"A" added, "M" modified, "D" deleted, "R" renamed, "C" copied, "T" of another type."""
    added: int
    """Lines; 0 for binary files."""
    deleted: int
    before: str = ""
    """The old path of a renamed file."""

    @property
    def churn(self) -> int:
        """Lines added and deleted."""
        return self.added + self.deleted


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: two commits by their hashes, or the index with HEAD."""

    before: str = "HEAD"
    after: str = ""
    """"" for the index."""

    @property
    def named(self) -> tuple[str, ...]:
        """The sides as `git diff` wants them."""
        return (self.before, self.after) if self.after else ("--cached",)


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a range; `files` only where they were asked for."""

    hash: str
    parents: tuple[str, ...]
    date: str
    message: str
    files: tuple[ChangedFile, ...] = ()


def run_git(root: Path, *arguments: str, allowed: tuple[int, ...] = (0,), given: bytes | None = None) -> bytes:
    """Standard output of a git command. Raises UsageError with git's own words when it refuses."""
    # `config` runs nothing, and is asked what the repository itself says.
    harmless = [] if arguments[0] == "config" else ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
    harmless += ["-c", "core.quotePath=false"]
    command = ["git", *harmless, *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in _LOCAL}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=root, env=environment, input=given, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UsageError("the `git` program was not found", fix="install git, or add its folder to PATH") from error
    if done.returncode not in allowed:
        words = done.stderr.decode(errors="replace").strip()
        unknown = "bad revision" in words or "unknown revision" in words
        fix = "name commits that are here: `git branch --all` and `git log` show them" if unknown else ""
        raise UsageError(f"`git {arguments[0]}` failed: {words}", where=os.fspath(root), fix=fix)
    return done.stdout


def commits(root: Path, revisions: str, *, limit: int = 0, files: bool = False, since: str = "") -> list[Commit]:
    """The commits of a range ("main..HEAD", "HEAD"), newest first, without those that `since` leads to. Raises
    UsageError for what git does not know."""
    if revisions.startswith("-"):
        raise UsageError("is no revision", where=revisions, fix="write BASE..HEAD")
    options = [f"--max-count={limit}"] if limit else []
    options += ["--raw", "--numstat", "-M", "-l0", "--diff-merges=off", *DIFF] if files else []
    shape = f"--format={_RECORD}%H{_FIELD}%P{_FIELD}%cs{_FIELD}%B{_FIELD}"
    excluded = [f"^{since}"] if since else []
    output = run_git(root, "log", "-z", shape, *options, "--end-of-options", revisions, *excluded, "--")
    return [_commit(record) for record in output.decode(errors="replace").split(_RECORD)[1:]]


def knows(root: Path, revision: str) -> bool:
    """Whether something names a commit."""
    name = f"{revision}^{{commit}}"
    return bool(run_git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", name, allowed=(0, 1, 128)))


def latest_tag(root: Path, revision: str = "HEAD") -> str:
    """The nearest tag before a revision; "" without any."""
    return run_git(root, "describe", "--tags", "--abbrev=0", revision, allowed=(0, 128)).decode().strip()


def path_setting(root: Path, name: str) -> str:
    """A path of git's configuration, "~" expanded; "" when it is not set."""
    return os.fsdecode(run_git(root, "config", "--includes", "--type=path", "--get", name, allowed=(0, 1))).strip("\n")


def changed_files(root: Path, sides: Sides) -> list[ChangedFile]:
    """What differs between two sides (in a new repository, between nothing and the index)."""
    output = run_git(root, "diff", "--raw", "--numstat", "-z", "-M", *DIFF, *sides.named, "--")
    return list(_files(output.decode(errors="surrogateescape").split("\0")))


def hunks(root: Path, sides: Sides) -> bytes:
    """The unified diff of two sides without context."""
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    return run_git(root, "diff", "-U0", "-M", *prefixes, *DIFF, *sides.named, "--")


def blob(root: Path, name: str) -> bytes | None:
    """Content of "HEAD:path" or ":path" (the index); None where there is none."""
    output = run_git(root, "cat-file", "--batch", given=name.encode(errors="surrogateescape") + b"\n")
    head, _, content = output.partition(b"\n")
    return content[:-1] if b" blob " in head else None


def _commit(record: str) -> Commit:
    name, parents, date, message, rest = record.split(_FIELD, 4)
    files = tuple(_files(rest.strip("\n\0").split("\0"))) if rest.strip("\n\0") else ()
    return Commit(name, tuple(parents.split()), date, message, files)


def _files(fields: list[str]) -> Iterator[ChangedFile]:
    """Records of `--raw --numstat -z`: first the states of all files, then their lines."""
    states: dict[str, tuple[str, str]] = {}
    waiting = iter(field.lstrip("\n") for field in fields)
    for field in waiting:
        if field.startswith(":"):
            status, old = field.rsplit(" ", 1)[1][:1], next(waiting)
            new = next(waiting) if status in "RC" else old
            states[new] = (status, old if status in "RC" else "")
        elif field.count("\t") >= 2:
            added, deleted, path = field.split("\t", 2)
            if not path:
                _, path = next(waiting), next(waiting)
            status, old = states.get(path, ("M", ""))
            yield ChangedFile(path, status, _number(added), _number(deleted), old)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
