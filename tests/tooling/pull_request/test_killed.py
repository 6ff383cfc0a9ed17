"""A run that is killed, anywhere: the branch can be had back, no file is lost, and the next run goes on."""

import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest

from tooling.cli.git import find_repository
from tooling.pull_request.backups import path_of
from tooling.pull_request.create import restore

ROOT = Path(__file__).resolve().parents[3]
STEPS = [
    "fetch",
    "backup",
    "record",
    "work tree",
    "branch",
    "record removed",
    "push",
    "upstream",
    "pull request",
    "end",
]
"""Everything that `create` announces, in order; before one is after the one in front of it."""
TODAY = date.today().toordinal()


def places(steps):
    """All steps as parameters, all but two of them exhaustive; which two changes from day to day."""
    chosen = {steps[(2 * TODAY + number) % len(steps)] for number in range(2)}
    return [pytest.param(each, marks=() if each in chosen else pytest.mark.exhaustive) for each in steps]


MINE = {"notes.txt": b"mine\n", "build/out.bin": b"\x00ignored\n"}
"""Files that git does not follow, the second one ignored."""


@pytest.fixture
def busy(published):
    """Published once, so that history on the remote has to be replaced; with files that are nobody's business."""
    published.use_gh()
    (published.root / ".git/info/exclude").write_text("build/\n")
    for path, content in MINE.items():
        place = published.root / path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
    return published


def expect_nothing_lost(world, before):
    """The old commit is the branch or a backup, and files outside of git are as they were."""
    assert before == world.tip("topic") or before in world.backups()
    for path, content in MINE.items():
        assert (world.root / path).read_bytes() == content


def expect_complete(world, files):
    assert world.tip("HEAD^") == world.there("main")
    assert world.there("topic") == world.tip()
    assert world.git("status", "--porcelain") == "?? notes.txt"
    assert world.files() == files
    assert [each["headRefName"] for each in world.requests()] == ["topic"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("step", places(STEPS))
def test_killed_before_a_step_the_next_run_goes_on(busy, step):
    before = busy.tip()
    assert busy.killed_before(step)
    expect_nothing_lost(busy, before)
    ran = busy.run("create", "--yes")
    assert ran.code == 0, ran.err
    expect_nothing_lost(busy, before)
    expect_complete(
        busy,
        {
            "README.md": b"A project.\n",
            "new.txt": b"new\n",
            "package/one.txt": b"def one():\n    return 1.0\n",
            "package/two.txt": b"def two():\n    return 1 + 1\n",
            **MINE,
        },
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("step", places(STEPS))
def test_killed_before_a_step_the_branch_can_be_had_back(busy, step):
    before, files = busy.tip(), busy.files()
    assert busy.killed_before(step)
    if busy.json("backups")["backups"]:
        kept = next(each["id"] for each in busy.json("backups")["backups"] if each["commit"] == before)
        ran = busy.run("restore", kept)
        assert ran.code == 0, ran.err
    assert busy.tip() == before
    assert busy.files() == files
    assert busy.git("status", "--porcelain") == "?? notes.txt"


@pytest.mark.sample(1)
@pytest.mark.parametrize("step", places(["backup", "record", "work tree", "branch", "record removed", "end"]))
def test_a_restore_that_is_killed_goes_on(busy, step):
    before, files = busy.tip(), busy.files()
    busy.run("create", "--yes")
    kept = busy.json("backups")["backups"][0]["id"]
    repository = find_repository(busy.root)
    assert busy.killed_before(step, lambda observe: restore(repository, kept, dry_run=False, observe=observe))
    ran = busy.run("restore", kept)
    assert ran.code == 0, ran.err
    assert (busy.tip(), busy.files(), busy.git("status", "--porcelain")) == (before, files, "?? notes.txt")


@pytest.mark.exhaustive
def test_every_step_is_announced_once(busy):
    heard = []
    busy.create(heard.append)
    assert heard == STEPS


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_whole_group_killed_at_any_moment_loses_nothing(busy, tmp_path):
    """Git dies too here, and leaves its locks: what the message says is done then."""
    before = busy.tip()
    took = whole_run(copy_of(busy, tmp_path / "timed"), limit=None)
    for number in range(12):
        world = copy_of(busy, tmp_path / str(number))
        whole_run(world, limit=took * (number + 1) / 13)
        expect_nothing_lost(world, before)
        for _ in range(3):
            ran = world.run("create", "--yes")
            if ran.code == 0:
                break
            locks = [path for path in (world.root / ".git").rglob("*.lock") if path.name in ran.err]
            assert locks, f"after {number}: {ran.err}"
            for path in locks:
                path.unlink()
        assert ran.code == 0, f"after {number}: {ran.err}"
        assert (world.tip("HEAD^"), world.there("topic")) == (world.there("main"), world.tip())
        assert world.git("status", "--porcelain") == "?? notes.txt"
        expect_nothing_lost(world, before)


def copy_of(world, folder):
    shutil.copytree(world.folder, folder, symlinks=True)
    return type(world)(folder)


def whole_run(world, *, limit):
    """The command as a process group of its own, killed after a while; its seconds."""
    command = [sys.executable, "-m", "tooling.pull_request", "create", "--yes"]
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT), "GH_STATE": os.fspath(world.state)}
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=world.root,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return time.monotonic() - started


