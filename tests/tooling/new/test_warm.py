"""A process that has imported what a command's children need, and runs each of them as a fork of itself."""

import subprocess
import sys

import pytest

from tooling.new.warm import WarmPython


@pytest.fixture
def warm(tmp_path):
    (tmp_path / "told.py").write_text("import sys\nprint('colorsys' in sys.modules, sys.argv[1:], sys.stdin.read())\n")
    (tmp_path / "fails.py").write_text("raise SystemExit('nothing to do')\n")
    (tmp_path / "changed.py").write_text("print(1)\n")
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(60)\n")
    with WarmPython(sys.executable, tmp_path, imports=("colorsys",)) as made:
        yield made


def test_a_run_gets_its_arguments_its_input_and_the_imports_unless_it_is_light(warm):
    light = warm.run("told", ["a b"], seconds=30.0, text="given", light=True)
    assert (light.returncode, light.stdout) == (0, "False ['a b'] given\n")
    assert warm.run("told", [], seconds=30.0).stdout == "True [] \n"


def test_a_run_that_fails_says_why_as_a_process_of_its_own_does(warm):
    failed = warm.run("fails", [], seconds=30.0)
    alone = subprocess.run([sys.executable, "-m", "fails"], cwd=warm.root, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stderr) == (alone.returncode, alone.stderr) == (1, "nothing to do\n")
    assert "No module named" in warm.run("absent", [], seconds=30.0).stderr


def test_a_run_sees_the_files_as_they_are_now_and_nothing_of_the_runs_before_it(warm):
    assert warm.run("changed", [], seconds=30.0).stdout == "1\n"
    (warm.root / "changed.py").write_text("print(22)\n")
    assert warm.run("changed", [], seconds=30.0).stdout == "22\n"


def test_a_run_that_takes_too_long_is_ended_and_the_next_one_runs(warm):
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run("waits", [], seconds=0.3)
    assert not warm.started
    assert warm.run("changed", [], seconds=30.0).stdout == "1\n"
