"""A small project with skills, experts and code, in a git repository of its own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tooling.harness.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

SKILL = """\
---
name: greet
description: Greet somebody. Use when a person comes in.
---

# Greet

Run `hello --loud NAME`; the words are in `app/words.py`.
"""
EXPERT = """\
---
name: words
description: Knows the words. Ask it about greetings.
scope: read
owns: [app/*.py]
---

# Words

`Greeting.text` in `app/words.py` is what is said.

<!-- owned: written by `areal-harness sync` from `owns` and the code -->

## Files

- `app/`: The program

## Commands

- `hello`: Words

<!-- end of owned -->
"""
AGENTS = """\
# Working here

```text
agents/   experts
app/      the program
skills/   tasks
```
"""
PYPROJECT = """\
[project]
name = "hello"
version = "1"
dependencies = ["pyyaml"]

[project.scripts]
hello = "app.words:main"

[tool.areal.harness]
local_folders = ["skills/greet/lists"]
"""
WORDS = '''\
"""Words."""

import argparse
from dataclasses import dataclass

LANGUAGES = {"nl": "hallo"}


@dataclass
class Greeting:
    text: str


@dataclass
class Settings:
    greeting: Greeting


def main() -> int:
    parser = argparse.ArgumentParser("hello")
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("--tone", choices=["kind", "stern"])
    parser.add_argument("name")
    parser.parse_args()
    return 0
'''


@dataclass(frozen=True)
class Project:
    """The repository, and the command run in it."""

    root: Path
    capture: Any

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        """The exit code and the JSON object of one command line."""
        self.capture.readouterr()
        code = main([*words, "--repo", str(self.root), "--json"])
        return code, json.loads(self.capture.readouterr().out)

    def states(self) -> dict[str, str]:
        """Files that are not in step, with their states."""
        _, document = self.run("sync", "--check")
        return {file["path"]: file["state"] for file in document["files"] if file["state"] != "current"}

    def findings(self) -> list[tuple[str, str]]:
        """(rule, message) of everything that `check` finds."""
        _, document = self.run("check")
        return [(finding["rule"], finding["message"]) for finding in document["findings"]]


@pytest.fixture
def project(tmp_path, capsys):
    root = tmp_path / "project"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    made = Project(root, capsys)
    for path, text in {
        "skills/greet/SKILL.md": SKILL,
        "agents/words.md": EXPERT,
        "agents/README.md": "no expert\n",
        "AGENTS.md": AGENTS,
        "pyproject.toml": PYPROJECT,
        ".gitignore": "__pycache__/\n",
        "app/__init__.py": '"""The program."""\n',
        "app/words.py": WORDS,
    }.items():
        made.write(path, text)
    return made
