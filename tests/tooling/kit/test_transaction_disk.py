"""Disks that refuse: full, read-only, immutable, too small for one file. The refusals are the kernel's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.cli.errors import WriteError
from tooling.cli.git import find_repository
from tooling.kit.change.plan import Plan
from tooling.kit.change.transaction import apply_plan, recover, transaction

ROOT = Path(__file__).resolve().parents[3]

PRELUDE = """
import os, resource, signal, stat, subprocess, sys
from pathlib import Path
from tooling.cli.errors import ToolError, WriteError
from tooling.kit.change.plan import Plan
from tooling.cli.git import find_repository
from tooling.kit.change.transaction import apply_plan, pending, recover, transaction

root = Path(sys.argv[1])
subprocess.run(["git", "init", "-q", "--template=", str(root)], check=True)
(root / "changed.txt").write_bytes(b"old content\\n" * 1000)
(root / "gone").mkdir()
(root / "gone/only.txt").write_bytes(b"to be deleted\\n" * 1000)
(root / "locked").mkdir()
(root / "locked/file.txt").write_bytes(b"locked\\n")

def snapshot():
    paths = (path for path in sorted(root.rglob("*")) if "areal-new" not in path.parts)
    return {path: (path.lstat().st_mode, path.is_file() and path.read_bytes()) for path in paths}

def plan(size=10, name="made/new.bin"):
    plan = Plan(root)
    plan.delete("gone/only.txt", reason="")
    plan.write("changed.txt", b"new content\\n" * 1000, reason="")
    plan.write(name, bytes(size), reason="")
    return plan

def refused(plan):
    try:
        with transaction(repository, wait_seconds=0, note=print):
            apply_plan(repository, plan)
    except WriteError as error:
        return error
    raise SystemExit("it was not refused")

def run(*command):
    subprocess.run(command, check=True)

repository = find_repository(root)
before = snapshot()
"""


def succeeds(*command):
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def on_a_small_disk(tmp_path, program):
    """Run a program on a disk of 512 kB, in a mount namespace of its own, so that nothing stays mounted; its output."""
    if shutil.which("unshare") is None:
        pytest.skip("no `unshare` program to make a mount namespace with")
    enter = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if not succeeds(*enter, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)):
        pytest.skip("this kernel or container allows no private mounts")
    shell = 'mount -t tmpfs -o size=512k tmpfs "$DISK" && exec "$@"'
    command = [*enter, "sh", "-ec", shell, "sh", sys.executable, "-c", PRELUDE + program, str(tmp_path / "disk")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DISK": str(tmp_path / "disk")}
    (tmp_path / "disk").mkdir()
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_on_a_full_disk_nothing_is_changed_and_the_file_that_did_not_fit_is_named(tmp_path):
    output = on_a_small_disk(
        tmp_path,
        """
error = refused(plan(size=1_000_000))
assert snapshot() == before
assert not pending(repository) and os.listdir(repository.state) == ["lock"]
with transaction(repository, wait_seconds=0, note=print):
    apply_plan(repository, plan(size=1000))
assert (root / "changed.txt").read_bytes().startswith(b"new content")
print(error)
""",
    )
    assert output.startswith("made/new.bin: cannot be written; nothing was changed: No space left on device; free some")


def test_a_disk_too_full_for_the_backup_is_left_alone(tmp_path):
    output = on_a_small_disk(
        tmp_path,
        """
filler = root / ".git" / "filler"
try:
    filler.write_bytes(bytes(10_000_000))
except OSError:
    pass
print(refused(plan()))
filler.unlink()
assert snapshot() == before
assert recover(repository) == [] and snapshot() == before
""",
    )
    assert "No space left on device" in output


def test_an_interrupted_run_is_taken_back_on_a_disk_without_one_free_byte(tmp_path):
    output = on_a_small_disk(
        tmp_path,
        """
def die(step):
    if step.startswith("remove folder"):
        os.kill(os.getpid(), signal.SIGKILL)

child = os.fork()
if child == 0:
    apply_plan(repository, plan(), observe=die)
assert os.WIFSIGNALED(os.waitpid(child, 0)[1]) and pending(repository)
(root / "gone").is_dir() or sys.exit("killed too late")
filler = root / ".git" / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print(error.strerror)
with transaction(repository, wait_seconds=0, note=print):
    pass
filler.unlink()
assert snapshot() == before
""",
    )
    assert output.splitlines() == [
        "No space left on device",
        "made/new.bin: removed again",
        "changed.txt: put back",
        "gone/only.txt: put back",
    ]


def test_a_git_folder_on_another_disk_is_rolled_back_by_copying(tmp_path):
    output = on_a_small_disk(
        tmp_path,
        """
state = repository.state
state.mkdir()
run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(state))
child = os.fork()
if child == 0:
    apply_plan(repository, plan(), observe=lambda s: s.startswith("remove folder") and os.kill(os.getpid(), 9))
assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
assert state.stat().st_dev != root.stat().st_dev and snapshot() != before
print(*recover(repository), sep="\\n")
assert snapshot() == before and os.listdir(state) == []
""",
    )
    assert output.splitlines() == ["made/new.bin: removed again", "changed.txt: put back", "gone/only.txt: put back"]


def test_a_read_only_folder_is_named_and_nothing_is_changed(tmp_path):
    output = on_a_small_disk(
        tmp_path,
        """
