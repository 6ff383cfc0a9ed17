"""Finds the repository, and runs the `git` program in it.

    repository = find_repository(Path.cwd())
    repository.state                     # this work tree's private folder below .git: lock, journal, rescued files
    repository.files()                   # tracked and new files, as `git add --all` would see them
    Git(repository.root).text("describe", "--tags")

Finding it reads a few files and starts no process. `Git` is the only place of the harness that starts git by itself.

GitPython reads history too, and is used by tests only, for measured reasons (GitPython 3.2, this repository): it runs
what a hostile repository has configured (`core.fsmonitor` by `is_dirty` and by a diff with the work tree), cannot open
repositories with sha256 hashes, starts one process per commit for its changes (300 commits: 2.5 s of CPU, one `git log
--raw --numstat` 0.3 s), and loads in 80 ms. It is faster at reading single blobs (0.06 s against 0.16 s for 1,500).
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


REMOTE_SECONDS: Final = 300
_NO_HOOKS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
_ALWAYS: Final = ("-c", "core.quotePath=false", "-c", "submodule.recurse=false", "-c", "protocol.ext.allow=never")
_ENVIRONMENT: Final = {
    "GIT_EDITOR": "false",
    "GIT_MERGE_AUTOEDIT": "no",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LANGUAGE": "C",
    "LC_ALL": "C.UTF-8",
}
_PERSONAL: Final = (
    "GIT_ALLOW_PROTOCOL",
    "GIT_ASKPASS",
    "GIT_COMMITTER_",
    "GIT_CONFIG",
    "GIT_EXEC_PATH",
    "GIT_HTTP",
    "GIT_PROXY",
    "GIT_SSH",
    "GIT_SSL",
    "GIT_TRACE",
)
_OBJECTS: Final = (b"blob", b"tree", b"commit", b"tag")
_FIXES: Final = (
    ("bad revision|unknown revision", "name commits that are here: `git branch --all` and `git log` show them"),
    ("unknown option|usage: git|not a git command", "update git: `git --version` is older than what is needed"),
    ("not a git repository", "run it in a repository, or make one: `git init`"),
    ("dubious ownership", "if you trust its owner: `git config --global --add safe.directory FOLDER`"),
    (r"\.lock': File exists", "another git is at work: wait for it, or remove the lock file once none is"),
    ("tell me who you are|empty ident", "set `git config user.name NAME` and `git config user.email ADDRESS`"),
    ("No space left", "free space on the disk, then run it again"),
    ("[Pp]ermission denied|could not open|unable to create", "make the repository readable and writable for you"),
    ("did not match any file", "name paths that git knows: `git ls-files` and `git status` show them"),
    (
        "bad signature|file corrupt|is corrupt|unable to read|bad object|missing blob",
        "the repository is damaged or incomplete: `git fsck` says where; fetch or clone it again",
    ),
)
"""What to do about what git complains of, by what its words hold; the first that fits."""


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

    def head(self) -> str | None:
        """Return the hash of the commit that is checked out; None before the first one."""
        return Git(self.root).commit("HEAD")

    def is_shallow(self) -> bool:
        """Whether history was cut off (`git clone --depth`), so that old content may be missing."""
        boundary = self.common_dir / "shallow"
        return boundary.is_file() and boundary.stat().st_size > 0

    def files(self, *, untracked: bool = True) -> list[str]:
        """Return the paths of the files of the repository that exist on disk, sorted.

        These are tracked ones, and (unless `untracked` is false) new ones that git does not ignore. Links are listed,
        folders of submodules are not.
        """
        arguments = ["-z", "--cached", *(("--others", "--exclude-standard") if untracked else ())]
        listed = set(Git(self.root).listed("ls-files", *arguments))
        return sorted(path for path in listed if _is_file_or_link(self.root / path))


@dataclass(frozen=True, slots=True)
class GitResult:
    """Outcome of one git command."""

    status: int
    output: bytes
    complaint: str
    """Standard error, without the hints of git."""


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git in one folder: lists of arguments, never a shell.

    A command starts nothing that the repository has configured (hooks, monitors, a pager, an editor, downloads of
    missing objects), asks for no password, and is not led to another repository by variables that a hook inherits. It
    does see the user's own configuration. Names that users give go behind "--" or --end-of-options.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables."""

    def attempt(
        self,
        *arguments: str,
        given: bytes | None = None,
        hooks: bool = False,
        network: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> GitResult:
        """Run a command, whatever its exit status. Raises UsageError without git, UnreachableError after 300 s.

        given: standard input. hooks: those of the repository run, as for its user. network: the command talks to a
        remote, with the user's ssh and credentials.
        """
        import subprocess  # not needed to find a repository

        settings = [*_ALWAYS, *(() if hooks or arguments[0] == "config" else _NO_HOOKS)]
        variables = inherited_variables() | _ENVIRONMENT | ({"GIT_NO_LAZY_FETCH": "1"} if not network else {})
        if network:
            variables.setdefault("GIT_ASKPASS", "true")
            variables.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
        try:
            done = subprocess.run(
                ["git", *settings, *arguments],
                cwd=self.folder,
                env={**variables, **self.environment, **(environment or {})},
                input=given or b"",
                capture_output=True,
                timeout=REMOTE_SECONDS if network else None,
                check=False,
            )
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise UsageError("no such folder", where=str(self.folder), fix="name a git repository") from error
            raise UsageError("the `git` program was not found", fix="install git, or add its folder to PATH") from error
        except subprocess.TimeoutExpired as error:
            message = f"the remote did not answer within {REMOTE_SECONDS} s"
            fix = "check the network and the remote (`git remote -v`)"
            raise UnreachableError(message, where=f"git {arguments[0]}", fix=fix) from error
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        complaint = "\n".join(line for line in lines if line.strip() and not line.startswith("hint:"))
        return GitResult(done.returncode, done.stdout, complaint or "no reason given")

    def run(
        self,
        *arguments: str,
        allowed: tuple[int, ...] = (0,),
        given: bytes | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return standard output. Raises UsageError with git's own words for an exit status that is not allowed."""
        done = self.attempt(*arguments, given=given, environment=environment)
        if done.status not in allowed:
            message = f"`git {arguments[0]}` failed: {done.complaint}"
            known = (fix for pattern, fix in _FIXES if re.search(pattern, done.complaint))
            command = shlex.join(["git", *arguments])
            fix = next(
                known, f"run `{command if len(command) <= 120 else f'git {arguments[0]}'}` there to see it alone"
            )
            raise UsageError(message, where=os.fspath(self.folder), fix=fix)
        return done.output

    def text(self, *arguments: str, allowed: tuple[int, ...] = (0,), given: bytes | None = None) -> str:
        """Return the output without line feeds at its end; bytes that are not UTF-8 survive as surrogates."""
        return self.run(*arguments, allowed=allowed, given=given).decode("utf-8", "surrogateescape").rstrip("\n")

    def listed(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> list[str]:
        """Return NUL-separated output, such as paths."""
        return [os.fsdecode(part) for part in self.run(*arguments, allowed=allowed).split(b"\0") if part]

    def commit(self, revision: str) -> str | None:
        """Return the hash of the commit that a revision leads to; None when there is none, or it is not here."""
        name = f"{revision}^{{commit}}"
        return self.text("rev-parse", "--verify", "--quiet", "--end-of-options", name, allowed=(0, 1, 128)) or None

    def tree(self, commit: str) -> str:
        """Return the hash of the tree of a commit."""
        return self.text("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether a commit is part of the history of another one; it is part of its own."""
        return self.attempt("merge-base", "--is-ancestor", older, newer).status == 0

    def merge_base(self, one: str, other: str) -> str | None:
        """Return the commit where two parted; None when they share nothing."""
        return self.text("merge-base", one, other, allowed=(0, 1)) or None

    def setting(self, name: str, *, path: bool = False) -> str:
        """Return a value of git's configuration, "" when it is not set. path: "~" is expanded."""
        kind = ("--includes", "--type=path") if path else ()
        return self.text("config", *kind, "--get", name, allowed=(0, 1))

    def blobs(self, names: Sequence[str]) -> list[bytes | None]:
        """Return contents of files by hash, "HEAD:path" or ":path" (the index); None for what is not one, or not here.

        Example: of "1a2b\\n", git prints "1a2b<rest of the hash> blob 12\\n", twelve bytes, and a line feed.
        """
        if not names:
            return []
        if any("\n" in name for name in names):  # the protocol below has one name per line
            answers = [self.attempt("cat-file", "blob", name) for name in names]
            return [None if answer.status else answer.output for answer in answers]
        asked = "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
        output = self.run("cat-file", "--batch", given=asked)
        found, at = list[bytes | None](), 0
        while at < len(output):
            end = output.index(b"\n", at)
            head = output[at:end].rsplit(b" ", 2)
            at = end + 1
            if len(head) == 3 and head[2].isdigit() and head[1] in _OBJECTS:
                size = int(head[2])
                found.append(output[at : at + size] if head[1] == b"blob" else None)
                at += size + 1
            else:
                found.append(None)
        return found

    def missing(self, names: Sequence[str]) -> set[str]:
        """Return those objects of a partial clone that it names and does not hold."""
        asked = "".join(f"{name}\n" for name in names if set(name) != {"0"}).encode()
        answers = self.run("cat-file", "--batch-check", given=asked).decode().splitlines()
        return {line.split(" ")[0] for line in answers if line.endswith(" missing")}


def inherited_variables() -> dict[str, str]:
    """Return the environment for git and for programs that use it: of git's own variables only those that say how this
    user works, not on what."""
    names = [name for name in os.environ if not name.startswith("GIT_") or name.startswith(_PERSONAL)]
    return {name: os.environ[name] for name in names}


def find_repository(start: Path) -> Repository:
    """Return the repository that `start` (a folder or file) lies in.

    Raises UsageError when there is none, when it has no work tree (bare, or inside .git), when its link is broken, and
    when there is no `git` program.
    """
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


def nearest_root(folder: Path) -> Path:
    """Return the root of the work tree that a folder lies in; the folder itself where there is no git."""
    if not folder.is_dir():
        raise UsageError("no such folder", where=f"--repo {folder}", fix="name a repository")
    try:
        return find_repository(folder).root
    except UsageError:
        return folder.resolve()


def _require_git() -> None:
    from shutil import which

    if which("git") is None:
        raise UsageError("the `git` program was not found", fix="install git, or add its folder to PATH")


def _linked_git_dir(marker: Path) -> Path:
    """Return what a `.git` file of a linked work tree or a submodule points to."""
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
