"""The wheel of this tree."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build(kind: str, place: Path, folder: Path = ROOT) -> Path:
    """Build "wheel" or "sdist" from a folder as it lies; return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(place)]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (built,) = place.glob("areal-*")
    return built


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory):
    """The wheel, built from this tree as it lies."""
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def source_file(tmp_path_factory):
    """The source distribution, built from this tree as it lies."""
    return build("sdist", tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def wheel_of_source(source_file, tmp_path_factory):
    """The wheel that is built from the source distribution alone."""
    folder = tmp_path_factory.mktemp("unpacked-source")
    with tarfile.open(source_file) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return build("wheel", tmp_path_factory.mktemp("wheel-of-source"), root)
