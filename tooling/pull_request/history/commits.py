"""The commits of a branch: read, and written again with their author and their words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from tooling.pull_request.git import Git

_FIELDS: Final = "%H%x00%P%x00%T%x00%an%x00%ae%x00%ad%x00%aN%x00%aE%x00%B%x00"
_COUNT: Final = 9
_EMPTY_IDENTITY: Final = re.compile(r"[<>\n\x00]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit. Name and address are as written; `person` is what .mailmap makes of them."""

    hash: str
    parents: tuple[str, ...]
    tree: str
    name: str
    email: str
    date: str
    """Seconds and time zone: "1700000000 +0100"."""
    person: tuple[str, str]
    message: str

    @property
    def subject(self) -> str:
        """The first line."""
        return self.message.strip().split("\n", 1)[0].strip()


def commits_since(git: Git, base: str, tip: str) -> tuple[Commit, ...]:
    """What `tip` has and `base` has not, oldest first."""
    return _read(git, "--reverse", "--topo-order", "--end-of-options", f"{base}..{tip}", "--")


def read_commit(git: Git, name: str) -> Commit:
    """One commit by its hash."""
    found = _read(git, "--no-walk", "--end-of-options", name, "--")
    if not found:
        raise UsageError("is no commit that can be read", where=name)
    return found[0]


def _read(git: Git, *asked: str) -> tuple[Commit, ...]:
    """Text in another encoding is converted."""
    settings = ("--no-show-signature", "--date=raw", "--encoding=UTF-8", "--no-patch", "--no-color")
    fields = git.run("log", *settings, f"--format={_FIELDS}", *asked).decode(errors="replace").split("\0")
    return tuple(_commit(fields[start : start + _COUNT]) for start in range(0, len(fields) - _COUNT + 1, _COUNT))


def _commit(fields: list[str]) -> Commit:
    hash_, parents, tree, author, email, date, person, address, message = fields
    return Commit(
        hash=hash_.strip("\n"),
        parents=tuple(parents.split()),
        tree=tree,
        name=author,
        email=email,
        date=date,
        person=(person, address),
        message=message.removesuffix("\n"),
    )


def write_commit(git: Git, *, tree: str, parent: str, message: str, author: Commit, signed: bool = True) -> str:
    """Make a commit object by the author of another one; its committer is who runs this. Raises UsageError with git's
    words where nobody is known, or the commit cannot be signed as the settings ask."""
    sign = (
        ("-S",)
        if signed and git.line("config", "--type=bool", "--get", "commit.gpgSign", allowed=(0, 1)) == "true"
        else ()
    )
    who = {
        "GIT_AUTHOR_NAME": _EMPTY_IDENTITY.sub("", author.name) or "unknown",
        "GIT_AUTHOR_EMAIL": _EMPTY_IDENTITY.sub("", author.email),
        "GIT_AUTHOR_DATE": author.date,
    }
    text = message.rstrip("\n").encode("utf-8", errors="replace") + b"\n"
    arguments = ("-c", "i18n.commitEncoding=UTF-8", "commit-tree", *sign, "-p", parent, "-F", "-", tree)
    made = git.attempt(*arguments, given=text, environment=who)
    if made.status != 0:
        fix = "`git config user.name NAME` and `git config user.email ADDRESS`; or mend what signs your commits"
        raise UsageError(f"no commit can be made: {made.complaint}", where=os.fspath(git.root), fix=fix)
    return made.output.decode().strip()
