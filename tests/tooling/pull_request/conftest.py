"""A clone with a local bare remote and a second clone of somebody else's, all real git, and the command on them."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tooling.cli.git import find_repository
from tooling.pull_request.__main__ import main
from tooling.pull_request.branch import ProposalOptions
from tooling.pull_request.create import create

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("basename", "cat", "env", "git", "mkdir", "rm", "sed", "sh", "sleep", "touch", "uname")
"""All that PATH leads to: no `gh` of the machine."""
CONFIG = (
    "[user]\n\tname = Ann\n\temail = ann@example.org\n[init]\n\tdefaultBranch = main\n"
    "[init]\n\ttemplateDir = {folder}/template\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
)


@dataclass
class Ran:
    """One run of the command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


class Clone:
    """A work tree."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(self, *arguments: str, ok: bool = True, **more: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env={**os.environ, **more}, capture_output=True, check=False
        )
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def write(self, path: str, text: str = "x\n") -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def commit(self, message: str, files: dict[str, str | None], *, author: str = "") -> str:
        for path, text in files.items():
            if text is None:
                (self.root / path).unlink()
            else:
                self.write(path, text)
        self.git("--literal-pathspecs", "add", "--all", "--", *files)
        more = [f"--author={author}"] if author else []
        self.git("commit", "-q", "--allow-empty", "--cleanup=verbatim", "-m", message, *more)
        return self.tip()

    def tip(self, name: str = "HEAD") -> str:
        return self.git("rev-parse", "--verify", f"{name}^{{commit}}")

    def run(self, *words: str) -> Ran:
        """The command in this process: in a folder below the root it finds the repository by itself."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.root), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(words))
        return Ran(code, out.getvalue(), err.getvalue())

    def json(self, *words: str) -> dict:
        return self.run(*words, "--json").json

    def files(self) -> dict[str, bytes]:
        """Content of everything on disk but git's own."""
        found = (path for path in self.root.rglob("*") if ".git" not in path.relative_to(self.root).parts)
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found if path.is_file()}


class World(Clone):
    """`main` has one commit more than when `topic` left it; `topic` has two and is not pushed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "work")
        self.folder = folder
        self.remote = folder / "remote.git"
        self.state = folder / "gh.json"

    def build(self) -> None:
        for name in ("hooks", "info"):
            (self.folder / "template" / name).mkdir(parents=True)
        subprocess.run(["git", "init", "-q", "--bare", os.fspath(self.remote)], check=True)
        subprocess.run(["git", "clone", "-q", os.fspath(self.remote), os.fspath(self.root)], check=True)
        self.git("remote", "set-url", "origin", "../remote.git")  # so that copies find their own
        self.git("symbolic-ref", "HEAD", "refs/heads/main")
        self.commit("feat: begin", {"README.md": "A project.\n", "package/one.txt": "def one():\n    return 1\n"})
        self.git("push", "-q", "origin", "main")
        self.git("switch", "-q", "-c", "topic")
        self.commit("feat: add two", {"package/two.txt": "def two():\n    return 2\n"})
        self.commit("wip", {"package/two.txt": "def two():\n    return 1 + 1\n"})
        self.advance("fix: correct one", {"package/one.txt": "def one():\n    return 1.0\n", "new.txt": "new\n"})

    def somebody(self) -> Clone:
        """A colleague's clone."""
        root = self.folder / "somebody"
        if not root.exists():
            subprocess.run(["git", "clone", "-q", os.fspath(self.remote), os.fspath(root)], check=True)
            Clone(root).git("remote", "set-url", "origin", "../remote.git")
        return Clone(root)

    def advance(self, message: str, files: dict[str, str | None], branch: str = "main") -> str:
        """A colleague pushes to a branch of the remote."""
        other = self.somebody()
        other.git("fetch", "-q", "origin")
        other.git("checkout", "-q", "-B", branch, f"origin/{branch}")
        made = other.commit(message, files)
        other.git("push", "-q", "origin", branch)
        return made

    def there(self, branch: str) -> str:
        """Hash of a branch on the remote; "" without it."""
        line = self.git("ls-remote", os.fspath(self.remote), f"refs/heads/{branch}")
        return line.split("\t")[0]

    def hook(self, name: str, script: str) -> None:
        place = self.remote / "hooks" / name
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)

    def backups(self) -> list[str]:
        return [each["commit"] for each in self.json("backups")["backups"]]

    def create(self, observe: Callable[[str], None]) -> None:
        """Run `create` with consent; `observe` is called before every step."""
        repository = find_repository(self.root)
        create(repository, ProposalOptions(), dry_run=False, consent=lambda plan: True, observe=observe)

    def killed_before(self, name: str, action: Callable[[Callable[[str], None]], object] | None = None) -> bool:
        """Run an action (`create`) in a child that kills itself before a step; return whether it came that far."""
        child = os.fork()
        if child == 0:
            try:
                (action or self.create)(lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == name else None)
            finally:
                os._exit(1 if sys.exc_info()[0] else 0)
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])

    def use_gh(self) -> None:
        """From now on `gh` is on PATH."""
        program = self.folder / "bin" / "gh"
        source = Path(__file__).with_name("recorded_gh.py")
        program.write_text(f"#!{sys.executable} -IS\n{source.read_text(encoding='utf-8')}")
        program.chmod(0o755)

    def gh(self) -> dict:
        return json.loads(self.state.read_text())

    def requests(self) -> list[dict]:
        return self.gh()["requests"]


