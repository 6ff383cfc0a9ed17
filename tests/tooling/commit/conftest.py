"""A small repository with real git, and the command as users run it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tooling.commit.__main__ import main

ROOT = Path(__file__).resolve().parents[3]
WHO = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


class Repo:
    """A work tree below tmp_path that sees no settings of the machine."""

    def __init__(self, root: Path, command: Any = None) -> None:
        self.root = root
        self._command = command
        root.mkdir(parents=True)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        self.environment |= {
            "GIT_CONFIG_GLOBAL": os.fspath(root.parent / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": os.fspath(root.parent),
            "PYTHONPATH": os.fspath(ROOT),
        }
        (root.parent / "template/hooks").mkdir(parents=True)
        self.git("init", "-q", "-b", "main", f"--template={root.parent}/template")

    def git(self, *arguments: str, ok: bool = True) -> str:
        done = subprocess.run(
            ["git", *WHO, *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        return done.stdout + done.stderr

    def write(self, path: str, text: str = "x\n") -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def commit(self, message: str, *paths: str, ok: bool = True) -> str:
        """Commit the paths (an empty commit without any)."""
        for path in paths:
            if not (self.root / path).exists():
                self.write(path)
            self.git("add", "--", path)
        return self.git("commit", "-q", "--allow-empty", "-m", message, ok=ok)

    def run(self, *words: str, stdin: str = "", environment: dict[str, str] | None = None) -> Any:
        """The command in this process."""
        variables = {**self.environment, **(environment or {})}
        return self._command(main, words, cwd=self.root, environment=variables, stdin=stdin)

    def json(self, *words: str) -> dict:
        return self.run(*words, "--json").json


@pytest.fixture
def repo(tmp_path, run_command):
    return Repo(tmp_path / "repo", run_command)
