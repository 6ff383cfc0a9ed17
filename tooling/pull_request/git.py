"""The only place of this package that runs git: argument lists, never a shell; revisions are full names or hashes.

Reading and computing (objects only) see none of the hooks and monitors that a repository may have configured; `push`
and the move of a branch run the hooks of the person whose repository it is, as their own git would.

A dry run computes the same commits in a store of objects of its own, which is thrown away:

    with Git.rehearsing(repository) as git: ...
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.cli.git import Repository

_LONG_HASH: Final = 64
_HARMLESS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
_ALWAYS: Final = ("-c", "core.quotePath=false", "-c", "submodule.recurse=false", "-c", "advice.diverging=false")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run of git."""

    status: int
    output: bytes
    complaint: str
    """Standard error, without the hints of git."""


@dataclass(frozen=True, slots=True)
class Git:
    """One work tree."""

    repository: Repository
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the environment."""
    store: Path | None = None
    """A bare repository that has every object that was made; None: that is the repository itself."""

    @classmethod
    @contextmanager
    def rehearsing(cls, repository: Repository) -> Iterator[Git]:
        """Everything this writes (objects, fetched ones too) goes to a folder that is removed at the end."""
        with tempfile.TemporaryDirectory(prefix="areal-pr-", ignore_cleanup_errors=True) as folder:
            store = Path(folder)
            _make_store(store, repository)
            yield cls(repository, {"GIT_OBJECT_DIRECTORY": os.fspath(store / "objects")}, store)

    @property
    def readable(self) -> Path:
        """Where programs that only know folders find every object."""
        return self.store or self.root

    @property
    def root(self) -> Path:
        """Of the work tree."""
        return self.repository.root

    def attempt(
        self,
        *arguments: str,
        given: bytes | None = None,
        hooks: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run git, whatever comes of it. hooks: those of the repository run."""
        # None of git's own variables: this may be called from a hook, which points elsewhere by them.
        inherited = {name: value for name, value in os.environ.items() if name not in _elsewhere()}
        own = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_EDITOR": "false", "LC_ALL": "C.UTF-8"}
        own |= {"LANGUAGE": "C", "GIT_MERGE_AUTOEDIT": "no"}
        command = ["git", *(() if hooks else _HARMLESS), *_ALWAYS, *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env={**inherited, **own, **self.extra, **(environment or {})},
                input=given or b"",
                capture_output=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise UsageError("the `git` program was not found", fix="install git, or add its folder to PATH") from error
        return Outcome(done.returncode, done.stdout, _complaint(done.stderr))

    def run(
        self,
        *arguments: str,
        allowed: tuple[int, ...] = (0,),
        given: bytes | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> bytes:
        """Standard output. Raises UsageError with git's own words."""
        done = self.attempt(*arguments, given=given, environment=environment)
        if done.status not in allowed:
            raise UsageError(f"`git {arguments[0]}` failed: {done.complaint}", where=os.fspath(self.root))
        return done.output

    def line(self, *arguments: str, allowed: tuple[int, ...] = (0,), given: bytes | None = None) -> str:
        """The output as one line of text."""
        return os.fsdecode(self.run(*arguments, allowed=allowed, given=given)).rstrip("\n")

    def listed(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> list[str]:
        """NUL-separated output, such as paths."""
        return [os.fsdecode(part) for part in self.run(*arguments, allowed=allowed).split(b"\0") if part]

    def commit(self, revision: str) -> str | None:
        """Hash of the commit that something leads to; None when there is none, or it is not here."""
        name = f"{revision}^{{commit}}"
        arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", name)
        return self.line(*arguments, allowed=(0, 1, 128)) or None

    def tree(self, commit: str) -> str:
        """Hash of the tree of a commit."""
        return self.line("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")

    def contains(self, descendant: str, commit: str) -> bool:
        """Whether a commit is part of the history of another one."""
        return self.attempt("merge-base", "--is-ancestor", commit, descendant).status == 0

    def setting(self, name: str) -> str:
        """A value of git's configuration; "" when it is not set."""
        return self.line("config", "--get", name, allowed=(0, 1))


def _make_store(store: Path, repository: Repository) -> None:
    """A bare repository without references, that borrows the objects of another one."""
    (store / "objects" / "info").mkdir(parents=True)
    (store / "refs").mkdir()
    (store / "HEAD").write_text("ref: refs/heads/none\n", encoding="utf-8")
    lender = repository.common_dir
    # Lines that begin with a quotation mark are read as C strings.
    (store / "objects" / "info" / "alternates").write_bytes(_quoted(os.fsencode(lender / "objects")) + b"\n")
    settings = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
    if len(repository.head() or "") == _LONG_HASH:
        settings = settings.replace("= 0", "= 1") + "[extensions]\n\tobjectFormat = sha256\n"
    (store / "config").write_text(settings, encoding="utf-8")
    if repository.is_shallow():
        (store / "shallow").write_bytes((lender / "shallow").read_bytes())


def _quoted(path: bytes) -> bytes:
    escaped = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'


def _elsewhere() -> frozenset[str]:
    return frozenset(
        {
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_COMMON_DIR",
            "GIT_INDEX_FILE",
            "GIT_PREFIX",
            "GIT_EXTERNAL_DIFF",
            "GIT_NAMESPACE",
            "GIT_OBJECT_DIRECTORY",
            "GIT_AUTHOR_NAME",
            "GIT_AUTHOR_EMAIL",
            "GIT_AUTHOR_DATE",
        }
    )


def _complaint(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith("hint:")]
    return "\n".join(kept) or "no reason given"
