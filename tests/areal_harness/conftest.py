"""The wheel of this tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory):
    """The wheel, built from this tree as it lies."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (built,) = place.glob("*.whl")
    return built
