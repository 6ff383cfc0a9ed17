"""What an owner that is killed would leave behind: its guard removes it, and leaves it to an owner that lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from areal.utils.guard import guarded

SLEEPS = [sys.executable, "-c", "import time; open('begun', 'w').close(); time.sleep(600)"]


def start(folder, command):
    """A guard whose command has begun, if it is SLEEPS, and the end of its lifeline that its owner holds."""
    lifeline, ours = os.pipe()
    process = subprocess.Popen(
        guarded(command, lifeline=lifeline, grace_seconds=1.0, folder=str(folder)), pass_fds=(lifeline,), cwd=folder
    )
    os.close(lifeline)
    while command is SLEEPS and not (folder / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process, ours


def test_the_folder_goes_with_an_owner_that_dies(tmp_path):
    folder = tmp_path / "own"
    (folder / "work").mkdir(parents=True)
    process, ours = start(folder, SLEEPS)
    os.close(ours)  # as the kernel does when the owner is gone
    process.wait(60)
    assert not folder.exists()
    assert tmp_path.exists()


def test_the_folder_goes_with_an_owner_that_dies_while_it_ends_the_command(tmp_path):
    folder = tmp_path / "own"
    (folder / "locked").mkdir(parents=True)
    (folder / "locked" / "file").touch()
    (folder / "locked").chmod(0)
    process, ours = start(folder, SLEEPS)
    process.terminate()
    os.close(ours)
    process.wait(60)
    assert not folder.exists()


def test_the_folder_stays_for_an_owner_that_lives(tmp_path):
    process, ours = start(tmp_path, SLEEPS)
    process.terminate()
    process.wait(60)
    os.close(ours)
    assert tmp_path.exists()
    process, ours = start(tmp_path, [sys.executable, "-c", "pass"])
    assert process.wait(60) == 0
    os.close(ours)
    assert tmp_path.exists()
