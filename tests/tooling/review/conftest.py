"""Small real repositories: a base, and a change on top of it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tooling.review.commands.review import parse, review

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Text = str | tuple[str, str]

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

    def found_in_cases(self, cases: Mapping[str, Sequence[Sequence[Text]]]) -> dict[str, set[str]]:
        """By rule, what it finds in the last commit among its own cases, "bad_0" or "good_1"; one review for all.

        cases: by rule, the files it must find and those that are right: texts, or texts before and after the commit.
        """
        files = {
            f"{rule.replace('-', '_')}_{kind}_{number}.py": text
            for rule, both in cases.items()
            for kind, texts in zip(("bad", "good"), both, strict=True)
            for number, text in enumerate(texts)
        }
        self.commit({path: text[0] for path, text in files.items() if isinstance(text, tuple)})
        self.commit({path: text[-1] if isinstance(text, tuple) else text for path, text in files.items()})
        named: dict[str, set[str]] = {rule: set() for rule in cases}
        for rule, path, _ in self.found():
            case = path.removeprefix(f"{rule.replace('-', '_')}_").removesuffix(".py")
            if rule in cases and path in files and case.startswith(("bad_", "good_")):
                named[rule].add(case)
        return named


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
