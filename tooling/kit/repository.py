"""Where the repository is, and what git knows about it.

    repository = find_repository(Path.cwd())
    repository.state                     # this work tree's private folder below .git: lock, journal, rescued files
    repository.files()                   # tracked and new files, as `git add --all` would see them

Finding it reads a few files and starts no process; asking git goes through GitPython. Nothing here changes anything.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.kit.errors import UsageError

if TYPE_CHECKING:
    from git import Repo


@dataclass(frozen=True, slots=True)
class Repository:
    """One work tree. Example: root "/src/areal", git_dir "/src/areal/.git" (of a linked work tree: ".git/worktrees/x",
    of a submodule: ".git/modules/x" of the outer repository)."""

    root: Path
    git_dir: Path

    @property
    def state(self) -> Path:
        """What the harness keeps for this work tree; it may not exist yet, and git never looks at it."""
        return self.git_dir / "areal-new"

    @property
    def common_dir(self) -> Path:
        """The git folder that all work trees of the repository share."""
        pointer = self.git_dir / "commondir"
        if not pointer.is_file():
            return self.git_dir
        return Path(os.path.normpath(self.git_dir / pointer.read_text(encoding="utf-8").strip()))

    def git(self) -> Repo:
        """GitPython's view of this work tree. Its commands see this repository even inside a git hook (which sets
        GIT_DIR and GIT_INDEX_FILE), never refresh the index on the side, and never ask for a password."""
        from git import Repo

        repo = Repo(self.root)
        # Recent versions of GitPython set the first two themselves.
        repo.git.update_environment(
            GIT_DIR=os.fspath(self.git_dir),
            GIT_COMMON_DIR=os.fspath(self.common_dir),
            GIT_WORK_TREE=os.fspath(self.root),
            GIT_INDEX_FILE=os.fspath(self.git_dir / "index"),
            GIT_OPTIONAL_LOCKS="0",
            GIT_TERMINAL_PROMPT="0",
        )
        return repo

    def head(self) -> str | None:
        """Hash of the commit that is checked out; None before the first one."""
        return self._ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}", allowed=(0, 1)).decode().strip() or None

    def is_shallow(self) -> bool:
        """Whether history was cut off (`git clone --depth`), so that old content may be missing."""
        boundary = self.common_dir / "shallow"
        return boundary.is_file() and boundary.stat().st_size > 0

    def files(self, *, untracked: bool = True) -> list[str]:
        """Paths of the files of the repository that exist on disk, sorted: tracked ones, and (unless `untracked` is
        false) new ones that git does not ignore. Links are listed, folders of submodules are not."""
        arguments = ["-z", "--cached", *(("--others", "--exclude-standard") if untracked else ())]
        listed = {os.fsdecode(name) for name in self._ask("ls-files", *arguments).split(b"\0") if name}
        return sorted(path for path in listed if _is_file_or_link(self.root / path))

    def _ask(self, command: str, *arguments: str, allowed: tuple[int, ...] = (0,)) -> bytes:
        """Standard output of a git command. Raises UsageError with git's own words when git refuses."""
        from git.exc import GitError

        try:
            with self.git() as repo:
                status, output, complaint = repo.git.execute(
                    ["git", command, *arguments],
                    with_extended_output=True,
                    with_exceptions=False,
                    stdout_as_string=False,
                    strip_newline_in_stdout=False,
                )
        except GitError as error:
            raise UsageError(f"git cannot be used here: {error}", where=os.fspath(self.root)) from error
        if status not in allowed:
            raise UsageError(f"`git {command}` failed: {_text(complaint).strip()}", where=os.fspath(self.root))
        return output if isinstance(output, bytes) else os.fsencode(output)


def find_repository(start: Path) -> Repository:
    """The repository that `start` (a folder or file) lies in. Raises UsageError when there is none, when it has no work
    tree (bare, or inside .git), when its link is broken, and when there is no `git` program."""
    if not start.exists():
        raise UsageError("does not exist", where=os.fspath(start), fix="name a folder inside a git repository")
    _require_git()
    origin = start.resolve()
    for folder in (origin, *origin.parents):
        marker = folder / ".git"
        if marker.is_dir() and (marker / "HEAD").is_file():
            _refuse_bare(marker)
            return Repository(folder, marker)
        if marker.is_file():
            return Repository(folder, _linked_git_dir(marker))
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir():
            raise _no_work_tree(folder)
    raise UsageError(
        "is not inside a git repository", where=os.fspath(origin), fix="change into one, use --repo PATH, or `git init`"
    )


def _require_git() -> None:
    from shutil import which

    if which("git") is None:
        raise UsageError("the `git` program was not found", fix="install git, or add its folder to PATH")


def _linked_git_dir(marker: Path) -> Path:
    """What a `.git` file of a linked work tree or a submodule points to."""
    text = marker.read_text(encoding="utf-8", errors="surrogateescape").strip()
    target = Path(os.path.normpath(marker.parent / text.removeprefix("gitdir:").strip()))
    if not text.startswith("gitdir:") or not (target / "HEAD").is_file():
        raise UsageError(
            "does not lead to a git folder", where=os.fspath(marker), fix="run `git worktree repair` in its repository"
        )
    return target


def _refuse_bare(git_dir: Path) -> None:
    config = git_dir / "config"
    if config.is_file() and re.search(rb"^\s*bare\s*=\s*true\s*$", config.read_bytes(), re.MULTILINE | re.IGNORECASE):
        raise _no_work_tree(git_dir)


def _no_work_tree(git_dir: Path) -> UsageError:
    return UsageError(
        "is a git folder without a work tree", where=os.fspath(git_dir), fix="run this in a clone or a work tree of it"
    )


def _is_file_or_link(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _text(output: str | bytes) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output
