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

from areal.utils.scratch import make_scratch, remove_scratch, remove_unowned, scratch_folder

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
    (base / f"{PREFIX}1-link").symlink_to(base / "kept")
    (base / f"{PREFIX}1-file").touch()
    (base / f"{PREFIX}abc").mkdir()
    (base / f"{PREFIX}1").mkdir()
    before = sorted(base.rglob("*"))
    assert remove_unowned(PREFIX, base) == []
    assert sorted(base.rglob("*")) == before


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
    left = base / "areal-first-17-abc"
    (left / "inside").mkdir(parents=True)
    with scratch_folder("areal-first-"):
        assert not left.exists()
