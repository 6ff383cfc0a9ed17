"""A run that dies while it writes, or meets another one, leaves the old state or the new one: nothing between."""

import os
import shutil
import signal
import subprocess

import pytest

from tooling.cli.git import find_repository
from tooling.kit.change import transaction
from tooling.kit.change.disk import Disk
from tooling.upgrade.__main__ import main

WORDS = ("engine==2.0", "--fix", "--no-lock", "--wait", "30")


@pytest.fixture
def in_this_process(world, monkeypatch):
    """What child processes of this one need to run commands without starting Python anew."""
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    assert main(["impact", "engine==2.0", "--repo", str(world.root)]) == 10, "everything is imported and cached now"
    return world


def finished(root, is_fatal):
    """Runs the whole command in a forked process that kills itself before the first step of its writing of which
    `is_fatal(number, step)` is true; whether it got to its end. Fails if it ended in another way."""
    count = iter(range(10_000))

    class Fatal(Disk):
        def __init__(self, _observe):
            super().__init__(self._step)

        def _step(self, step):
            if is_fatal(next(count), step):
                os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        code = 99
        try:
            transaction.Disk = Fatal
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            code = main([*WORDS, "--repo", str(root)])
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 10
    return True


def tree_of(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }


@pytest.mark.exhaustive
def test_killed_before_any_step_of_the_write_the_next_run_finds_the_old_state(in_this_process):
    world = in_this_process
    copy = world.folder / "copy"
    old = tree_of(world.root)
    shutil.copytree(world.root, copy, symlinks=True)
    assert finished(copy, lambda _number, _step: False)
    new = tree_of(copy)
    assert new.keys() - old.keys() == {"upgrade-summary.md"}
    half = []
    for fatal in range(10_000):
        shutil.rmtree(copy)
        shutil.copytree(world.root, copy, symlinks=True)
        if finished(copy, lambda number, _step, fatal=fatal: number == fatal):
            break
        repository = find_repository(copy)
        half += [fatal] if tree_of(copy) not in (old, new) else []
        is_done = tree_of(copy) == new and not transaction.pending(repository)
        transaction.recover(repository)
        assert tree_of(copy) == (new if is_done else old), f"killed before step {fatal}"
    assert fatal > 25
    assert len(half) > 5, "some steps left a half-written tree"


def test_the_next_upgrade_takes_back_what_a_killed_one_left_and_goes_on(in_this_process):
    world = in_this_process
    old = tree_of(world.root)
    copy = shutil.copytree(world.root, world.folder / "copy", symlinks=True)
    assert finished(copy, lambda _number, _step: False)
    new = tree_of(copy)
    assert not finished(world.root, lambda _number, step: step.startswith("replace") and "checklists" in step)
    assert tree_of(world.root) not in (old, new)
    for looking in (["engine==2.0", "--dry-run"], ["impact", "engine==2.0", "--from", "1.0"]):
        assert "an interrupted run left files half written" in world.run(*looking, expect=10).stderr
    done = world.run(*WORDS, expect=10)
    assert "rolled back" in done.stderr
    assert tree_of(world.root) == new


@pytest.mark.exhaustive
def test_of_two_runs_at_once_one_is_told_to_wait(world):
    """The first holds the lock while it waits for a git that takes its time."""
    first = subprocess.Popen(
        world.command("engine==2.0"),
        cwd=world.root,
        env=world.with_slow_git(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (world.folder / "waiting").exists():
            assert first.poll() is None
        second = world.json("engine==1.5", "--wait", "0", expect=75)
        assert str(first.pid) in second["error"]
    finally:
        (world.folder / "go-on").touch()
        first.wait(timeout=60)
    assert first.returncode == 10
    assert "engine==2.0" in world.read("pyproject.toml")


def test_a_file_that_may_not_be_written_stops_everything(world):
    (world.root / "Dockerfile").chmod(0o444)
    old = world.tree()
    done = world.json("engine==2.0", expect=1)
    assert (done["code"], done["where"]) == ("write", "Dockerfile")
    assert world.tree() == old
