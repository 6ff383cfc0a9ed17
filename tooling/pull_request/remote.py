"""Asks remotes what they have, fetches it, and judges by whose commits those are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.suggest import did_you_mean
from tooling.pull_request.git import RemoteError

if TYPE_CHECKING:
    from tooling.pull_request.git import WorkTree


_ADDRESS: Final = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@]+@)?(?P<host>[^/:]+)(?::\d+)?/|(?:[^/@:]+@)?(?P<short>[^/:@]{2,}):(?!/))"
    r"(?P<path>[^\s?#]+?)(?:\.git)?/?"
)


@dataclass(frozen=True, slots=True)
class HostedRepository:
    """A repository on a service. Example: HostedRepository("github.com", "owner", "name")."""

    host: str
    owner: str
    """With all groups: "group/subgroup"."""
    name: str

    def __str__(self) -> str:
        """Return the name as `gh --repo` takes it."""
        return f"{self.host}/{self.owner}/{self.name}"


def place_of(url: str) -> HostedRepository | None:
    """Return the repository that an address names; None for folders and unknown forms."""
    found = _ADDRESS.fullmatch(url)
    owner, _, name = (found["path"] if found else "").strip("/").rpartition("/")
    if not (found and owner and name):
        return None
    return HostedRepository((found["host"] or found["short"]).lower(), owner, name)


_HEADS: Final = "refs/heads/"
_ATTEMPTS: Final = 3
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class RemoteBranches:
    """The branches that a remote has just listed."""

    remote: str
    heads: dict[str, str]
    """Branch -> hash."""
    default: str
    """The branch that its HEAD leads to; "" when it does not say."""


def ask(git: WorkTree, remote: str) -> RemoteBranches:
    """List every branch of a remote. Raises RemoteError when it cannot be reached."""
    done = git.attempt("ls-remote", "--symref", "--", remote, "HEAD", f"{_HEADS}*")
    if done.status != 0:
        raise RemoteError(
            f"the remote cannot be reached: {without_secrets(done.complaint)}",
            where=f"remote {remote!r}",
            fix="check `git remote -v`, the network and your access, then run it again; nothing was changed",
        )
    heads: dict[str, str] = {}
    default = ""
    for line in done.output.decode(errors="surrogateescape").splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: ") and name == "HEAD":
            default = value.removeprefix("ref: ").removeprefix(_HEADS)
        elif name.startswith(_HEADS):
            heads[name.removeprefix(_HEADS)] = value
    return RemoteBranches(remote, heads, default)


def require_base(offer: RemoteBranches, base: str) -> str:
    """Return the hash of the base. Raises UsageError."""
    found = offer.heads.get(base)
    if found is None:
        known = ", ".join(sorted(offer.heads)[:8]) or "none"
        raise UsageError(
            f"the remote {offer.remote!r} has no branch {base!r}",
            where="--base",
            fix=did_you_mean(base, offer.heads) or f"it has {known}",
        )
    return found


def fetch(git: WorkTree, remote: str, names: tuple[str, ...], wanted: tuple[str, ...], *, rehearsal: bool) -> None:
    """Bring branches here, with what follows from the remote's settings (tracking branches). wanted: commits that have
    to be here afterwards. rehearsal: only objects, and only if something is missing."""
    quiet = ("--refmap=", "--no-write-fetch-head") if rehearsal else ()
    for _ in range(_ATTEMPTS):
        if rehearsal and all(git.commit(each) for each in wanted):
            return
        heads = [f"{_HEADS}{name}" for name in names]
        done = git.attempt("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", *quiet, "--", remote, *heads)
        if done.status == 0 and all(git.commit(each) for each in wanted):
            return
        if done.status != 0:
            said = without_secrets(done.complaint)
            fix = "check the network and your access, then run it again; nothing was changed"
            raise RemoteError(f"fetching failed: {said}", where=f"remote {remote!r}", fix=fix)
    raise RemoteError(
        "the branches of the remote change faster than they are fetched", where=remote, fix="run it again"
    )


def complete(git: WorkTree, remote: str, *commits: str) -> None:
    """In a clone that fetches files on demand: bring those of some commits at once. The review fetches nothing."""
    if git.setting(f"remote.{remote}.promisor") != "true":
        return
    listed = git.run("rev-list", "--objects", "--no-walk", "--missing=print", *commits).decode(errors="replace")
    missing = "".join(f"{line[1:]}\n" for line in listed.splitlines() if line.startswith("?"))
    if missing:
        options = ("--no-tags", "--no-write-fetch-head", "--refmap=", "--filter=blob:none", "--stdin")
        git.attempt("-c", "fetch.negotiationAlgorithm=noop", "fetch", "-q", *options, remote, given=missing.encode())


def refuse_strangers(git: WorkTree, branch: str, remote: str, theirs: str, known: tuple[str, ...]) -> None:
    """Raise ConflictError when the remote branch holds commits that this branch never had. known: commits that this
    branch leads to, or once led to (reflog, backups)."""
    asked = "".join(f"{line}\n" for line in (theirs, *(f"^{each}" for each in known)))
    shape = "--format=%h %an: %s"
    found = git.run(
        "log", "--max-count=6", "--ignore-missing", shape, "--stdin", "--no-show-signature", given=asked.encode()
    )
    lines = found.decode(errors="replace").splitlines()
    if lines:
        shown = "; ".join(lines[:5]) + (" ..." if len(lines) > 5 else "")
        raise ConflictError(
            f"the remote branch has commits that this branch never had: {shown}",
            where=f"{remote}/{branch}",
            fix=f"take them over first: `git pull --rebase {remote} {branch}`; nothing was changed",
        )


def once_here(git: WorkTree, reference: str, tip: str) -> tuple[str, ...]:
    """Return commits that a branch leads to now, or led to before, by its reflog."""
    logged = git.attempt("log", "--walk-reflogs", "--format=%H", "--end-of-options", reference, "--")
    found = logged.output.decode().split() if logged.status == 0 else []
    return tuple(dict.fromkeys([tip, *found]))


def without_secrets(words: str) -> str:
    """Return the text without user names and passwords in its addresses."""
    return _CREDENTIALS.sub("***@", words)
