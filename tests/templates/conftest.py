"""A small copy of this repository for the tests of templates: what units are generated from, and what they import."""

from __future__ import annotations

import importlib
import shutil
import subprocess

import pytest
from remembered_ruff import ruff_is_remembered  # noqa: F401 - for every test here
from reward_units import ROOT

from tooling.new.matrix import Sandbox

FOLDERS = (".areal/", "areal/", "examples/", "templates/", "tests/areal/models/", "tests/areal/reward/")
FILES = {"docs/extensions.md", "pyproject.toml", "tests/conftest.py"}
HERE = {"areal.dataset.inspection", "areal.porting", "areal.porting.write"}


@pytest.fixture(scope="session")
def seed(tmp_path_factory):
    """A git repository with the framework and its templates, committed. Tests copy it, and change only the copy."""
    folder = tmp_path_factory.mktemp("seed") / "repository"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if (name.startswith(FOLDERS) or name in FILES) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    sandbox = Sandbox(folder)
    sandbox.git("init", "--quiet", "--template=", "--initial-branch=main")
    sandbox.git("config", "core.compression", "0")  # small packs cost a second in every worker
    sandbox.git("config", "pack.window", "0")
    sandbox.commit()
    sandbox.git("repack", "-a", "-d", "--quiet")  # a file to copy in place of hundreds
    return folder


@pytest.fixture(scope="session")
def copied(seed):
    """copied(folder): a repository of one's own in a folder, with everything committed."""

    def copy(folder):
        subprocess.run(["cp", "-a", seed, folder], check=True)
        return Sandbox(folder / seed.name)

    return copy


@pytest.fixture
def sandbox(copied, tmp_path):
    """A repository of this test alone."""
    return copied(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def analyses_here(run_command):
    """Run the child processes of `areal-new model` and `dataset` here, where what they import is imported once.

    Yields the real `subprocess.run`.
    """
    start = subprocess.run

    def run(command, *args, **options):
        if list(command[1:2]) != ["-m"] or command[2] not in HERE:
            return start(command, *args, **options)
        main = importlib.import_module(f"{command[2]}.__main__").main
        return run_command(main, command[3:], cwd=options["cwd"], stdin=options["input"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", run)
        yield start


@pytest.fixture
def own_processes(analyses_here, monkeypatch):
    """Start them for real."""
    monkeypatch.setattr(subprocess, "run", analyses_here)
