"""The only place of this package that runs git: argument lists, never a shell, and nothing that a repository's own
configuration could start (hooks, file system monitors, external diffs, filters of text)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_HARMLESS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_RECORD: Final = "\x01"


@dataclass(frozen=True, slots=True)
class Change:
    """A commit that changed one file."""

    commit: str
    date: str
    """Of the author: "2026-03-14"."""
    blob: str
    """Hash of the file's content then; "" where the commit removed it."""


def run_git(root: Path, *arguments: str, allowed: tuple[int, ...] = (0,), given: bytes | None = None) -> bytes:
    """Standard output of a git command. Raises UsageError with git's own words when it refuses."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *_HARMLESS, *arguments], cwd=root, env=environment, input=given, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise UsageError("the `git` program was not found", fix="install git, or add its folder to PATH") from error
    if done.returncode not in allowed:
        words = done.stderr.decode(errors="replace").strip()
        raise UsageError(f"`git {arguments[0]}` failed: {words}", where=os.fspath(root))
    return done.stdout


def changes(root: Path, path: str) -> list[Change]:
    """The commits that changed a file, newest first, through renames. Empty without commits."""
    shape = f"--format={_RECORD}%H %ad"
    options = ["--follow", "--raw", "--no-abbrev", "-M", "--date=short", "--no-ext-diff", "--no-textconv", "--no-color"]
    output = run_git(root, "log", "--topo-order", shape, *options, "--", path, allowed=(0, 128))
    return list(_changes(output.decode(errors="replace").split(_RECORD)[1:]))


def _changes(records: Sequence[str]) -> Iterator[Change]:
    for record in records:
        head, _, rest = record.partition("\n")
        commit, date = head.split(" ", 1)
        raw = next((line for line in rest.splitlines() if line.startswith(":")), None)
        if raw is None:
            continue
        blob = raw.split(" ")[3]
        yield Change(commit, date, "" if set(blob) == {"0"} else blob)


def contents(root: Path, blobs: Sequence[str]) -> list[bytes | None]:
    """Contents of objects by their hashes; None for one that this clone does not have."""
    if not blobs:
        return []
    output = run_git(root, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in blobs).encode())
    found, at = list[bytes | None](), 0
    while at < len(output):
        end = output.index(b"\n", at)
        head = output[at:end].split(b" ")
        at = end + 1
        if len(head) == 3 and head[2].isdigit():
            size = int(head[2])
            found.append(output[at : at + size] if head[1] == b"blob" else None)
            at += size + 1
        else:
            found.append(None)
    return found


def is_ancestor(root: Path, older: str, newer: str) -> bool:
    """Whether `newer` was made knowing `older`; a commit is its own ancestor."""
    output = run_git(root, "rev-list", "--max-count=1", older, f"^{newer}", allowed=(0, 128))
    return not output.strip()


def positions(root: Path) -> dict[str, int]:
    """Every commit with its place in history, the newest first."""
    output = run_git(root, "rev-list", "--topo-order", "HEAD", allowed=(0, 128)).decode()
    return {commit: number for number, commit in enumerate(output.split())}
