"""`.pre-commit-hooks.yaml`, used by another repository through the real pre-commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
CONFIG = """
repos:
  - repo: {source}
    rev: {commit}
    hooks: [{{id: areal-commit}}, {{id: areal-review}}]
"""


def test_the_hooks_name_programs_of_this_package() -> None:
    scripts = (ROOT / "pyproject.toml").read_text()
    for hook in HOOKS.values():
        assert f"\n{hook['entry'].split()[0]} = " in scripts
        assert hook["language"] == "python"


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # Other tests must not reach an index; this one installs from the machine's.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONFIG_FILE"}
    return subprocess.run(
        words, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False, timeout=900
    )


@pytest.mark.exhaustive
@pytest.mark.network
@pytest.mark.timeout(1800)
def test_another_repository_uses_them(tmp_path: Path) -> None:
    """Installs the harness from a clone, as a user does, without torch; needs a package index."""
    source, user = tmp_path / "areal", tmp_path / "user"
    assert run(ROOT, "git", "clone", "-q", str(ROOT), str(source)).returncode == 0
    # What is not committed yet counts too.
    (source / ".pre-commit-hooks.yaml").write_text((ROOT / ".pre-commit-hooks.yaml").read_text())
    author = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    git = {"PRE_COMMIT_HOME": str(tmp_path / "cache"), "GIT_CONFIG_GLOBAL": os.devnull, **author}
    run(source, "git", "add", "--all", **git)
    run(source, "git", "commit", "-q", "--allow-empty", "-m", "chore: hooks", **git)
    commit = run(source, "git", "rev-parse", "HEAD").stdout.strip()
    user.mkdir()
    run(user, "git", "init", "-q", "-b", "main", **git)
    (user / ".pre-commit-config.yaml").write_text(CONFIG.format(source=source, commit=commit))
    program = [sys.executable, "-m", "pre_commit", "install", "-t", "pre-commit", "-t", "commit-msg"]
    assert run(user, *program, **git).returncode == 0
    (user / "a.py").write_text("def f(size):\n    return size\n")
    run(user, "git", "add", "--all", **git)
    good = run(user, "git", "commit", "-m", "feat: a function", **git)
    assert good.returncode == 0, good.stdout + good.stderr
    (user / "b.py").write_text("from a import f\n\nf(1, sice=2)\n")
    run(user, "git", "add", "--all", **git)
    bad = run(user, "git", "commit", "-m", "feat: a call", **git)
    assert bad.returncode != 0
    assert "signature-mismatch" in bad.stdout + bad.stderr
    (user / "b.py").write_text("from a import f\n\nf(1)\n")
    run(user, "git", "add", "--all", **git)
    worded = run(user, "git", "commit", "-m", "added a call.", **git)
    assert worded.returncode != 0
    assert "areal-commit" in worded.stdout + worded.stderr
    assert run(user, "git", "commit", "-m", "feat: a call", **git).returncode == 0
