"""The kernel is built once, by whoever comes first, and where it cannot be, that is said."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from areal.engine.embedded import kernel_library
from areal.engine.embedded.kernel_library import cache_folder, load_kernel

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # What is tested is the way of the file, which a quick build takes as well.
    monkeypatch.setattr(kernel_library, "_FLAGS", (*kernel_library._FLAGS, "-O0"))


def kept():
    return sorted(cache_folder().glob("*"))


def is_usable(library):
    return isinstance(library, ctypes.CDLL) and library.panel_width() in (16, 64)


@pytest.mark.exhaustive
@needs_compiler
def test_a_second_process_finds_what_the_first_has_built(monkeypatch):
    assert is_usable(load_kernel())
    (path,) = kept()
    monkeypatch.setattr(subprocess, "run", None)  # a second build would fail
    assert is_usable(load_kernel())
    assert kept() == [path]


@pytest.mark.sample(1)
@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "changed", "writable"])
def test_a_damaged_file_is_built_anew(caplog, damage):
    load_kernel()
    (path,) = kept()
    good = path.read_bytes()
    if damage != "writable":
        path.unlink()  # this process has the good one mapped
    if damage == "cut":
        path.write_bytes(good[:5000])
    elif damage == "changed":
        path.write_bytes(good[:9000] + bytes([good[9000] ^ 1]) + good[9001:])
    else:
        path.chmod(0o666)
    assert is_usable(load_kernel())
    assert "built anew" in caplog.text
    assert len(path.read_bytes()) > 5000
    assert not path.stat().st_mode & 0o022
    caplog.clear()
    assert is_usable(load_kernel())
    assert not caplog.text


@pytest.mark.exhaustive
@needs_compiler
def test_another_processor_or_other_flags_have_a_file_of_their_own(monkeypatch):
    load_kernel()
    monkeypatch.setattr(kernel_library, "_processor", lambda: "another one")
    load_kernel()
    assert len(kept()) == 2


@needs_compiler
def test_without_a_place_to_keep_it_the_kernel_is_built_and_used(tmp_path):
    # A file where the folder should be: as root, a folder without write permission is no obstacle.
    (tmp_path / "areal").write_text("")
    assert is_usable(load_kernel())


def test_without_a_compiler_the_reason_is_returned(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_kernel() == "there is no C compiler (cc, gcc or clang)"


@needs_compiler
def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    compiler = shutil.which("cc")
    program = tmp_path / "cc"
    program.write_text("#!/bin/sh\necho 'unknown option' >&2\nexit 3\n")
    program.chmod(0o755)
    (tmp_path / "gcc").symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = load_kernel()
    assert reason.count("could not be built") == 1
    assert "unknown option" in reason
    # Another one is tried after it.
    (tmp_path / "clang").symlink_to(compiler)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert is_usable(load_kernel())


@needs_compiler
def test_what_was_kept_is_loaded_where_programs_cannot_be_run_from_temporary_files(monkeypatch):
    refused = ctypes.CDLL

    def load(path):
        if "areal-kernel-" in path:
            raise OSError("failed to map segment from shared object")
        return refused(path)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert load_kernel().panel_width() in (16, 64)


@needs_compiler
def test_a_folder_that_others_may_write_to_is_not_used(caplog):
    load_kernel()
    cache_folder().chmod(0o777)
    (path,) = kept()
    before = path.stat().st_mtime_ns
    assert is_usable(load_kernel())
    assert "not ours alone" in caplog.text
    assert path.stat().st_mtime_ns == before


@pytest.mark.exhaustive
@needs_compiler
def test_a_process_that_was_forked_builds_for_itself():
    kernel_library.kernel_in_background.cache_clear()
    ours = kernel_library.kernel_in_background()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"other" if kernel_library.kernel_in_background() is not ours else b"same")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 9) == b"other"
    os.close(reader)
    os.close(writer)
    assert is_usable(ours.result(60))
    kernel_library.kernel_in_background.cache_clear()


@pytest.mark.exhaustive
@needs_compiler
def test_processes_that_build_at_the_same_time_all_end_with_the_kernel(tmp_path):
    code = (
        "from areal.engine.embedded import kernel_library as k; k._FLAGS += ('-O0',); "
        "print(k.load_kernel().panel_width(), len(list(k.cache_folder().glob('*.so'))))"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].split() for process in started]
    assert [count for _, count in answers] == ["1", "1"]
    assert len(kept()) == 1
