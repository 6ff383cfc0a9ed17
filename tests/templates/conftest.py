"""A small copy of this repository for the tests of templates: what units are generated from, and what they import."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from reward_units import ROOT

from tooling.new.matrix import Sandbox

FOLDERS = (".areal/", "areal/", "examples/", "templates/", "tests/areal/models/", "tests/areal/reward/")
FILES = {"docs/extensions.md", "pyproject.toml", "tests/conftest.py"}


@pytest.fixture(scope="session")
def seed(tmp_path_factory):
    """A git repository with the framework and its templates. Tests copy it, and change only the copy."""
    folder = tmp_path_factory.mktemp("seed")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if (name.startswith(FOLDERS) or name in FILES) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "--quiet", "--template="], cwd=folder, check=True)
    return folder


@pytest.fixture
def sandbox(seed, tmp_path):
    """A repository of this test alone, with everything committed."""
    return Sandbox.copy_of(seed, tmp_path)
