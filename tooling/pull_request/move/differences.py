"""What differs between two commits file by file, and what lies on disk in the place of such a file."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tooling.pull_request.git import Git

_NO_MODE: Final = "000000"
LINK: Final = "120000"
SUBMODULE: Final = "160000"
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a commit. Example: Entry("100644", "e69de29b...")."""

    mode: str
    hash: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A path that two commits disagree about; None where it does not exist."""

    path: str
    before: Entry | None
    after: Entry | None

    @property
    def digits(self) -> int:
        """Of a hash here."""
        return len((self.before or self.after or Entry("", "")).hash)

    @property
    def submodule(self) -> bool:
        """Whether either side is one: its files are no business of the outer repository."""
        return any(side is not None and side.mode == SUBMODULE for side in (self.before, self.after))


def differences(git: Git, before: str, after: str) -> tuple[Difference, ...]:
    """Every path that differs; renames are a removal and an addition."""
    fields = iter(git.listed("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", before, after, "--"))
    return tuple(_difference(field, next(fields)) for field in fields)


def _difference(states: str, path: str) -> Difference:
    old_mode, new_mode, old, new = states.lstrip(":").split(" ")[:4]
    return Difference(path, _entry(old_mode, old), _entry(new_mode, new))


def _entry(mode: str, name: str) -> Entry | None:
    return None if mode == _NO_MODE else Entry(mode, name)


def refuse_in_the_way(git: Git, found: Sequence[Difference]) -> None:
    """Raise ConflictError for files that git does not follow (ignored ones too) in the place of new ones, and for edits
    that git was told not to see: moving would overwrite them."""
    new = [each.path for each in found if each.before is None]
    tracked = set(git.listed("ls-files", "-z")) if new else set()
    lost = sorted({place for path in new for place in _occupied(git.root, path, tracked)})
    if lost:
        raise ConflictError(
            f"files that git does not follow are in the way of new ones: {_named(lost)}",
            where=os.fspath(git.root),
            fix="move them away; nothing was changed",
        )
    hidden = _hidden_edits(git, {each.path: each for each in found})
    if hidden:
        raise ConflictError(
            f"edited files that git was told to overlook would be overwritten: {_named(hidden)}",
            where=os.fspath(git.root),
            fix="`git update-index --no-assume-unchanged --no-skip-worktree FILE`, then commit or stash the edits",
        )


def _occupied(root: Path, path: str, tracked: set[str]) -> Iterator[str]:
    """What of `path`, or above it, exists on disk and is nobody's."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        above = "/".join(parts[:depth])
        place = root / above
        if (place.is_symlink() or (os.path.lexists(place) and not place.is_dir())) and above not in tracked:
            yield above
            return
    place = root / path
    if place.is_dir() and not place.is_symlink():
        for folder, _, files in os.walk(place):
            for name in files:
                inner = os.path.relpath(os.path.join(folder, name), root)
                if inner not in tracked:
                    yield inner
    elif os.path.lexists(place) and path not in tracked:
        yield path


def _hidden_edits(git: Git, changing: dict[str, Difference]) -> list[str]:
    """Files marked assume-unchanged or skip-worktree that are to change and are not what git believes."""
    flagged = [line[2:] for line in git.listed("ls-files", "-v", "-z") if line[:1] == "S" or line[:1].islower()]
    asked = [path for path in flagged if path in changing]
    found = on_disk(git, asked) if asked else {}
    return [path for path in asked if found[path] not in {None, changing[path].before}]


def on_disk(git: Git, paths: Sequence[str]) -> dict[str, Entry | None]:
    """What lies on disk as git would store it (after its filters); None where there is nothing, and an entry that no
    commit has for folders and special files."""
    return {path: _look(git, path) for path in paths}


def _look(git: Git, path: str) -> Entry | None:
    place = git.root / path
    if any(parent.is_symlink() for parent in list(place.parents)[: len(path.split("/")) - 1]):
        return None  # what the name leads to lies somewhere else
    try:
        mode = place.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        target = os.fsencode(os.readlink(place))
        return Entry(LINK, git.line("hash-object", "--stdin", given=target))
    if not stat.S_ISREG(mode):
        return Entry("folder" if stat.S_ISDIR(mode) else "special", "")
    name = git.line("hash-object", f"--path={path}", "--", path)
    return Entry("100755" if mode & stat.S_IXUSR else "100644", name)


def _named(paths: Sequence[str]) -> str:
    shown = ", ".join(repr(path) if not path.isprintable() else path for path in paths[:_SHOWN])
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
