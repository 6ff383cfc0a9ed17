"""A process killed (SIGKILL, no clean-up of any kind) before any step of an apply, or of the recovery from one, leaves
a tree that the next run turns back byte for byte. Children are real processes."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tooling.cli.errors import ConflictError
from tooling.cli.git import find_repository
from tooling.kit.change.plan import Plan
from tooling.kit.change.transaction import apply_plan, pending, recover


def snapshot(root):
    """Every path with its mode and bytes; git's own files too, our state left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name != ".git/areal-new" and not name.startswith(".git/areal-new/"):
            info = path.lstat()
            found[name] = (stat.S_IMODE(info.st_mode), path.read_bytes() if stat.S_ISREG(info.st_mode) else None)
    return found


def left_behind(repository):
    """What our state holds, and temporary files anywhere."""
    return sorted(path.name for path in repository.state.rglob("*")) + sorted(
        path.name for path in repository.root.rglob("*.tmp")
    )


def copy_of(root, name):
    return shutil.copytree(root, root.with_name(f"{root.name}-{name}"), symlinks=True)


def make_tree(root):
    """A dirty work tree with an index, modes that are not the default, and folders that a plan will empty."""
    subprocess.run(["git", "init", "-q", "--template=", str(root)], check=True)
    files = {
        "a.py": b"a = 1\n",
        "run.sh": b"\xff\r\n",
        "old/deep/only.py": b"only\n",
        "old/deep/er/x": b"x",
        "b/c": b"c",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    subprocess.run(["git", "-C", str(root), "add", "a.py", "run.sh"], check=True)
    (root / "a.py").write_bytes(b"a = 2  # not staged\n")
    (root / "run.sh").chmod(0o751)
    (root / "old/deep").chmod(0o710)
    (root / "old/deep/er").chmod(0o705)


def apply_example(root, observe):
    repository = find_repository(root)
    plan = Plan(root)
    plan.write("a.py", b"a = 3\n", reason="modify")
    plan.write("run.sh", b"", reason="modify")
    plan.write("new/er/file.py", b"x = 1\n", reason="create")
    plan.write("b/d", b"d", reason="create")
    for name in ("old/deep/only.py", "old/deep/er/x"):
        plan.delete(name, reason="delete")
    apply_plan(repository, plan, observe=observe)


def recover_example(root, observe):
    recover(find_repository(root), observe=observe)


def steps_of(action, root):
    steps = []
    action(root, steps.append)
    return steps


def killed_before(number, action, root):
    """Run the action in a child process that kills itself before step `number`."""
    child = os.fork()
    if child == 0:
        count = iter(range(10_000))
        try:
            action(root, lambda step: os.kill(os.getpid(), signal.SIGKILL) if next(count) == number else None)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture
def make_copy(tmp_path):
    """Fresh copies of one tree, each in its own folder."""
    make_tree(tmp_path / "pristine")
    count = iter(range(100_000))

    def copy():
        return shutil.copytree(tmp_path / "pristine", tmp_path / f"copy-{next(count)}", symlinks=True)

    return copy


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_killed_before_any_step_of_an_apply_the_next_run_takes_all_of_it_back(make_copy, every):
    root = make_copy()
    before = snapshot(root)
    steps = steps_of(apply_example, root)
    after = snapshot(root)
    ending = next(
        number for number, step in enumerate(steps) if step == f"remove {root}/.git/areal-new/journal/journal.json"
    )
    for verb in ("create", "write", "attributes", "replace", "remove", "remove folder", "folder"):
        assert any(step.startswith(f"{verb} {root}") for step in steps), f"the example does not {verb} anything"
    dirty = 0
    for number, step in list(enumerate(steps))[::every]:
        root = make_copy()
        killed_before(number, apply_example, root)
        repository = find_repository(root)
        dirty += snapshot(root) != before
        was_pending = pending(repository)
        lines = recover(repository)
        assert snapshot(root) == (before if number <= ending else after), step
        assert left_behind(repository) == [], step
        assert was_pending or not lines
        assert recover(repository) == []
    assert dirty > len(steps) / every / 2


@pytest.mark.exhaustive
def test_killed_before_every_step_of_every_recovery_the_run_after_that_finishes_it(make_copy):
    root = make_copy()
    before = snapshot(root)
    steps = steps_of(apply_example, root)
    killed = 0
    for number in range(len(steps)):
        crashed = make_copy()
        killed_before(number, apply_example, crashed)
        if not pending(find_repository(crashed)):
            continue
        probe = copy_of(crashed, "probe")
        for again in range(len(steps_of(recover_example, probe))):
            root = copy_of(crashed, again)
            killed_before(again, recover_example, root)
            recover(find_repository(root))
            assert snapshot(root) == before, (steps[number], again)
            assert left_behind(find_repository(root)) == []
            killed += 1
            shutil.rmtree(root)
    assert killed > 100


def crash_at(root, text):
    """Kill an apply before the first step that contains `text`, and return the repository."""
    probe = copy_of(root, "probe")
    steps = [step.replace(str(probe), str(root)) for step in steps_of(apply_example, probe)]
    killed_before(next(number for number, step in enumerate(steps) if text in step), apply_example, root)
    return find_repository(root)


def test_an_edit_made_between_the_crash_and_the_recovery_is_kept_beside(make_copy):
    root = make_copy()
    before = snapshot(root)
    repository = crash_at(root, "remove folder")  # all files are in their new state
    (root / "a.py").write_bytes(b"my own edit\n")
    (root / "new/er/file.py").write_bytes(b"mine too\n")
    (root / "new/er/neighbour.py").write_bytes(b"not of the plan\n")
    lines = recover(repository)
    told = [line for line in lines if "your version was kept as" in line]
    kept = {line.split(":")[0]: line.rpartition(" kept as ")[2] for line in told}
    assert set(kept) == {"a.py", "new/er/file.py"}
    assert [Path(kept[name]).read_bytes() for name in sorted(kept)] == [b"my own edit\n", b"mine too\n"]
    assert all(path.startswith(str(repository.state / "rescued")) for path in kept.values())
    left = snapshot(root)
    assert left.pop("new/er/neighbour.py")[1] == b"not of the plan\n"
    assert left.pop("new")
    assert left.pop("new/er")
    assert left == before


def test_a_file_that_was_not_reached_yet_keeps_an_edit_made_since(make_copy):
    root = make_copy()
    repository = crash_at(root, f"replace {root}/a.py")  # a.py and what follows is untouched
    (root / "run.sh").write_bytes(b"my own edit\n")
    recover(repository)
    assert (root / "run.sh").read_bytes() == b"my own edit\n"
    assert (root / "a.py").read_bytes() == b"a = 2  # not staged\n"
    assert left_behind(repository) == []


def test_an_edit_made_after_half_a_recovery_is_left_alone_where_it_was_done(make_copy):
    root = make_copy()
    before = snapshot(root)
    repository = crash_at(root, "remove folder")
    probe = copy_of(root, "half")
    steps = [step.replace(str(probe), str(root)) for step in steps_of(recover_example, probe)]
    killed_before(steps.index(f"replace {root}/a.py") + 1, recover_example, root)
    assert (root / "a.py").read_bytes() == b"a = 2  # not staged\n"
    (root / "a.py").write_bytes(b"my own edit\n")
    assert not any("a.py" in line for line in recover(repository))
    before["a.py"] = (0o644, b"my own edit\n")
    assert snapshot(root) == before
    assert left_behind(repository) == []


def test_a_deleted_file_between_the_crash_and_the_recovery_comes_back(make_copy):
    root = make_copy()
    before = snapshot(root)
    repository = crash_at(root, "remove folder")
    (root / "a.py").unlink()
    shutil.rmtree(root / "new")
    recover(repository)
    assert snapshot(root) == before


def test_a_folder_in_place_of_a_file_stops_the_recovery_without_loss(make_copy):
    root = make_copy()
    before = snapshot(root)
    repository = crash_at(root, "remove folder")
    (root / "a.py").unlink()
    (root / "a.py").mkdir()
    (root / "a.py/inside").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(ConflictError, match="not a regular file any more") as caught:
            recover(repository)
        assert "move it away" in caught.value.fix
        assert pending(repository)
    shutil.rmtree(root / "a.py")
    recover(repository)
    assert snapshot(root) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", [b"", b"{", b"null", b'{"format": "areal-new-journal", "version": 1}'])
def test_a_damaged_journal_loses_nothing_and_says_where_the_old_content_is(make_copy, damage):
    root = make_copy()
    repository = crash_at(root, "remove folder")
    journal = repository.state / "journal"
    (journal / "journal.json").write_bytes(damage)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(ConflictError, match="journal of an interrupted run is damaged") as caught:
        recover(repository)
    assert str(journal) in caught.value.fix
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert (journal / "0000-x").exists() or any(path.name.endswith("-a.py") for path in journal.iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize("ending", ["missing", "changed"])
def test_old_content_that_is_missing_or_changed_is_noticed_before_anything_is_put_back(make_copy, ending):
    root = make_copy()
    repository = crash_at(root, "remove folder")
    backup = next(path for path in (repository.state / "journal").iterdir() if path.name.endswith("-a.py"))
    if ending == "missing":
        backup.unlink()
    else:
        backup.write_bytes(b"changed")
    before = snapshot(root)
    with pytest.raises(ConflictError, match=r"a\.py: its old content is not what was recorded"):
        recover(repository)
    assert snapshot(root) == before


def test_a_journal_cannot_lead_outside_of_the_repository(make_copy):
    root = make_copy()
    repository = crash_at(root, "remove folder")
    journal = repository.state / "journal" / "journal.json"
    victim = root.parent / "victim"
    victim.write_bytes(b"a = 3\n")
    journal.write_text(journal.read_text().replace('"a.py"', '"../victim"'))
    with pytest.raises(ConflictError, match="unsafe path"):
        recover(repository)
    assert victim.read_bytes() == b"a = 3\n"


def test_a_folder_that_became_a_link_since_does_not_lead_a_recovery_outside(make_copy):
    root = make_copy()
    before = snapshot(root)
    repository = crash_at(root, "remove folder")
    outside = root.parent / f"{root.name}-outside"
    (root / "b").rename(outside)
    (root / "b").symlink_to(outside)
    theirs = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(ConflictError, match="a folder became a link"):
        recover(repository)
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == theirs
    assert pending(repository)
    (root / "b").unlink()
    outside.rename(root / "b")
    recover(repository)
    assert snapshot(root) == before