locked = str(root / "locked")
run("mount", "--bind", locked, locked)
run("mount", "-o", "remount,ro,bind", locked)
first, second = refused(plan(name="locked/new.bin")), refused(plan(name="locked/deep/new.bin"))
third = refused(plan(name="locked/file.txt"))
assert snapshot() == before and not pending(repository)
print(first, second, third, sep="\\n")
""",
    )
    first, second, third = output.splitlines()
    assert first.startswith(
        "locked/new.bin: cannot be written; nothing was changed: Read-only file system; make the file"
    )
    assert second.startswith("locked/deep: cannot be written; nothing was changed: Read-only file system")
    assert third.startswith("locked/file.txt: is write-protected; nothing was changed")


def test_a_read_only_repository_cannot_be_locked_and_a_pending_run_waits(tmp_path):
    output = on_a_small_disk(
        tmp_path,
        """
run("mount", "-o", "remount,bind,ro", str(root))
print(refused(plan()))
run("mount", "-o", "remount,bind,rw", str(root))
child = os.fork()
if child == 0:
    apply_plan(repository, plan(), observe=lambda s: s.startswith("remove folder") and os.kill(os.getpid(), 9))
os.waitpid(child, 0)
run("mount", "-o", "remount,bind,ro", str(root))
try:
    recover(repository)
except WriteError as error:
    print(error)
run("mount", "-o", "remount,bind,rw", str(root))
recover(repository)
assert snapshot() == before
""",
    )
    first, second = output.splitlines()
    assert "the repository cannot be locked: Read-only file system; make it writable" in first
    assert "an interrupted run could not be rolled back: Read-only file system" in second


def test_when_even_the_way_back_is_refused_the_journal_stays_for_the_next_run(tmp_path):
    output = on_a_small_disk(
        tmp_path,
        """
def freeze(step):  # the disk turns read-only in the middle of the swap, as it does after an I/O error
    if step.startswith("replace") and step.endswith("made/new.bin"):
        run("mount", "-o", "remount,bind,ro", str(root))

try:
    apply_plan(repository, plan(), observe=freeze)
except WriteError as error:
    print(error)
assert pending(repository) and snapshot() != before
run("mount", "-o", "remount,bind,rw", str(root))
assert sorted(recover(repository)) == ["changed.txt: put back", "gone/only.txt: put back"]
assert snapshot() == before
""",
    )
    assert "Read-only file system" in output
    assert "and it could not be rolled back" in output
    assert "areal-new recover" in output


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", "--template=", str(tmp_path)], check=True)
    (tmp_path / "a.txt").write_bytes(b"a\n")
    (tmp_path / "b.txt").write_bytes(b"b\n")
    return find_repository(tmp_path)


def test_a_file_that_turns_immutable_stops_the_swap_and_what_was_swapped_before_comes_back(repository):
    immutable = str(repository.root / "b.txt")
    if shutil.which("chattr") is None or not (
        succeeds("chattr", "+i", immutable) and succeeds("chattr", "-i", immutable)
    ):
        pytest.skip("needs root and a file system with immutable files")
    before = (repository.root / "a.txt").stat()

    def protect(step):
        if step == f"replace {immutable}":
            assert (repository.root / "a.txt").read_bytes() == b"new a\n"
            subprocess.run(["chattr", "+i", immutable], check=True)

    plan = Plan(repository.root)
    plan.write("a.txt", b"new a\n", reason="")
    plan.write("b.txt", b"new b\n", reason="")
    try:
        with pytest.raises(WriteError, match="nothing was changed: Operation not permitted") as caught:
            apply_plan(repository, plan, observe=protect)
        with pytest.raises(WriteError, match="write-protected"):
            apply_plan(repository, plan)
    finally:
        subprocess.run(["chattr", "-i", immutable], check=True)
    assert (caught.value.where, caught.value.fix[:16]) == ("b.txt", "make it writable")
    assert (repository.root / "a.txt").read_bytes() == b"a\n"
    assert (repository.root / "a.txt").stat().st_mode == before.st_mode
    assert sorted(path.name for path in repository.root.iterdir()) == [".git", "a.txt", "b.txt"]


def test_a_limit_on_file_sizes_is_a_refusal_like_any_other(repository):
    """For systems without mount namespaces: RLIMIT_FSIZE makes the kernel refuse in the middle of a file."""
    child = os.fork()
    if child == 0:
        import resource

        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            plan = Plan(repository.root)
            plan.write("a.txt", b"new\n", reason="")
            plan.write("big.bin", bytes(100_000), reason="")
            with transaction(repository, wait_seconds=0, note=str):
                apply_plan(repository, plan)
        except WriteError as error:
            code = 0 if error.where == "big.bin" and "File too large" in error.message and "ulimit" in error.fix else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (repository.root / "a.txt").read_bytes() == b"a\n"
    assert sorted(path.name for path in repository.root.iterdir()) == [".git", "a.txt", "b.txt"]
    assert recover(repository) == []
    assert [path.name for path in repository.state.iterdir()] == ["lock"]


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root; the read-only mount above does")
def test_a_folder_without_write_permission_is_named(repository):
    folder = repository.root / "closed"
    folder.mkdir(mode=0o555)
    plan = Plan(repository.root)
    plan.write("a.txt", b"new\n", reason="")
    plan.write("closed/new.txt", b"", reason="")
    with pytest.raises(WriteError, match="Permission denied") as caught:
        apply_plan(repository, plan)
    folder.chmod(0o755)
    assert caught.value.where == "closed/new.txt"
    assert (repository.root / "a.txt").read_bytes() == b"a\n"
