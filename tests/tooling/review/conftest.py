"""Small real repositories: a base, and a change on top of it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tooling.review.commands.review import parse, review

if TYPE_CHECKING:
    from pathlib import Path

AUTHOR = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")


class World:
    """A repository in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *AUTHOR, *arguments], cwd=self.root, capture_output=True, check=True)
        return done.stdout.decode()

    def write(self, files: dict[str, str | None]) -> None:
        for path, text in files.items():
            place = self.root / path
            if text is None:
                place.unlink()
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")

    def commit(self, files: dict[str, str | None], message: str = "chore: files") -> str:
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    def review(self, *options: str):
        words = options or ("--commit", "HEAD")
        return review(parse(["--repo", str(self.root), *words]))[0]

    def found(self, *options: str) -> list[tuple[str, str, int]]:
        """(rule, path, line) of the findings that count."""
        return [(each.rule.id, each.place.path, each.place.line) for each in self.review(*options).open]


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "repository"
    folder.mkdir()
    made = World(folder)
    made.commit({"README.md": "A project.\n"})
    return made
