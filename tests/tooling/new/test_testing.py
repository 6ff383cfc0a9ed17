"""Running a unit's tests: results say what failed, nothing is left behind, and nothing runs for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from tooling.cli.errors import UsageError
from tooling.cli.git import find_repository
from tooling.kit.change.plan import Plan
from tooling.new import testing as testing_run
from tooling.new.change import open_project
from tooling.new.testing import run_tests, staged_tests

PYTHON = Path(sys.executable)


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "project"
    for path, text in {
        "shop/__init__.py": "",
        "shop/price.py": "PRICE = 3\n",
        "tests/test_price.py": "from shop.price import PRICE\n\n\ndef test_price():\n    assert PRICE == 3\n",
        ".gitignore": "ignored/\n",
        "ignored/big.txt": "x",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return find_repository(root)


def paths_below(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if ".git" not in path.parts)


def test_passing_tests_are_ok_and_leave_nothing_behind(repository):
    before = paths_below(repository.root)
    result = run_tests(repository.root, ["tests/test_price.py"], python=PYTHON)
    assert (result.name, result.ok, result.detail) == ("tests", True, "")
    assert result.seconds > 0
    assert paths_below(repository.root) == before


def test_a_failure_says_which_line_failed(repository):
    (repository.root / "shop/price.py").write_text("PRICE = 4\n", encoding="utf-8")
    result = run_tests(repository.root, ["tests/test_price.py"], python=PYTHON)
    assert not result.ok
    assert "assert 4 == 3" in result.detail
    assert "tests/test_price.py" in result.detail


def test_a_file_without_tests_does_not_pass(repository):
    (repository.root / "tests/test_none.py").write_text("x = 1\n", encoding="utf-8")
    result = run_tests(repository.root, ["tests/test_none.py"], python=PYTHON)
    assert not result.ok
    assert "found no test" in result.detail


def test_without_files_there_is_nothing_to_run(repository):
    assert run_tests(repository.root, [], python=PYTHON).detail == "no tests to run"


def test_tests_that_hang_are_ended_with_everything_they_started(repository, tmp_path):
    pid_file = tmp_path / "pid"
    (repository.root / "tests/test_hang.py").write_text(
        "import pathlib, subprocess, time\n\n\n"
        "def test_hang():\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    started = time.monotonic()
    result = run_tests(repository.root, ["tests/test_hang.py"], python=PYTHON, timeout=5)
    assert not result.ok
    assert "ran past 5 s" in result.detail
    assert time.monotonic() - started < 30
    grandchild = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(grandchild)


def alive(pid):
    """Whether the process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_settings_of_a_surrounding_pytest_do_not_reach_the_tests(repository, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    assert run_tests(repository.root, ["tests/test_price.py"], python=PYTHON).ok


def test_an_interpreter_that_cannot_start_is_named(repository, tmp_path):
    with pytest.raises(UsageError, match="no-python"):
        run_tests(repository.root, ["tests/test_price.py"], python=tmp_path / "no-python")


def test_the_interpreter_is_that_of_the_repository_when_it_has_one(repository):
    assert open_project(repository.root).python == Path(sys.executable)
    own = repository.root / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert open_project(repository.root).python == own


def test_staged_tests_see_the_plan_and_leave_the_repository_alone(repository):
    (repository.root / "shop/price.py").write_text("PRICE = 4\n", encoding="utf-8")
    before = paths_below(repository.root)
    plan = Plan(repository.root)
    plan.write("shop/price.py", b"PRICE = 3\n", reason="the price")
    plan.write("tests/new/test_more.py", b"def test_more():\n    import shop.price\n", reason="more")
    plan.delete(".gitignore", reason="not needed")
    result = staged_tests(repository, plan, ["tests/test_price.py", "tests/new/test_more.py"], python=PYTHON)
    assert (result.name, result.ok) == ("tests-staged", True), result.detail
    assert paths_below(repository.root) == before
    assert (repository.root / "shop/price.py").read_text(encoding="utf-8") == "PRICE = 4\n"


def test_staged_tests_that_fail_are_a_result_and_leave_no_copy(repository, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(scratch))
    plan = Plan(repository.root)
    plan.write("shop/price.py", b"PRICE = 5\n", reason="the price")
    result = staged_tests(repository, plan, ["tests/test_price.py"], python=PYTHON)
    assert not result.ok
    assert "assert 5 == 3" in result.detail
    assert [path.name for path in scratch.iterdir() if path.name.startswith("areal-new")] == []


def test_a_repository_too_large_to_copy_is_refused(repository, monkeypatch):
    monkeypatch.setattr(testing_run, "MAX_OVERLAY_BYTES", 10)
    with pytest.raises(UsageError, match="GiB of files"):
        staged_tests(repository, Plan(repository.root), ["tests/test_price.py"], python=PYTHON)


def test_an_environment_without_pytest_is_told_from_failing_tests(repository, tmp_path):
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    result = run_tests(repository.root, ["tests/test_price.py"], python=bare / "bin/python")
    assert not result.ok
    assert result.detail == f"pytest is not installed for {bare / 'bin/python'}: install it there, or use --no-test"
