"""Moves the branch that is checked out, with index and work tree, and recovers from a move that was killed.

Order: record, work tree and index, branch, record removed. Killed anywhere, `recover` brings the work tree and index to
where the branch is. Refuses what would overwrite something that no commit has.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError
from tooling.pull_request.backups import load_record, remove_record, save_record, state_folder
from tooling.pull_request.branch import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tooling.pull_request.backups import PushRecord
    from tooling.pull_request.git import WorkTree

    Observe = Callable[[str], None]


_NO_MODE: Final = "000000"
_WRITING: Final = {"GIT_OPTIONAL_LOCKS": "1"}
LINK: Final = "120000"
SUBMODULE: Final = "160000"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file of a commit. Example: TreeEntry("100644", "e69de29b...")."""

    mode: str
    hash: str


@dataclass(frozen=True, slots=True)
class PathDifference:
    """A path that two commits disagree about; None where it does not exist."""

    path: str
    before: TreeEntry | None
    after: TreeEntry | None

    @property
    def digits(self) -> int:
        """Of a hash here."""
        return len((self.before or self.after or TreeEntry("", "")).hash)

    @property
    def submodule(self) -> bool:
        """Whether either side is one: its files are no business of the outer repository."""
        return any(side is not None and side.mode == SUBMODULE for side in (self.before, self.after))


def differences(git: WorkTree, before: str, after: str) -> tuple[PathDifference, ...]:
    """Return every path that differs; renames are a removal and an addition."""
    fields = iter(git.listed("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", before, after, "--"))
    found = []
    for field in fields:
        modes_and_names = field.lstrip(":").split(" ")[:4]
        old, new = (
            None if mode == _NO_MODE else TreeEntry(mode, name)
            for mode, name in zip(modes_and_names[:2], modes_and_names[2:], strict=True)
        )
        found.append(PathDifference(next(fields), old, new))
    return tuple(found)


def refuse_in_the_way(git: WorkTree, found: Sequence[PathDifference]) -> None:
    """Raise ConflictError for files that git does not follow (ignored ones too) in the place of new ones, and for edits
    that git ignores on request: moving would overwrite them."""
    new = [each.path for each in found if each.before is None]
    listed = git.listed("ls-files", "-v", "-z")
    tracked = {line[2:] for line in listed}
    lost = sorted({place for path in new for place in _occupied(git.root, path, tracked)})
    if lost:
        raise ConflictError(
            f"files that git does not follow are in the way of new ones: {named(lost)}",
            where=os.fspath(git.root),
            fix="move them away; nothing was changed",
        )
    # Files marked assume-unchanged or skip-worktree that are to change and are not what git believes
    changing = {each.path: each for each in found}
    flagged = [line[2:] for line in listed if line[:1] == "S" or line[:1].islower()]
    asked = [path for path in flagged if path in changing]
    present = on_disk(git, asked)
    hidden = [path for path in asked if present[path] not in {None, changing[path].before}]
    if hidden:
        raise ConflictError(
            f"edited files that git overlooks on request would be overwritten: {named(hidden)}",
            where=os.fspath(git.root),
            fix="`git update-index --no-assume-unchanged --no-skip-worktree FILE`, then commit or stash the edits",
        )


def _occupied(root: Path, path: str, tracked: set[str]) -> Iterator[str]:
    """Yield what exists on disk at `path` or above it, and is not tracked."""
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


def on_disk(git: WorkTree, paths: Sequence[str]) -> dict[str, TreeEntry | None]:
    """Return what lies on disk as git would store it (after its filters); None where there is nothing, and an entry
    that no commit has for folders and special files."""
    return {path: _look(git, path) for path in paths}


