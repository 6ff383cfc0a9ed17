"""What every kind must pass, as functions for its tests: nothing here knows a particular kind.

    @pytest.mark.parametrize("check", MATRIX, ids=lambda check: check.__name__)
    def test_reward(check, tmp_path):
        check(Sandbox.copy_of(ROOT, tmp_path), UnitRequest(kind="reward", name="sample", answers={}))

Each check takes a fresh sandbox - a repository with the same files, committed - and raises AssertionError with what
went wrong. They use real git, real files, and processes that are really killed.
"""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ToolError
from tooling.cli.git import find_repository
from tooling.kit.change.disk import ignore
from tooling.kit.change.transaction import pending, recover, transaction
from tooling.new.change import Change, Project, UnitRequest, apply_change, open_project
from tooling.new.commands.generate import plan_unit
from tooling.new.commands.undo import plan_undo
from tooling.new.testing import run_tests

if TYPE_CHECKING:
    from tooling.kit.change.disk import Observe
    from tooling.kit.kind import RegistryEntry

RACES: Final = 20
"""Two-process races that `two_at_once_never_mix` runs."""
_WAIT_SECONDS: Final = 60.0

Tree = dict[str, tuple[int, bytes | None]]
"""Mode and content (None for folders) of every path outside .git."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A git repository of its own to generate into."""

    root: Path

    @classmethod
    def copy_of(cls, root: Path, into: Path) -> Sandbox:
        """Return a repository in `into` with the files of `root` that git knows or would add, all committed."""
        sandbox = cls(into / "repository")
        for name in find_repository(root).files():
            target = sandbox.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
        sandbox.git("init", "--quiet", "--template=", "--initial-branch=main")
        sandbox.commit()
        return sandbox

    @property
    def project(self) -> Project:
        """The project as a command started now would see it; tests run with the interpreter that runs the checks."""
        return replace(open_project(self.root), python=Path(sys.executable))

    def git(self, *arguments: str) -> str:
        """Run git here, and return its output."""
        identity = ("-c", "user.name=sandbox", "-c", "user.email=sandbox@example.com", "-c", "core.autocrlf=false")
        command = ["git", *identity, *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout

    def commit(self) -> None:
        """Commit everything."""
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--message", "state", "--no-verify")

    def tree(self) -> Tree:
        """Return everything outside .git, so that two moments can be compared byte by byte."""
        found: Tree = {}
        waiting = [""]
        while waiting:
            inside = waiting.pop()
            with os.scandir(self.root / inside) as entries:
                for entry in entries:
                    if entry.name == ".git" and not inside:
                        continue
                    path, mode, content = f"{inside}{entry.name}", entry.stat(follow_symlinks=False).st_mode, None
                    if stat.S_ISLNK(mode):
                        content = os.readlink(entry.path).encode()
                    elif stat.S_ISDIR(mode):
                        waiting.append(f"{path}/")
                    else:
                        content = Path(entry.path).read_bytes()
                    found[path] = (mode, content)
        return found

    def plan(self, request: UnitRequest) -> Change:
        """Return the plan for a request now."""
        return plan_unit(self.project, request)

    def apply(self, change: Change, observe: Observe = ignore) -> None:
        """Apply a plan in a transaction."""
        project = self.project
        with transaction(project.repository, wait_seconds=_WAIT_SECONDS, note=_quiet):
            apply_change(project, change, observe=observe)

    def generate(self, request: UnitRequest) -> Change:
        """Plan and apply."""
        unit = self.plan(request)
        self.apply(unit)
        return unit

    def undo(self, request: UnitRequest) -> Change:
        """Plan and apply the removal."""
        unit = plan_undo(self.project, request.kind, request.name)
        self.apply(unit)
        return unit


Check = Callable[[Sandbox, UnitRequest], None]


def planning_writes_nothing(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that a dry run leaves the tree and git as they are."""
    before = sandbox.tree()
    unit = sandbox.plan(request)
    _expect(bool(unit.plan), "a new unit has an empty plan")
    _expect_same(before, sandbox.tree())
    _expect(not (sandbox.root / ".git/areal-new").exists(), "a plan alone left state in the git directory")


def a_second_run_changes_nothing(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that planning again after applying gives an empty plan."""
    sandbox.generate(request)
    again = sandbox.plan(request)
    _expect(not again.plan, f"a second run would change {[change.path for change in again.plan.changes]}")


def undoing_restores_every_byte(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that an undo makes the tree what it was, folders and modes included, and that git sees no change."""
    before = sandbox.tree()
    sandbox.generate(request)
    _expect(sandbox.tree() != before, "generating changed nothing")
    undone = sandbox.undo(request)
    _expect(undone.exit_code == 0, f"untouched files were kept: {undone.kept}")
    _expect_same(before, sandbox.tree())
    _expect(sandbox.git("status", "--porcelain") == "", "git sees changes after the undo")


def an_edit_survives_the_undo(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that a file edited since stays and is reported, and that everything else goes."""
    unit = sandbox.generate(request)
    assert unit.receipt is not None
    path = sandbox.root / next(iter(sorted(unit.receipt.files)))
    edited = path.read_bytes() + b"\n"
    path.write_bytes(edited)
    undone = sandbox.undo(request)
    _expect(undone.exit_code == 4, f"exit code {undone.exit_code} although a file was edited")
    _expect(path.read_bytes() == edited, "the edited file was changed")
    gone = [name for name in unit.receipt.files if name != os.path.relpath(path, sandbox.root)]
    _expect(not any((sandbox.root / name).exists() for name in gone), "an untouched file stayed")


def killed_before_any_step_it_recovers(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that the next run undoes, byte for byte, what a process killed before any step of writing left."""
    before = sandbox.tree()
    unit = sandbox.plan(request)
    repository = sandbox.project.repository
    number = 0
    while _killed_before(number, lambda observe: sandbox.apply(unit, observe)):
        complete = not pending(repository) and sandbox.tree() != before
        recover(repository)
        if complete:
            return  # killed after the journal was closed: the apply was complete
        _expect_same(before, sandbox.tree(), f"after being killed before step {number}")
        number += 1
    raise AssertionError(f"the apply ended after {number} steps without closing its journal last")


def a_dirty_tree_is_left_alone(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that uncommitted work, staged and not, stays as it is, and so does the index."""
    names = [name for name in sandbox.git("ls-files").splitlines() if name.endswith((".md", ".yaml"))][:2]
    for name in names:
        path = sandbox.root / name
        path.write_bytes(path.read_bytes() + b"\nwork in progress\n")
    sandbox.git("add", names[0])
    (sandbox.root / "notes.txt").write_bytes(b"mine\r\n")
    staged, before = sandbox.git("diff", "--cached"), sandbox.tree()
    sandbox.generate(request)
    _expect(sandbox.git("diff", "--cached") == staged, "the index was changed")
    sandbox.undo(request)
    _expect_same(before, sandbox.tree())
    _expect(sandbox.git("diff", "--cached") == staged, "the index was changed by the undo")


def registries_of_any_style_grow_by_their_lines(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that a registry with CRLF, comments, another annotation or unsorted entries gains exactly the new lines,
    or that the edit is refused with the line to paste."""
    unit = sandbox.plan(request)
    entries = [*unit.receipt.entries, *unit.receipt.unproven] if unit.receipt else []
    for path in sorted({entry.file for entry in entries}):
        pristine = (sandbox.root / path).read_bytes()
        mine = [entry for entry in entries if entry.file == path]
        for style, restyle in _STYLES.items():
            (sandbox.root / path).write_bytes(restyle(pristine, mine[0].table))
            _expect_lines_added(sandbox, request, path, mine, style)
        (sandbox.root / path).write_bytes(pristine)


def two_at_once_never_mix(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that two processes that start together make both units, as if one had come after the other."""
    names = (f"{request.name}_one", f"{request.name}_two")
    requests = [replace(request, name=name) for name in names]
    for item in requests:
        sandbox.generate(item)
    expected = sandbox.tree()
    for item in requests:
        sandbox.undo(item)
    start = sandbox.tree()
    for race in range(RACES):
        children = [_forked(partial(_generate_under_lock, sandbox, item)) for item in requests]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        _expect(codes == [0, 0], f"race {race}: exit codes {codes}")
        _expect_same(expected, sandbox.tree(), f"race {race}")
        for item in requests:
            sandbox.undo(item)
        _expect_same(start, sandbox.tree(), f"after undoing race {race}")


def its_tests_pass(sandbox: Sandbox, request: UnitRequest) -> None:
    """Check that the tests that come with the unit pass in the repository they were generated into."""
    unit = sandbox.generate(request)
    _expect(bool(unit.tests), "the kind generates no test")
    project = sandbox.project
    result = run_tests(sandbox.root, list(unit.tests), python=project.python)
    _expect(result.ok, result.detail)


MATRIX: Final[tuple[Check, ...]] = (
    planning_writes_nothing,
    a_second_run_changes_nothing,
    undoing_restores_every_byte,
    an_edit_survives_the_undo,
    killed_before_any_step_it_recovers,
    a_dirty_tree_is_left_alone,
    registries_of_any_style_grow_by_their_lines,
    two_at_once_never_mix,
    its_tests_pass,
)
"""Every check; the last one costs what the unit's own tests cost."""


def _with_comments(source: bytes, table: str) -> bytes:
    """Add a comment above the first entry, one behind it, and one above the closing bracket."""
    lines = source.decode().splitlines(keepends=True)
    first, last = _entry_lines(lines, table)
    lines[last] = f"{lines[last]}    # keep sorted\n"
    lines[first] = f"    # the oldest\n{lines[first].rstrip()}  # kept for old checkpoints\n"
    return "".join(lines).encode()


def _without_annotation(source: bytes, table: str) -> bytes:
    lines = source.decode().splitlines(keepends=True)
    changed = [f"{table} = {line.partition(' = ')[2]}" if line.startswith(f"{table}:") else line for line in lines]
    return "".join(changed).encode()


def _unsorted(source: bytes, table: str) -> bytes:
    lines = source.decode().splitlines(keepends=True)
    first, last = _entry_lines(lines, table)
    lines[first : last + 1] = reversed(lines[first : last + 1])
    return "".join(lines).encode()


_STYLES: Final[dict[str, Callable[[bytes, str], bytes]]] = {
    "as it is": lambda source, table: source,
    "CRLF": lambda source, table: source.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "commented": _with_comments,
    "unannotated": _without_annotation,
    "unsorted": _unsorted,
}


def _entry_lines(lines: list[str], table: str) -> tuple[int, int]:
    """Return the indices of the first and last entry of a table that has one entry per line."""
    start = next(index for index, line in enumerate(lines) if line.startswith((f"{table}:", f"{table} =")))
    end = next(index for index, line in enumerate(lines) if index > start and line.startswith(("}", "]", ")")))
    return start + 1, end - 1


def _expect_lines_added(
    sandbox: Sandbox, request: UnitRequest, path: str, entries: list[RegistryEntry], style: str
) -> None:
    before = (sandbox.root / path).read_bytes()
    try:
        unit = sandbox.plan(request)
    except ToolError as error:
        _expect(error.code == "registry-shape", f"{style}: {error}")
        _expect(
            any(entry.key in error.fix for entry in entries), f"{style}: refused without the line to paste: {error}"
        )
        return
    after = unit.plan.read(path)
    assert after is not None
    lines_before, lines_after = (source.decode().splitlines(keepends=True) for source in (before, after))
    difference = difflib.ndiff(lines_before, lines_after)
    changed = [line for line in difference if line[:1] in "+-"]
    _expect(
        len(changed) == len(entries) and all(line.startswith("+ ") for line in changed),
        f"{style}: expected {len(entries)} new lines in {path}, found {changed}",
    )
    _expect(
        (b"\r\n" in before) == (b"\r\n" in after) and after.count(b"\n") == before.count(b"\n") + len(entries), style
    )


def _generate_under_lock(sandbox: Sandbox, request: UnitRequest) -> None:
    project = sandbox.project
    with transaction(project.repository, wait_seconds=_WAIT_SECONDS, note=_quiet):
        unit = plan_unit(project, request)
        apply_change(project, unit)


def _forked(action: Callable[[], None]) -> int:
    """Run an action in a child process, and return its id. It exits with 0, or 1 when the action raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:  # noqa: BLE001 - reported and turned into the exit code of the child
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def _killed_before(number: int, action: Callable[[Callable[[str], None]], None]) -> bool:
    """Run an action in a child process that kills itself before its step `number`; False when it ended before."""
    steps = iter(range(1_000_000))

    def observe(step: str) -> None:
        if next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    child = _forked(lambda: action(observe))
    status = os.waitpid(child, 0)[1]
    _expect(os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the apply failed before step {number}")
    return os.WIFSIGNALED(status)


def _quiet(line: str) -> None:
    """Recoveries are what the checks are about; they look at the tree instead."""


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _expect_same(before: Tree, after: Tree, when: str = "") -> None:
    if before != after:
        paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        raise AssertionError(f"{when or 'the tree'}: differs in {', '.join(paths[:10])}")
