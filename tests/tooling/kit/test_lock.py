"""One holder at a time, named to whoever waits, and never one that is dead. Holders are real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tooling.cli.errors import LockedError, WriteError
from tooling.cli.git import Repository
from tooling.kit.change.lock import repository_lock
from tooling.kit.change.plan import Plan
from tooling.kit.change.transaction import apply_plan, transaction

RACES = 8
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from tooling.kit.change.lock import repository_lock
from tooling.cli.git import find_repository
with repository_lock(find_repository(Path(sys.argv[1])), wait_seconds=0):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", "--template=", str(tmp_path)], check=True)
    return Repository(tmp_path, tmp_path / ".git")


@pytest.fixture
def holder(repository):
    """A process that holds the lock and has started a child of its own."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(repository.root)], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    process.kill()
    process.communicate()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def test_whoever_waits_in_vain_learns_who_holds_the_lock(repository, holder):
    started = time.monotonic()
    with pytest.raises(LockedError) as caught, repository_lock(repository, wait_seconds=0.2):
        pytest.fail("two holders")
    assert 0.2 <= time.monotonic() - started < 30
    assert caught.value.exit_code == 75
    assert f"pid {holder.pid} on {os.uname().nodename} since 20" in caught.value.message
    assert str(repository.root) in caught.value.message


def test_a_killed_holder_leaves_no_lock_even_while_its_children_live(repository, holder):
    holder.kill()
    holder.wait()
    with repository_lock(repository, wait_seconds=0):
        described = json.loads((repository.state / "lock").read_text())
    assert described["pid"] == os.getpid()
    assert (repository.state / "lock").read_text() == ""


def test_waiting_ends_as_soon_as_the_holder_does(repository, holder):
    os.kill(holder.pid, signal.SIGSTOP)  # it holds on, whatever it is doing
    os.kill(holder.pid, signal.SIGKILL)
    started = time.monotonic()
    with repository_lock(repository, wait_seconds=60):
        assert time.monotonic() - started < 30


def test_a_process_does_not_wait_for_itself_forever(repository):
    again = repository_lock(repository, wait_seconds=0)
    with repository_lock(repository, wait_seconds=0), pytest.raises(LockedError, match=f"pid {os.getpid()} "), again:
        pytest.fail("entered twice")
    with repository_lock(repository, wait_seconds=0):
        pass


def test_an_error_inside_gives_the_lock_back(repository):
    with pytest.raises(ZeroDivisionError), repository_lock(repository, wait_seconds=0):
        raise ZeroDivisionError
    with repository_lock(repository, wait_seconds=0):
        pass


def test_a_forked_child_that_lives_on_does_not_keep_it(repository):
    with repository_lock(repository, wait_seconds=0):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with repository_lock(repository, wait_seconds=0):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it does live on
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_an_unreadable_description_is_no_reason_to_fail(repository):
    with repository_lock(repository, wait_seconds=0):
        (repository.state / "lock").write_text("{torn")
        with pytest.raises(LockedError, match="another process"), repository_lock(repository, wait_seconds=0):
            pytest.fail("two holders")


def test_a_git_folder_that_cannot_hold_a_lock_is_named(repository):
    repository.state.write_text("a file where the folder belongs")
    with pytest.raises(WriteError, match="cannot be locked") as caught, repository_lock(repository, wait_seconds=0):
        pytest.fail("locked nothing")
    assert caught.value.where == str(repository.state / "lock")


def append_line(repository, line, wait_seconds, *, barrier):
    """In a child process: plan and apply one more line, having waited for the other child; its exit code."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.read(barrier, 1)  # blocks until the parent closes the other end
        with transaction(repository, wait_seconds=wait_seconds, note=lambda line: os._exit(71)):
            plan = Plan(repository.root)
            plan.write("registry.py", (plan.read("registry.py") or b"") + line, reason="one more line")
            plan.write(f"{line.decode().strip()}.py", line, reason="its file")
            apply_plan(repository, plan)
        code = 0
    except LockedError as error:
        code = error.exit_code
    finally:
        os._exit(code)


@pytest.mark.sample(1)
@pytest.mark.parametrize("wait_seconds", [0, 30])
def test_two_processes_at_once_never_lose_a_line(repository, wait_seconds):
    """Races: with patience both win, without it one may be refused, and then it changed nothing."""
    refused = 0
    for race in range(RACES):
        lines = [f"entry_{race}_{side}\n".encode() for side in "ab"]
        before = (repository.root / "registry.py").read_bytes() if race else b""
        reading, writing = os.pipe()
        children = []
        for line in lines:
            children.append(append_line(repository, line, wait_seconds, barrier=reading))
        # The children inherited the writing end; a byte for each starts them, whoever closes it.
        os.write(writing, b"go")
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        os.close(reading)
        os.close(writing)
        added = (repository.root / "registry.py").read_bytes().removeprefix(before)
        winners = [line for line, code in zip(lines, codes, strict=True) if code == 0]
        assert set(codes) <= ({0} if wait_seconds else {0, 75})
        assert winners
        assert sorted(added.splitlines(keepends=True)) == winners
        for line in lines:
            assert (repository.root / f"{line.decode().strip()}.py").exists() == (line in winners)
        refused += len(lines) - len(winners)
    assert wait_seconds or refused < 2 * RACES
    assert sorted(path.name for path in repository.state.iterdir()) == ["lock"]