def _look(git: WorkTree, path: str) -> TreeEntry | None:
    place = git.root / path
    if any(parent.is_symlink() for parent in list(place.parents)[: len(path.split("/")) - 1]):
        return None  # what the name leads to lies somewhere else
    try:
        mode = place.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        target = os.fsencode(os.readlink(place))
        return TreeEntry(LINK, git.text("hash-object", "--stdin", given=target))
    if not stat.S_ISREG(mode):
        return TreeEntry("folder" if stat.S_ISDIR(mode) else "special", "")
    name = git.text("hash-object", f"--path={path}", "--", path)
    return TreeEntry("100755" if mode & stat.S_IXUSR else "100644", name)


_PATIENCE: Final = 5.0
"""Seconds in which another git (one that outlived a killed run) may let go of the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What came of an interrupted run."""

    reference: str
    commit: str
    """What the branch is."""
    completed: bool
    """Whether the branch is the new one."""
    rescued: tuple[str, ...] = ()
    """Where files were put that belong to neither side."""
    note: str = ""


def refuse_losses(git: WorkTree, before: str, after: str) -> None:
    """Raise ConflictError where a move would overwrite something that no commit has."""
    if before != after:
        refuse_in_the_way(git, differences(git, before, after))


def moved_submodules(git: WorkTree, before: str, after: str) -> tuple[str, ...]:
    """Return submodules that the new commit wants at another commit; their own files are never touched here."""
    found = differences(git, before, after) if before != after else ()
    return tuple(each.path for each in found if each.submodule and each.after is not None)


def move(git: WorkTree, record: PushRecord, observe: Observe) -> None:
    """Bring the branch that is checked out, the index and the work tree from `before` to `after`. Raises ConflictError,
    with everything as it was, when something stands against it."""
    repository = git.repository
    git.attempt("update-index", "-q", "--refresh")
    refuse_losses(git, record.before, record.after)
    observe("record")
    save_record(repository, record)
    observe("work tree")
    done = git.attempt(
        "read-tree", "-m", "-u", "--no-recurse-submodules", record.before, record.after, environment=_WRITING
    )
    if done.status != 0:
        recover(git)
        raise ConflictError(
            f"git refuses to change the work tree: {done.complaint}",
            where=os.fspath(git.root),
            fix="nothing was changed; put right what it names, and run it again",
        )
    observe("branch")
    moved = git.attempt(
        "update-ref",
        "-m",
        f"areal-pr: from {record.before[:12]}, kept as {record.backup}",
        "--end-of-options",
        record.reference,
        record.after,
        record.before,
        hooks=True,
        environment=_WRITING,
    )
    if moved.status != 0:
        recover(git)
        raise ConflictError(
            f"the branch cannot be moved: {moved.complaint}", where=record.reference, fix="run it again"
        )
    observe("record removed")
    remove_record(repository)


def recover(git: WorkTree) -> Recovery | None:
    """Complete what an interrupted run began: where the branch has moved, the work tree and the index follow; where it
    has not, they go back. None when there is nothing to do. Raises ConflictError when that needs a person."""
    repository = git.repository
    record = load_record(repository)
    if record is None:
        return None
    here = git.text("symbolic-ref", "--quiet", "HEAD", allowed=(0, 1))
    now = git.commit(record.reference)
    if here != record.reference or now not in {record.before, record.after}:
        remove_record(repository)
        note = "work went on since then: the work tree was left alone"
        return Recovery(reference=record.reference, commit=now or "", completed=False, note=note)
    lock = git.repository.git_dir / "index.lock"
    end = time.monotonic() + _PATIENCE
    while lock.exists():
        if time.monotonic() > end:
            raise ConflictError(
                "the index is locked by another git, or by one that was killed",
                where=os.fspath(lock),
                fix="if no git runs in this repository, remove that file; then run it again",
            )
        time.sleep(0.05)
    found = differences(git, record.before, record.after)
    forward = now == record.after
    staged = _staged(git)
    # What somebody staged since then would get lost where neither side has it.
    foreign = []
    for each in found:
        here_staged = staged.get(each.path, set())
        if len(here_staged) > 1 or not here_staged <= {each.before, each.after}:
            foreign.append(each.path)
    if foreign:
        raise ConflictError(
            f"an earlier run was interrupted, and other changes were staged since then: {', '.join(foreign[:10])}",
            where=os.fspath(git.root),
            fix="commit them, or `git restore --staged FILE`; then run it again",
        )
    rescued = _restore(git, found, staged, forward=forward)
    remove_record(repository)
    return Recovery(reference=record.reference, commit=now, completed=forward, rescued=tuple(rescued))


