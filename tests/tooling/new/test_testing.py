"""Running a unit's tests: results say what failed, nothing is left behind, and nothing runs for ever.

Two tests run pytest; in the others a shell script takes the place of the interpreter.
"""

from __future__ import annotations

import os
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
PRICE = "tests/test_price.py"


@pytest.fixture
def repository(world):
    world.write("shop/price.py", "PRICE = 3\n")
    world.write(PRICE, "from shop.price import PRICE\n\n\ndef test_price():\n    assert PRICE == 3\n")
    return find_repository(world.root)


@pytest.mark.exhaustive
def test_passing_tests_are_ok_and_leave_nothing_behind(world, repository):
    before = world.tree()
    result = run_tests(world.root, [PRICE], python=PYTHON)
    assert (result.name, result.ok, result.detail) == ("tests", True, "")
    assert result.seconds > 0
    assert world.tree() == before


def test_staged_tests_that_fail_say_which_line_failed_and_leave_no_copy(repository, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(scratch))
    plan = Plan(repository.root)
    plan.write("shop/price.py", b"PRICE = 5\n", reason="the price")
    result = staged_tests(repository, plan, [PRICE], python=PYTHON)
    assert not result.ok
    assert "assert 5 == 3" in result.detail
    assert PRICE in result.detail
    assert [path.name for path in scratch.iterdir() if path.name.startswith("areal-new")] == []


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("exit 5", "pytest found no test in the files"),
        ("echo some lines; exit 3", "some lines"),
        ("exit 3", "pytest ended with status 3"),
        ("kill -9 $$", "ended by signal 9"),
    ],
)
def test_every_ending_but_success_is_a_failure(world, repository, script, detail):
    result = run_tests(world.root, [PRICE], python=world.interpreter(script))
    assert (result.ok, result.detail) == (False, detail)


def test_without_files_there_is_nothing_to_run(world):
    assert run_tests(world.root, [], python=PYTHON).detail == "no tests to run"


def test_tests_that_hang_are_ended_with_everything_they_started(world, tmp_path):
    pid_file = tmp_path / "pid"
    python = world.interpreter(f"sleep 600 &\necho $! > {pid_file}\nwait")
    result = run_tests(world.root, [PRICE], python=python, timeout=3)
    assert not result.ok
    assert "ran past 3 s" in result.detail
    grandchild = int(pid_file.read_text())
    deadline = time.monotonic() + 60
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(grandchild)


def alive(pid):
    """Whether the process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_tests_see_the_repository_first_and_no_settings_of_a_surrounding_pytest(world, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    python = world.interpreter('echo "$PYTEST_ADDOPTS|$PYTHONPATH|$@"; exit 1')
    words = f"-m pytest -q --no-header -p no:cacheprovider {PRICE}"
    assert run_tests(world.root, [PRICE], python=python).detail == f"|{world.root}:/elsewhere|{words}"


def test_an_interpreter_that_cannot_start_is_named(world, tmp_path):
    with pytest.raises(UsageError, match="no-python"):
        run_tests(world.root, [PRICE], python=tmp_path / "no-python")


def test_the_interpreter_is_that_of_the_repository_when_it_has_one(world):
    assert open_project(world.root).python == Path(sys.executable)
    own = world.interpreter("exit 0")
    assert open_project(world.root).python == own


def test_staged_tests_see_the_plan_and_leave_the_repository_alone(world, repository):
    world.write("shop/price.py", "PRICE = 4\n")
    python = world.interpreter("cat shop/price.py tests/new/test_more.py; test ! -e .gitignore || echo kept; exit 1")
    before = world.tree()
    plan = Plan(repository.root)
    plan.write("shop/price.py", b"PRICE = 3\n", reason="the price")
    plan.write("tests/new/test_more.py", b"import shop.price\n", reason="more")
    plan.delete(".gitignore", reason="not needed")
    result = staged_tests(repository, plan, [PRICE, "tests/new/test_more.py"], python=python)
    assert (result.name, result.detail) == ("tests-staged", "PRICE = 3\nimport shop.price")
    assert world.tree() == before


def test_a_repository_too_large_to_copy_is_refused(repository, monkeypatch):
    monkeypatch.setattr(testing_run, "MAX_OVERLAY_BYTES", 10)
    with pytest.raises(UsageError, match="GiB of files"):
        staged_tests(repository, Plan(repository.root), [PRICE], python=PYTHON)


def test_an_environment_without_pytest_is_told_from_failing_tests(world, tmp_path):
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    result = run_tests(world.root, [PRICE], python=bare / "bin/python")
    assert not result.ok
    assert result.detail == f"pytest is not installed for {bare / 'bin/python'}: install it there, or use --no-test"