def interrupted(world):
    """Killed when the work tree and the index are new, and the branch is not."""
    assert world.killed_before("branch")
    assert path_of(find_repository(world.root)).exists()


@pytest.mark.exhaustive
def test_half_a_work_tree_goes_back(busy):
    """As after a power cut while files were written: one new, one cut short, the index old."""
    before, files = busy.tip(), busy.files()
    assert busy.killed_before("work tree")
    busy.write("new.txt", "new\n")
    busy.write("package/one.txt", "def on")
    ran = busy.run("restore")
    assert (ran.code, "already" in ran.out) == (0, True)  # the branch never moved
    assert busy.tip() == before
    kept = next(busy.root.glob(".git/areal-pr/rescued/*/package/one.txt"))
    assert kept.read_text() == "def on"
    assert (busy.files(), busy.git("status", "--porcelain")) == (files, "?? notes.txt")


def test_a_file_that_was_being_replaced_comes_back(busy):
    files = busy.files()
    assert busy.killed_before("work tree")
    (busy.root / "package/one.txt").unlink()
    assert busy.run("restore").code == 0
    assert (busy.files(), busy.git("status", "--porcelain")) == (files, "?? notes.txt")


@pytest.mark.exhaustive
def test_an_edit_made_after_the_interruption_is_put_aside(busy):
    interrupted(busy)
    busy.write("package/one.txt", "mine\n")
    ran = busy.json("create", "--yes")
    assert ran["ok"]
    assert [Path(each).read_text() for each in ran["recovery"]["rescued"]] == ["mine\n"]
    assert any("kept as" in each for each in ran["warnings"])


@pytest.mark.exhaustive
def test_what_was_staged_after_the_interruption_stops_the_next_run(busy):
    interrupted(busy)
    busy.write("package/one.txt", "mine\n")
    busy.git("add", "package/one.txt")
    ran = busy.run("create", "--yes")
    assert (ran.code, "package/one.txt" in ran.err) == (3, True)
    assert (busy.root / "package/one.txt").read_text() == "mine\n"
    assert busy.git("show", ":package/one.txt") == "mine"


@pytest.mark.exhaustive
def test_work_that_went_on_is_left_alone(busy):
    interrupted(busy)
    busy.git("reset", "-q", "--hard")
    busy.commit("fix: more", {"more.txt": "1\n"})
    ran = busy.json("create", "--yes")
    assert ran["ok"]
    assert any("work went on" in each for each in ran["warnings"])
    assert (busy.root / "more.txt").exists()


@pytest.mark.exhaustive
def test_status_and_dry_runs_tell_of_an_interruption_and_change_nothing(busy):
    interrupted(busy)
    files = busy.files()
    assert busy.json("status")["interrupted"] is True
    ran = busy.run("create", "--dry-run")
    assert (ran.code, "interrupted" in ran.err) == (3, True)
    assert busy.files() == files
    assert busy.json("status")["interrupted"] is True


def test_a_damaged_record_stops_everything(busy):
    interrupted(busy)
    record = path_of(find_repository(busy.root))
    record.write_text("{")
    files = busy.files()
    ran = busy.run("create", "--yes")
    assert (ran.code, os.fspath(record) in ran.err) == (3, True)
    assert (busy.files(), record.exists()) == (files, True)


@pytest.mark.exhaustive
def test_two_at_once_are_one_after_the_other(busy):
    pair = [os.fork() or os._exit(busy.run("create", "--yes", "--wait", "60").code) for _ in range(2)]
    assert [os.waitpid(child, 0)[1] for child in pair] == [0, 0]
    assert (len(busy.requests()), len(busy.backups())) == (1, 1)


def test_a_second_run_does_not_wait_longer_than_it_is_told(busy):
    from tooling.kit.change.lock import repository_lock

    with repository_lock(find_repository(busy.root), wait_seconds=0):
        ran = busy.run("create", "--wait", "0")
    assert (ran.code, "pid" in ran.err) == (75, True)
