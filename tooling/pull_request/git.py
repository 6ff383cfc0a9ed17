"""Runs git in the work tree whose branch is proposed; and the errors of `areal-pr`.

Reading and computing (objects only) see none of the hooks and monitors that a repository may have configured; `push`
and the move of a branch run the hooks of the person whose repository it is, as their own git would. A dry run computes
the same commits in a store of objects of its own, which is thrown away:

    with WorkTree.rehearsing(repository) as git: ...
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import FindingError, ToolError, UnreachableError
from tooling.cli.git import Git

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.cli.git import Repository

_LONG_HASH: Final = 64
_FETCHES: Final = {"GIT_NO_LAZY_FETCH": "0"}
"""A partial clone may bring what the move of a branch needs."""


class TitleError(FindingError):
    """The title does not conform to the rules for commits."""

    code = "message"


class RemoteError(UnreachableError):
    """The remote cannot be reached, or it refused the push; nothing there has changed."""

    code = "remote"


class ServiceError(ToolError):
    """The branch is pushed, and the pull request could not be made or changed."""

    exit_code = 12
    code = "pull-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTree(Git):
    """Git in one work tree."""

    repository: Repository
    store: Path | None = None
    """A bare repository that has every object that was made; None: that is the repository itself."""

    @classmethod
    def of(cls, repository: Repository) -> WorkTree:
        """Run git in a repository."""
        return cls(folder=repository.root, environment=_FETCHES, repository=repository)

    @classmethod
    @contextmanager
    def rehearsing(cls, repository: Repository) -> Iterator[WorkTree]:
        """Write everything (objects, fetched ones too) to a folder that is removed at the end."""
        with tempfile.TemporaryDirectory(prefix="areal-pr-", ignore_cleanup_errors=True) as folder:
            store = Path(folder)
            # A bare repository without references, that borrows the objects of another one
            (store / "objects" / "info").mkdir(parents=True)
            (store / "refs").mkdir()
            (store / "HEAD").write_text("ref: refs/heads/none\n", encoding="utf-8")
            lender = repository.common_dir
            # Lines that begin with a quotation mark are read as C strings.
            objects = (
                os.fsencode(lender / "objects").replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
            )
            (store / "objects" / "info" / "alternates").write_bytes(b'"' + objects + b'"\n')
            settings = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
            if len(repository.head() or "") == _LONG_HASH:
                settings = settings.replace("= 0", "= 1") + "[extensions]\n\tobjectFormat = sha256\n"
            (store / "config").write_text(settings, encoding="utf-8")
            if repository.is_shallow():
                (store / "shallow").write_bytes((lender / "shallow").read_bytes())
            elsewhere = {**_FETCHES, "GIT_OBJECT_DIRECTORY": os.fspath(store / "objects")}
            yield cls(folder=repository.root, environment=elsewhere, repository=repository, store=store)

    @property
    def root(self) -> Path:
        """Return the root of the work tree."""
        return self.folder

    @property
    def readable(self) -> Path:
        """Return the folder where programs that only know folders find every object."""
        return self.store or self.root
