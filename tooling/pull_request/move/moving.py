"""The move itself. Order: record, work tree and index, branch, record removed. Killed anywhere, `recover` brings the
work tree and the index to where the branch is."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError
from tooling.pull_request.move import record as records
from tooling.pull_request.move.differences import Difference, Entry, differences, on_disk, refuse_in_the_way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.cli.git import Repository
    from tooling.pull_request.git import Git
    from tooling.pull_request.move.record import Record

    Observe = Callable[[str], None]

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


def refuse_losses(git: Git, before: str, after: str) -> None:
    """Raise ConflictError where a move would overwrite something that no commit has."""
    if before != after:
        refuse_in_the_way(git, differences(git, before, after))


def moved_submodules(git: Git, before: str, after: str) -> tuple[str, ...]:
    """Submodules that the new commit wants at another commit; their own files are never touched here."""
    found = differences(git, before, after) if before != after else ()
    return tuple(each.path for each in found if each.submodule and each.after is not None)


def move(git: Git, record: Record, observe: Observe) -> None:
    """Bring the branch that is checked out, the index and the work tree from `before` to `after`. Raises ConflictError,
    with everything as it was, when something stands against it."""
    repository = git.repository
    git.attempt("update-index", "-q", "--refresh")
    refuse_losses(git, record.before, record.after)
    observe("record")
    records.save(repository, record)
    observe("work tree")
    done = git.attempt(
        "read-tree", "-m", "-u", "--no-recurse-submodules", record.before, record.after, environment=_writing()
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
        environment=_writing(),
    )
    if moved.status != 0:
        recover(git)
        raise ConflictError(
            f"the branch cannot be moved: {moved.complaint}", where=record.reference, fix="run it again"
        )
    observe("record removed")
    records.remove(repository)


def pending(repository: Repository) -> Record | None:
    """What an interrupted run left to be recovered."""
    return records.load(repository)


def recover(git: Git) -> Recovery | None:
    """End what an interrupted run began: where the branch has moved, the work tree and the index follow; where it has
    not, they go back. None when there is nothing to do. Raises ConflictError when that needs a person."""
    repository = git.repository
    record = records.load(repository)
    if record is None:
        return None
    here = git.line("symbolic-ref", "--quiet", "HEAD", allowed=(0, 1))
    now = git.commit(record.reference)
    if here != record.reference or now not in {record.before, record.after}:
        records.remove(repository)
        note = "work went on since then: the work tree was left alone"
        return Recovery(reference=record.reference, commit=now or "", completed=False, note=note)
    _wait_for_index(git)
    found = differences(git, record.before, record.after)
    forward = now == record.after
    staged = _staged(git)
    _refuse_staged(git, found, staged)
    rescued = _restore(git, found, staged, forward=forward)
    records.remove(repository)
    return Recovery(reference=record.reference, commit=now, completed=forward, rescued=tuple(rescued))


def _wait_for_index(git: Git) -> None:
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


def _staged(git: Git) -> dict[str, set[Entry]]:
    """What the index has; several entries for a path with conflicts."""
    found: dict[str, set[Entry]] = {}
    for line in git.listed("ls-files", "--stage", "-z"):
        state, _, path = line.partition("\t")
        mode, name, _ = state.split(" ")
        found.setdefault(path, set()).add(Entry(mode, name))
    return found


def _refuse_staged(git: Git, found: Sequence[Difference], staged: dict[str, set[Entry]]) -> None:
    """What somebody staged since then would get lost: neither side has it."""
    foreign = []
    for each in found:
        here = staged.get(each.path, set())
        if len(here) > 1 or not here <= {each.before, each.after}:
            foreign.append(each.path)
    if foreign:
        raise ConflictError(
            f"an earlier run was interrupted, and other changes were staged since then: {', '.join(foreign[:10])}",
            where=os.fspath(git.root),
            fix="commit them, or `git restore --staged FILE`; then run it again",
        )


def _restore(git: Git, found: Sequence[Difference], staged: dict[str, set[Entry]], *, forward: bool) -> list[str]:
    """Bring every differing path to one side, on disk and in the index; what is not checked out on purpose (a sparse
    work tree) stays away."""
    away = {line[2:] for line in git.listed("ls-files", "-t", "-z") if line.startswith("S ")}
    files = [each for each in found if not each.submodule]
    present = on_disk(git, [each.path for each in files])
    rescued = list[str]()
    wrong = list[Difference]()
    for each in files:
        wanted, other = (each.after, each.before) if forward else (each.before, each.after)
        if present[each.path] == wanted or (each.path in away and present[each.path] is None):
            continue
        wrong.append(each)
        if present[each.path] not in {other, None} and present[each.path] != Entry("folder", ""):
            rescued.append(_put_aside(git, each.path))
    _write_index(git, found, staged, forward=forward)
    for each in wrong:
        if (each.after if forward else each.before) is None:
            _remove(git.root, each.path)
    wanted_paths = [each.path for each in wrong if (each.after if forward else each.before) is not None]
    if wanted_paths:
        given = b"".join(os.fsencode(path) + b"\0" for path in wanted_paths)
        git.run("checkout-index", "-f", "-u", "-z", "--stdin", given=given, environment=_writing())
    git.attempt("update-index", "-q", "--refresh", environment=_writing())
    return rescued


def _write_index(git: Git, found: Sequence[Difference], staged: dict[str, set[Entry]], *, forward: bool) -> None:
    """Only where it differs: an entry that is written anew forgets its flags."""
    lines = []
    for each in sorted(found, key=lambda each: (each.after if forward else each.before) is not None):
        wanted = each.after if forward else each.before
        if staged.get(each.path, set()) == ({wanted} if wanted is not None else set()):
            continue
        state = f"{wanted.mode} {wanted.hash}" if wanted is not None else f"0 {'0' * each.digits}"
        lines.append(os.fsencode(f"{state}\t{each.path}") + b"\0")
    if lines:
        git.run("update-index", "-z", "--index-info", given=b"".join(lines), environment=_writing())


def _put_aside(git: Git, path: str) -> str:
    """A copy of a file that neither side has; where it is."""
    folder = records.state_folder(git.repository) / "rescued"
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


def _writing() -> dict[str, str]:
    return {"GIT_OPTIONAL_LOCKS": "1"}
