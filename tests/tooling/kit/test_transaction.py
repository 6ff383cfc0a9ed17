"""Applying a plan: what is planned happens, what moved is refused, what fails is taken back at once."""

from __future__ import annotations

import os
import stat
import subprocess
import time

import pytest

from tooling.cli.errors import ConflictError, WriteError
from tooling.cli.git import find_repository
from tooling.kit.change.plan import Plan
from tooling.kit.change.transaction import apply_plan, pending, recover, transaction


def snapshot(root):
    """Every path with its mode, and its bytes or link target; git's own files too, our state left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name == ".git/areal-new" or name.startswith(".git/areal-new/"):
            continue
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else os.readlink(path) if path.is_symlink() else None
        found[name] = (stat.S_IMODE(info.st_mode), content)
    return found


def state_files(repository):
    return sorted(path.relative_to(repository.state).as_posix() for path in repository.state.rglob("*"))


@pytest.fixture
def repository(tmp_path):
    """A dirty work tree: staged, changed and new files, an executable, CRLF, folders that hold one file only."""
    subprocess.run(["git", "init", "-q", "--template=", str(tmp_path)], check=True)
    files = {"keep.txt": b"keep\n", "run.sh": b"#!/bin/sh\r\n", "old/deep/only.py": b"only\n", "old/other.py": b"o"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "old/deep").chmod(0o750)
    subprocess.run(["git", "-C", str(tmp_path), "add", "run.sh", "keep.txt"], check=True)
    (tmp_path / "keep.txt").write_bytes(b"edited after staging\n")
    (tmp_path / "empty").mkdir()
    return find_repository(tmp_path)


def example_plan(repository):
    """Something of everything: create in new folders, change, delete the only file of a folder."""
    plan = Plan(repository.root)
    plan.write("run.sh", b"#!/bin/bash\r\n", reason="modify")
    plan.write("new/er/file.py", b"x = 1\n", reason="create")
    plan.write("new/second.py", b"", reason="create")
    plan.write("empty/filled.py", b"\xff\0", reason="create")
    plan.delete("old/deep/only.py", reason="delete")
    return plan


def test_the_tree_is_as_planned_and_nothing_else_is_touched(repository):
    root, before = repository.root, snapshot(repository.root)
    plan = example_plan(repository)
    apply_plan(repository, plan)
    expected = dict(before)
    del expected["old/deep/only.py"], expected["old/deep"]
    expected["run.sh"] = (0o755, b"#!/bin/bash\r\n")
    expected |= {"new": (0o755, None), "new/er": (0o755, None), "empty/filled.py": (0o644, b"\xff\0")}
    expected |= {"new/er/file.py": (0o644, b"x = 1\n"), "new/second.py": (0o644, b"")}
    assert snapshot(root) == expected
    assert state_files(repository) == []
    assert not pending(repository)


def test_planning_again_after_applying_finds_nothing_to_do(repository):
    apply_plan(repository, example_plan(repository))
    before = snapshot(repository.root)
    again = example_plan(repository)
    assert not again
    apply_plan(repository, again)
    assert snapshot(repository.root) == before


def test_the_inverse_plan_gives_the_old_tree_back(repository):
    before = snapshot(repository.root)
    plan = example_plan(repository)
    apply_plan(repository, plan)
    inverse = Plan(repository.root)
    for change in plan.changes:
        assert inverse.read(change.path) == change.after
        if change.before is None:
            inverse.delete(change.path, reason="undo")
        else:
            inverse.write(change.path, change.before, reason="undo")
    apply_plan(repository, inverse)
    (repository.root / "empty").mkdir()  # it was empty before, and emptied folders go
    (repository.root / "old/deep").chmod(0o750)  # a plan knows no modes of folders
    assert snapshot(repository.root) == before


def test_the_umask_is_respected_and_modes_of_changed_files_are_kept(repository):
    (repository.root / "run.sh").chmod(0o640)
    old = os.umask(0o077)
    try:
        apply_plan(repository, example_plan(repository))
    finally:
        os.umask(old)
    modes = {name: mode for name, (mode, _) in snapshot(repository.root).items()}
    assert (modes["run.sh"], modes["new/second.py"], modes["new"]) == (0o640, 0o600, 0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_changed_file_keeps_its_owner(repository):
    os.chown(repository.root / "run.sh", 12345, 54321)
    apply_plan(repository, example_plan(repository))
    info = (repository.root / "run.sh").stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (12345, 54321, 0o755)


def test_every_file_that_moved_since_is_named_and_nothing_is_written(repository):
    plan = example_plan(repository)
    (repository.root / "run.sh").write_bytes(b"edited")
    (repository.root / "new").mkdir()
    (repository.root / "new/second.py").write_bytes(b"somebody was faster")
    before = snapshot(repository.root)
    with pytest.raises(ConflictError, match="changed since the plan was made") as caught:
        apply_plan(repository, plan)
    assert caught.value.where == "new/second.py, run.sh"
    assert snapshot(repository.root) == before
    assert not repository.state.exists()


def test_a_link_that_took_the_place_of_a_folder_is_not_followed(repository, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    plan = example_plan(repository)
    (repository.root / "new").symlink_to(outside)
    with pytest.raises(ConflictError, match="symbolic link"):
        apply_plan(repository, plan)
    assert list(outside.iterdir()) == []


def test_a_plan_for_another_tree_is_refused(repository, tmp_path_factory):
    plan = Plan(tmp_path_factory.mktemp("elsewhere"))
    plan.write("a", b"", reason="")
    with pytest.raises(ConflictError, match="was made for"):
        apply_plan(repository, plan)


def test_a_write_protected_file_stays_as_it_is(repository):
    for name in ("run.sh", "old/deep/only.py"):
        path = repository.root / name
        mode = path.stat().st_mode
        path.chmod(0o444)
        before = snapshot(repository.root)
        with pytest.raises(WriteError, match="write-protected") as caught:
            apply_plan(repository, example_plan(repository))
        assert caught.value.where == name
        assert snapshot(repository.root) == before
        path.chmod(mode)


def all_steps(repository):
    """How many steps the example takes, and what it leaves behind: learnt by doing it on a copy."""
    copy = repository.root.parent / f"{repository.root.name}-copy"
    subprocess.run(["cp", "-a", str(repository.root), str(copy)], check=True)
    steps = []
    apply_plan(find_repository(copy), example_plan(find_repository(copy)), observe=steps.append)
    return steps, snapshot(copy)


class Stop:
    """Raises `error` when told of step `number`."""

    def __init__(self, number, error):
        self.left, self.error = number, error

    def __call__(self, step):
        if self.left == 0:
            self.left -= 1  # once: the rollback is told of its steps too
            raise self.error
        self.left -= 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), RuntimeError("bug")])
def test_whatever_is_raised_before_any_step_everything_is_taken_back_at_once(repository, error):
    repository.state.mkdir()  # the lock made it in real life; without it the first apply takes one step more
    before = snapshot(repository.root)
    steps, applied = all_steps(repository)
    ending = next(number for number, step in enumerate(steps) if step.endswith("/journal.json") and "remove" in step)
    assert len(steps) > 25
    expected = WriteError if isinstance(error, OSError) else type(error)
    for number in range(ending + 1):
        with pytest.raises(expected) as caught:
            apply_plan(repository, example_plan(repository), observe=Stop(number, error))
        assert snapshot(repository.root) == before, steps[number]
        assert state_files(repository) == [], steps[number]
        if expected is WriteError:
            assert "No space left on device" in str(caught.value)
            assert "free some space" in caught.value.fix
    # Past the end of the apply there is nothing to take back, and an error while tidying up is not a failure.
    if isinstance(error, OSError):
        apply_plan(repository, example_plan(repository), observe=Stop(ending + 1, error))
        assert snapshot(repository.root) == applied
        assert recover(repository) == []
        assert state_files(repository) == []


def test_an_edit_between_the_check_and_the_write_is_not_overwritten(repository):
    before = snapshot(repository.root)

    def meddle(step):
        if step.startswith("replace") and step.endswith("new/er/file.py"):
            (repository.root / "run.sh").write_bytes(b"edited in between")

    with pytest.raises(ConflictError, match="changed while the plan was applied") as caught:
        apply_plan(repository, example_plan(repository), observe=meddle)
    assert caught.value.where == "run.sh"
    before["run.sh"] = (0o755, b"edited in between")
    assert snapshot(repository.root) == before


@pytest.mark.parametrize("step", ["create", "replace"])
def test_a_folder_that_becomes_a_link_on_the_way_leads_nowhere(repository, tmp_path_factory, step):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "only.py").write_bytes(b"only\n")
    plan = Plan(repository.root)
    plan.write("keep.txt", b"new\n", reason="first")
    plan.write("old/deep/only.py", b"new\n", reason="second")
    kept = (repository.root / "keep.txt").read_bytes()

    def meddle(told):
        if told.startswith(step) and (told.endswith(("keep.txt", "-0000.tmp"))) and ".git/" not in told:
            (repository.root / "old/deep").rename(repository.root / "old/moved")
            (repository.root / "old/deep").symlink_to(outside)

    with pytest.raises((ConflictError, WriteError), match="a folder became a link"):
        apply_plan(repository, plan, observe=meddle)
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("only.py", b"only\n")]
    (repository.root / "old/deep").unlink()
    (repository.root / "old/moved").rename(repository.root / "old/deep")
    recover(repository)
    assert (repository.root / "keep.txt").read_bytes() == kept
    assert (repository.root / "old/deep/only.py").read_bytes() == b"only\n"
    assert not list(repository.root.rglob(".areal-new-*"))


def test_an_interrupted_run_must_be_taken_back_before_the_next_apply(repository):
    child = os.fork()
    if child == 0:
        apply_plan(repository, example_plan(repository), observe=lambda s: os._exit(0) if "new/er/file" in s else None)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert pending(repository)
    plan = Plan(repository.root)
    plan.write("other.txt", b"", reason="")
    with pytest.raises(ConflictError, match="interrupted") as caught:
        apply_plan(repository, plan)
    assert "areal-new recover" in caught.value.fix
    notes = []
    with transaction(repository, wait_seconds=0, note=notes.append):
        apply_plan(repository, plan)
    assert notes == ["empty/filled.py: removed again", "old/deep/only.py: put back"]
    assert (repository.root / "other.txt").exists()


def test_nine_files_are_applied_in_well_under_a_second_of_computing(repository):
    plan = Plan(repository.root)
    for number in range(9):
        plan.write(f"package/part_{number}/file.py", b"x = 1\n" * 200, reason="")
    started = time.thread_time()
    apply_plan(repository, plan)
    assert time.thread_time() - started < 5


def test_everything_is_on_the_medium_before_the_next_stage_relies_on_it(repository, monkeypatch):
    """A kill loses no cached pages, a power failure does: so what was flushed before which step is what counts."""
    log = []
    flush = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (log.append(os.readlink(f"/proc/self/fd/{handle}")), flush(handle)))
    apply_plan(repository, example_plan(repository), observe=lambda step: log.append(f"step {step}"))
    journal, root = repository.state / "journal", repository.root

    def before(step):
        return {path for path in log[: log.index(f"step {step}")] if not path.startswith("step ")}

    backups = {path for path in log if path.startswith(f"{journal}/0")}  # flushed, at any time
    assert {path.rpartition("-")[2] for path in backups} == {"only.py", "run.sh"}
    assert backups | {str(journal), f"{journal}/journal.json.tmp"} <= before(f"replace {journal}/journal.json")
    first_swap = before(f"remove {root}/old/deep/only.py")
    assert {str(journal), str(repository.state), str(repository.git_dir)} <= first_swap
    temporary = [path for path in first_swap if path.endswith(".tmp") and ".areal-new-" in path]
    assert sorted(os.path.dirname(path) for path in temporary) == sorted(
        str(root / folder) for folder in ("", "new", "new/er", "empty")
    )
    after_swap = set(log[log.index(f"step replace {root}/run.sh") : log.index(f"step remove {journal}/journal.json")])
    assert {str(root / folder) for folder in ("", "old", "new", "new/er", "empty")} <= after_swap