def isolate(monkeypatch, folder: Path) -> None:
    """Git that knows nothing of this machine, and no other programs than are named."""
    programs = folder / "bin"
    if not programs.exists():
        programs.mkdir()
        for name in PROGRAMS:
            found = shutil.which(name)
            assert found is not None, name
            (programs / name).symlink_to(found)
        (folder / "gitconfig").write_text(CONFIG.format(folder=folder))
    for name in [each for each in os.environ if each.startswith(("GIT_", "GH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", os.fspath(programs))
    monkeypatch.setenv("HOME", os.fspath(folder))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.fspath(folder / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GH_STATE", os.fspath(folder / "gh.json"))


STAGES = {
    "world": ("", World.build),
    "published": ("world", lambda world: world.git("push", "-q", "origin", "topic")),
    "created": ("world", lambda world: world.create(lambda step: None)),
    "requested": ("world", lambda world: (world.use_gh(), world.create(lambda step: None))),
}
"""Stage -> the one it begins with, and what makes it of that."""


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Return the folder of a stage. Each is made once; every test has a copy."""

    @functools.cache
    def make(stage: str) -> Path:
        before, action = STAGES[stage]
        folder = tmp_path_factory.mktemp(stage) / "world"
        if before:
            shutil.copytree(make(before), folder, symlinks=True)
        else:
            folder.mkdir()
        with pytest.MonkeyPatch.context() as monkeypatch:
            isolate(monkeypatch, folder)
            action(World(folder))
        return folder

    return make


@pytest.fixture
def staged(folder_of, tmp_path, monkeypatch):
    """Return a copy of a stage, and isolate this process for it."""

    def copy(stage: str) -> World:
        folder = tmp_path / "world"
        shutil.copytree(folder_of(stage), folder, symlinks=True)
        isolate(monkeypatch, folder)
        return World(folder)

    return copy


@pytest.fixture
def world(staged) -> World:
    return staged("world")


@pytest.fixture
def published(staged) -> World:
    """`topic` is on the remote as it is here."""
    return staged("published")


@pytest.fixture
def created(staged) -> World:
    """`create` has run once, without `gh`."""
    return staged("created")


@pytest.fixture
def requested(staged) -> World:
    """`create` has run once, with `gh`: a pull request is open."""
    return staged("requested")
