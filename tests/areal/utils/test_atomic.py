"""Files and folders that appear whole or not at all."""

import os
import signal
import subprocess
import sys

import pytest

from areal.utils import atomic
from areal.utils.atomic import atomic_directory, atomic_write, remove_leftovers


def test_a_written_file_has_exactly_the_given_bytes(tmp_path):
    atomic_write(tmp_path / "a.bin", b"\x00\xff")
    atomic_write(tmp_path / "a.txt", "Größe\n")
    assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff"
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "Größe\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.bin", "a.txt"]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    atomic_write(target, "old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        atomic_write(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_new_files_get_the_permissions_the_umask_allows(tmp_path):
    previous = os.umask(0o027)
    try:
        atomic_write(tmp_path / "a", "x")
        with atomic_directory(tmp_path / "d") as folder:
            (folder / "b").write_text("y")
    finally:
        os.umask(previous)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750


def test_a_folder_is_invisible_until_its_block_ends(tmp_path):
    with atomic_directory(tmp_path / "d") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text("x")
        assert not (tmp_path / "d").exists()
    assert (tmp_path / "d" / "sub" / "a").read_text() == "x"
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_block_removes_the_folder(tmp_path, error):
    def fill(folder):
        (folder / "a").write_text("x")
        raise error

    with pytest.raises(error), atomic_directory(tmp_path / "d") as folder:
        fill(folder)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept_unless_replacing_is_asked_for(tmp_path):
    for text in ("one", "two"):
        with atomic_directory(tmp_path / "d", replace=True) as folder:
            (folder / text).write_text(text)
    assert [entry.name for entry in (tmp_path / "d").iterdir()] == ["two"]
    with pytest.raises(FileExistsError, match="will not be overwritten"), atomic_directory(tmp_path / "d"):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


def test_everything_in_a_folder_is_flushed_before_it_becomes_visible(tmp_path, monkeypatch):
    flushed: set[int] = set()
    events: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor):
        flushed.add(os.fstat(descriptor).st_ino)
        events.append("fsync")
        real_fsync(descriptor)

    def rename(source, target):
        inodes = {source.stat().st_ino} | {entry.stat().st_ino for entry in source.rglob("*")}
        assert inodes <= flushed
        events.append("rename")
        real_rename(source, target)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    monkeypatch.setattr(atomic.os, "rename", rename)
    with atomic_directory(tmp_path / "d") as folder:
        (folder / "sub").mkdir()
        for name in ("a", "sub/b"):
            (folder / name).write_text("x")
    # The rename itself is made durable by flushing the parent afterwards.
    assert events[-2:] == ["rename", "fsync"]
    assert tmp_path.stat().st_ino in flushed


def test_leftovers_of_a_killed_writer_are_removed_and_live_work_is_not(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path; from areal.utils.atomic import atomic_directory\n"
        "with atomic_directory(Path(sys.argv[1]) / 'dead') as folder:\n"
        "    (folder / 'a').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    (tmp_path / ".file.tmp-0123").write_text("from a killed atomic_write")
    with atomic_directory(tmp_path / "live") as folder:
        removed = remove_leftovers(tmp_path)
        assert folder.exists()
    assert len(removed) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["live"]
