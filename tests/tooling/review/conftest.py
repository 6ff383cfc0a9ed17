"""Small real repositories: a base, and a change on top of it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tooling.review.commands.review import parse, review

if TYPE_CHECKING:
    from pathlib import Path

AUTHOR = (
    "-c",
    "user.name=Somebody",
    "-c",
    "user.email=somebody@example.com",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "maintenance.auto=false",
)


class World:
    """A repository in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

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
        head = (self.root / ".git" / "HEAD").read_text().strip()
        return (
            (self.root / ".git" / head.removeprefix("ref: ")).read_text().strip() if head.startswith("ref: ") else head
        )

    def review(self, *options: str):
        words = options or ("--commit", "HEAD")
        return review(parse(["--repo", str(self.root), *words]))[0]

    def found(self, *options: str) -> list[tuple[str, str, int]]:
        """(rule, path, line) of the findings that count."""
        return [(each.rule.id, each.place.path, each.place.line) for each in self.review(*options).open]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, made once."""
    made = World(tmp_path_factory.mktemp("template"))
    made.git("init", "-q", "-b", "main")
    shutil.rmtree(made.root / ".git" / "hooks", ignore_errors=True)
    made.commit({"README.md": "A project.\n"})
    return made.root


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    shutil.copytree(template, tmp_path / "repository")
    return World(tmp_path / "repository")


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory, template: Path) -> World:
    """One repository for all tests of a module, which review it once."""
    root = tmp_path_factory.mktemp("shared") / "repository"
    shutil.copytree(template, root)
    return World(root)