def _staged(git: WorkTree) -> dict[str, set[TreeEntry]]:
    """Read the index; several entries for a path with conflicts."""
    found: dict[str, set[TreeEntry]] = {}
    for line in git.listed("ls-files", "--stage", "-z"):
        state, _, path = line.partition("\t")
        mode, name, _ = state.split(" ")
        found.setdefault(path, set()).add(TreeEntry(mode, name))
    return found


def _restore(
    git: WorkTree, found: Sequence[PathDifference], staged: dict[str, set[TreeEntry]], *, forward: bool
) -> list[str]:
    """Bring every differing path to one side, on disk and in the index; what is not checked out on purpose (a sparse
    work tree) stays away."""
    away = {line[2:] for line in git.listed("ls-files", "-t", "-z") if line.startswith("S ")}
    files = [each for each in found if not each.submodule]
    present = on_disk(git, [each.path for each in files])
    rescued = list[str]()
    wrong = list[PathDifference]()
    for each in files:
        wanted, other = (each.after, each.before) if forward else (each.before, each.after)
        if present[each.path] == wanted or (each.path in away and present[each.path] is None):
            continue
        wrong.append(each)
        if present[each.path] not in {other, None} and present[each.path] != TreeEntry("folder", ""):
            rescued.append(_put_aside(git, each.path))
    _write_index(git, found, staged, forward=forward)
    for each in wrong:
        if (each.after if forward else each.before) is None:
            _remove(git.root, each.path)
    wanted_paths = [each.path for each in wrong if (each.after if forward else each.before) is not None]
    if wanted_paths:
        given = b"".join(os.fsencode(path) + b"\0" for path in wanted_paths)
        git.run("checkout-index", "-f", "-u", "-z", "--stdin", given=given, environment=_WRITING)
    git.attempt("update-index", "-q", "--refresh", environment=_WRITING)
    return rescued


def _write_index(
    git: WorkTree, found: Sequence[PathDifference], staged: dict[str, set[TreeEntry]], *, forward: bool
) -> None:
    """Write index entries only where they differ: an entry that is written anew forgets its flags."""
    lines = []
    for each in sorted(found, key=lambda each: (each.after if forward else each.before) is not None):
        wanted = each.after if forward else each.before
        if staged.get(each.path, set()) == ({wanted} if wanted is not None else set()):
            continue
        state = f"{wanted.mode} {wanted.hash}" if wanted is not None else f"0 {'0' * each.digits}"
        lines.append(os.fsencode(f"{state}\t{each.path}") + b"\0")
    if lines:
        git.run("update-index", "-z", "--index-info", given=b"".join(lines), environment=_WRITING)


def _put_aside(git: WorkTree, path: str) -> str:
    """Copy a file that neither side has; return where it is."""
    folder = state_folder(git.repository) / "rescued"
    number = 0
    while os.path.lexists(place := folder / f"{number:04d}" / path):
        number += 1
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(git.root / path, place, follow_symlinks=False)
    return os.fspath(place)


def _remove(root: Path, path: str) -> None:
    """Remove a file, and folders that are empty without it."""
    place = root / path
    if any(parent.is_symlink() for parent in list(place.parents)[: len(Path(path).parts) - 1]):
        return
    if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
        place.unlink()
    for parent in list(place.parents)[: len(Path(path).parts) - 1]:
        try:
            parent.rmdir()
        except OSError:
            return
