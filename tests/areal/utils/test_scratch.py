"""Temporary folders: of an owner that dies they go with the next start, whoever else was killed with it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from areal.utils.scratch import host_part, make_scratch, remove_scratch, remove_unowned, scratch_folder

PREFIX = "areal-trial-"
OWNER = f"""
import sys, time
from areal.utils.scratch import make_scratch
print(make_scratch({PREFIX!r}), flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_owner_goes_and_that_of_a_living_one_stays(base):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    folder = owner.stdout.readline().strip()
    os.mkdir(os.path.join(folder, "locked"))
    os.chmod(os.path.join(folder, "locked"), 0)
    assert remove_unowned(PREFIX, base) == []
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert [str(path) for path in remove_unowned(PREFIX, base)] == [folder]
    assert list(base.iterdir()) == []


def test_own_folders_stay_until_they_are_removed(base):
    folder = make_scratch(PREFIX)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert remove_unowned(PREFIX, base) == []
    remove_scratch(folder)
    remove_scratch(folder)
    assert list(base.iterdir()) == []


def test_a_block_removes_its_folder_also_when_it_fails(base):
    def fail():
        with scratch_folder(PREFIX) as folder:
            (folder / "file").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(base.iterdir()) == []


def test_what_was_not_made_here_is_left_alone(base):
    (base / "kept").mkdir()
    (base / "kept" / "file").touch()
    ours = f"{PREFIX}{host_part()}"
    (base / f"{ours}-1-link").symlink_to(base / "kept")
    (base / f"{ours}-1-file").touch()
    (base / f"{ours}-abc").mkdir()
    (base / f"{ours}-1").mkdir()
    # Of another machine that shares the file system: its locks are not seen here.
    (base / f"{PREFIX}other-1-abc").mkdir()
    (base / f"{PREFIX}{host_part()}-2-1-abc").mkdir()
    before = sorted(base.rglob("*"))
    assert remove_unowned(PREFIX, base) == []
    assert sorted(base.rglob("*")) == before


def test_folders_deeper_than_calls_and_paths_may_be_go(base):
    left = base / f"{PREFIX}{host_part()}-17-deep"
    left.mkdir()
    (left / "beside").mkdir()
    (left / "beside" / "link").symlink_to(base)
    place = os.open(left, os.O_RDONLY)
    for depth in range(1200):
        os.mkdir("nested", dir_fd=place)
        inner = os.open("nested", os.O_RDONLY, dir_fd=place)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.fchmod(place, 0o500 if depth % 2 else 0o700)
        os.close(place)
        place = inner
    os.close(place)
    assert remove_unowned(PREFIX, base) == [left]
    assert list(base.iterdir()) == []


def test_a_folder_that_was_locked_against_its_owner_goes(base):
    left = base / f"{PREFIX}{host_part()}-17-shut"
    (left / "inside").mkdir(parents=True)
    left.chmod(0)
    assert remove_unowned(PREFIX, base) == [left]
    assert not left.exists()


def test_without_locks_nothing_is_removed_that_may_be_in_use(base, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = make_scratch(PREFIX)
    assert remove_unowned(PREFIX, base) == []
    assert folder.is_dir()
    remove_scratch(folder)
    assert not folder.exists()


def test_the_first_folder_of_a_process_clears_what_is_left(base):
    left = base / f"areal-first-{host_part()}-17-abc"
    (left / "inside").mkdir(parents=True)
    with scratch_folder("areal-first-"):
        assert not left.exists()
