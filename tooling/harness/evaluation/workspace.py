"""Makes a scratch copy of the repository: the files as the next commit would have them, in a git repository of its own.

The answers to the tasks are left out, and `.venv` is ready: what AGENTS.md and the skills say can be done at once.

    base = make_base(root, files, folder)      # once
    workspace = prepare(base, evaluation, root, folder / "task")

Every command gets an argument list and a bare environment: a home of its own, no settings of the user, no keys, and a
limit of time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.harness.evaluation.environment import FOLDER, make_environment
from tooling.harness.evaluation.records import TASKS
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.harness.evaluation.records import SkillEvaluation

WHO: Final = ("-c", "user.name=Evaluation", "-c", "user.email=evaluation@example.org", "-c", "commit.gpgsign=false")
_KEPT: Final = ("LANG", "LC_ALL", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class TaskWorkspace:
    """A repository that a task is done in."""

    root: Path
    start: str
    """The commit that the task began at."""

    def path(self, place: str) -> Path:
        """Return a file of the workspace. Raises UsageError for a place outside of it."""
        return self.root / safe_path(place)

    def run(self, words: Sequence[str], *, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
        """Run one command, never through a shell; exit code 124 when it takes too long."""
        return run(words, self.root, seconds=seconds)

    def git(self, *arguments: str) -> str:
        """Return standard output of a git command; "" when it fails."""
        done = self.run(["git", *WHO, *arguments])
        return done.stdout if done.returncode == 0 else ""

    def changed(self) -> list[str]:
        """Return the paths that differ from the start, committed or not."""
        known = self.git("diff", "--name-only", "--no-renames", "-z", self.start).split("\0")
        new = self.git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
        return sorted({path for path in (*known, *new) if path})


def run(words: Sequence[str], folder: Path, *, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
    """Run one command in a workspace, with the programs of its environment and its code."""
    variables = environment(folder)
    program = shutil.which(words[0], path=variables["PATH"]) or words[0]
    try:
        return subprocess.run(
            [program, *words[1:]],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(words), 124, "", f"took longer than {seconds:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(list(words), 127, "", str(error))


def environment(folder: Path) -> dict[str, str]:
    """Return what a command of a workspace sees."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    places = [os.fspath(folder / FOLDER / "bin"), os.fspath(Path(sys.executable).parent)]
    programs = os.pathsep.join([*places, os.environ.get("PATH", os.defpath)])
    home = _inside_git(folder, "home")
    home.mkdir(parents=True, exist_ok=True)
    own = {"VIRTUAL_ENV": os.fspath(folder / FOLDER)} if (folder / FOLDER).is_dir() else {}
    return (
        kept
        | own
        | {
            "PATH": programs,
            "PYTHONPATH": os.fspath(folder),
            "HOME": os.fspath(home),
            "GIT_CONFIG_GLOBAL": os.fspath(home / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    )


def make_base(root: Path, files: Sequence[str], folder: Path) -> Path:
    """Make the repository that all workspaces are cloned from: its files as they are now, in one commit."""
    base = folder / "base"
    base.mkdir(parents=True)
    for path in files:
        source = root / path
        if path.startswith(f"{TASKS}/") or source.is_symlink() or not source.is_file():
            continue
        target = base / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "--all", "--force"],
        ["commit", "-q", "-m", "chore: the start"],
    ):
        done = run(["git", *WHO, *words], base)
        if done.returncode != 0:
            raise UsageError(f"`git {words[0]}` failed: {done.stderr.strip()}", where=os.fspath(base))
    return base


def prepare(base: Path, evaluation: SkillEvaluation, root: Path, target: Path, *, shared: bool = True) -> TaskWorkspace:
    """Make a fresh workspace in which the task can begin. Raises UsageError when a step cannot be done any more.

    shared: it borrows the objects of the base, and does not outlive it.
    """
    sharing = ["--shared"] if shared else ["--no-hardlinks"]
    done = run(["git", *WHO, "clone", "-q", *sharing, os.fspath(base), os.fspath(target)], base)
    if done.returncode != 0:
        raise UsageError(f"`git clone` failed: {done.stderr.strip()}", where=os.fspath(target))
    workspace = TaskWorkspace(target, "HEAD")
    for name, value in (("user.name", "Evaluation"), ("user.email", "evaluation@example.org")):
        workspace.git("config", name, value)
    workspace.git("remote", "remove", "origin")
    for place, source in evaluation.files.items():
        _write(workspace.path(place), (root / source).read_text(encoding="utf-8"))
    for step in evaluation.steps:
        _do(workspace, step, evaluation.name)
    make_environment(target)
    return TaskWorkspace(target, workspace.git("rev-parse", "HEAD").strip())


def without_skill(workspace: TaskWorkspace, skill: str) -> TaskWorkspace:
    """Return the workspace without a skill and its copies, as the start of the task."""
    folders = [f"{place}/{skill}" for place in ("skills", ".agents/skills", ".claude/skills")]
    workspace.git("rm", "-r", "-q", "--ignore-unmatch", "--", *folders)
    workspace.git("commit", "-q", "--allow-empty", "-m", f"chore: without {skill}")
    return TaskWorkspace(workspace.root, workspace.git("rev-parse", "HEAD").strip())


def _do(workspace: TaskWorkspace, step: Mapping[str, Any], name: str) -> None:
    [(kind, value)] = step.items()
    if kind in {"append", "edit"}:
        _change(workspace, kind, value, name)
        return
    commands = {
        "branch": [["git", *WHO, "switch", "-q", "-c", value]],
        "commit": [["git", *WHO, "add", "--all"], ["git", *WHO, "commit", "-q", "-m", value]],
        "remote": [
            ["git", "init", "-q", "--bare", "-b", "main", os.fspath(_remote(workspace, value))],
            ["git", "remote", "add", value, os.fspath(_remote(workspace, value))],
            ["git", "push", "-q", value, "main"],
        ],
        "run": [value],
    }
    for words in commands[kind]:
        done = workspace.run(words)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-300:]
            raise UsageError(f"a step cannot be done: {' '.join(map(str, words))[:80]}: {said}", where=name)


def _change(workspace: TaskWorkspace, kind: str, value: Mapping[str, str], name: str) -> None:
    path = workspace.path(value["path"])
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if kind == "append":
        _write(path, text + value["text"])
        return
    if text.count(value["before"]) != 1:
        raise UsageError(f"{value['path']} does not hold {value['before']!r} once", where=name, fix="renew the step")
    _write(path, text.replace(value["before"], value["after"]))


def _remote(workspace: TaskWorkspace, name: str) -> Path:
    return _inside_git(workspace.root, f"{name}.git")


def _inside_git(folder: Path, name: str) -> Path:
    """Return a place that belongs to a workspace, moves with it, and is ignored by git."""
    return folder / ".git" / "evaluation" / name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
