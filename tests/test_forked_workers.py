"""Forked workers: every test runs once, is reported as if it had run here, and lost workers are replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUPPORT = Path(__file__).with_name("support")
CONFTEST = """
import os
from pathlib import Path

import pytest

Path("imported").open("a").write("x")


@pytest.fixture(scope="session")
def mine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine", numbered=False)
    yield folder
    Path("ended").open("a").write(f"{folder.parent.name}\\n")


@pytest.fixture(scope="module")
def module():
    yield
    Path("modules").open("a").write("x")


def pytest_workers_begin(session):
    session.config.begun = os.getpid()


def pytest_worker_ended(output):
    Path("outputs").open("a").write(output["name"])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        assert session.config.begun == os.getppid()
        session.config.workeroutput["name"] = session.config.workerinput["workerid"] + " "
"""
MIXED = """
import os
import signal
import warnings

import pytest


def test_passes(mine, module):
    assert mine.is_dir()


def test_fails(mine, module):
    print("what it printed")
    assert 1 == 2


@pytest.mark.skip(reason="not today")
def test_skipped():
    raise AssertionError


class Loud(Warning):
    pass


def test_warns():
    warnings.warn("careful", Loud)


def test_kills_its_worker():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("number", range(3))
def test_runs_after_it(number, module):
    pass
"""
MANY = "import pytest\n\n\n@pytest.mark.parametrize('n', range(20))\ndef test_many(n, mine):\n    pass\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def start(folder, *options):
    environment = {**os.environ, "PYTHONPATH": os.fspath(SUPPORT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = ["-m", "pytest", "-p", "forked_workers", "--workers=2", "-q", "-ra", f"--basetemp={folder}/tmp", *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, **streams)


def test_all_tests_run_once_and_are_told(folder):
    (folder / "test_mixed.py").write_text(MIXED)
    for name in ("one", "other"):
        (folder / f"test_{name}.py").write_text(MANY)
    process = start(folder)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert re.search(r"2 failed, 45 passed, 1 skipped, 1 warning in", output), output
    assert "what it printed" in output
    assert "assert 1 == 2" in output
    assert re.search(r"worker\d was killed by signal 9 while it ran this test", output)
    assert "not today" in output
    assert "Loud: careful" in output
    assert (folder / "imported").read_text() == "x", "the tests were collected once"
    assert 1 <= len((folder / "ended").read_text().split()) <= 2, "a fixture of the session is made once per worker"
    assert (folder / "modules").read_text() == "x", "and one of the file that the lost worker had is made again"
    assert len(set((folder / "outputs").read_text().split())) == 2


def test_failures_end_the_run_early(folder):
    for number in range(9):
        (folder / f"test_{number}.py").write_text("def test_it():\n    assert False\n")
    output, _ = start(folder, "--maxfail=2").communicate(timeout=60)
    assert re.search(r"stopping after \d failures", output)
    assert 2 <= int(re.search(r"(\d) failed", output)[1]) < 9


def test_ctrl_c_ends_the_workers_too(folder):
    for name in ("one", "other"):
        text = "import time\n\ndef test_long(mine):\n    open(f'running_{__name__}', 'w')\n    time.sleep(60)\n"
        (folder / f"test_{name}.py").write_text(text)
    process = start(folder)
    while len(list(folder.glob("running_*"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[0]
    assert not any(Path("/proc", child).exists() for child in children)
