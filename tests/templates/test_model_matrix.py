"""`areal-new model --matrix`: what it takes, and that an interrupted run leaves neither processes nor worktrees."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tooling.cli.errors import UsageError
from tooling.new.generators.model_matrix import ChildProcesses, MatrixRow, read_entries

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100


def git(repository, *arguments):
    return subprocess.run(
        ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture
def repository(tmp_path):
    """A repository with the framework and its templates, and one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("areal", "templates"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "start")
    return folder


def analyses(scratch):
    """Numbers of the processes that analyse in a folder."""
    found = []
    for line in subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    ):
        if "areal.porting" in line and str(scratch) in line:
            found.append(int(line.split()[0]))
    return found


def wait_for(condition):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_matrix_ends_its_children_and_leaves_no_worktree(repository, tmp_path, number):
    file = tmp_path / "matrix.json"
    models = [{"model_type": name, "tiny_kwargs": {"vocab_size": 64}} for name in ("llama", "gemma2")]
    file.write_text(json.dumps({"models": models}))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "tooling.new", "model", "--matrix", str(file), "--json", "--repo", str(repository)]
    run = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: run.poll() is not None or analyses(scratch))
        run.send_signal(number)  # to this process alone: its children have to hear of it from the command
        started = time.monotonic()
        out, said = run.communicate(timeout=SECONDS)
    finally:
        if run.poll() is None:  # killed outright it could not end its children
            run.terminate()
            run.wait(timeout=SECONDS)
    assert time.monotonic() - started < SECONDS / 3, said
    assert run.returncode == 130
    assert json.loads(out)["code"] == "interrupted"
    assert "Traceback" not in said
    assert not analyses(scratch)
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not list(scratch.iterdir())


def test_children_are_ended_with_what_they_started(tmp_path):
    children = ChildProcesses()
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"], cwd=tmp_path, timeout=1)
    grandchild = int((tmp_path / "pid").read_text())
    wait_for(lambda: _has_ended(grandchild))
    children.end()
    with pytest.raises(InterruptedError):
        children.run(["true"], cwd=tmp_path, timeout=1)


def _has_ended(process):
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1] in ("", "Z")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("5", "is not a matrix"),
        ("[]", "names no model type"),
        ("[5]", "is not a matrix"),
        ('{"models": 5}', "is not a matrix"),
        ('{"models": [{"model_type": "llama"}], "synthetic": [{"name": "x"}]}', "is not a matrix: KeyError('base')"),
        ('["llama", "gpt-neo", "gpt_neo"]', "names gpt_neo twice"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path, content, message):
    (tmp_path / "matrix.json").write_text(content)
    with pytest.raises(UsageError) as caught:
        read_entries(str(tmp_path / "matrix.json"))
    assert message in caught.value.message
    assert caught.value.where == "--matrix"


def test_a_matrix_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_entries(str(tmp_path / "none.json"))


def test_a_family_of_which_the_verification_loads_nothing_is_not_proven():
    row = MatrixRow(name="llama", model_type="llama")
    row.take_verification({"refused": 1, "refusals": [{"config": "base", "reason": "a field"}]})
    assert (row.outcome, row.reason) == ("failed", "the verification could not load one config: a field")
