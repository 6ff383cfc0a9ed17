"""Finds the branch, its base and its remotes, and what forbids to begin. Changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tooling.cli.errors import ConflictError, UsageError
from tooling.cli.suggest import did_you_mean
from tooling.pull_request.remote import ask, place_of, require_base, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tooling.cli.git import Repository
    from tooling.pull_request.git import WorkTree


HEADS: Final = "refs/heads/"
_USUAL: Final = ("main", "master")
PROTECTED: Final = frozenset(_USUAL)
"""Never proposed from, whatever the base is."""
_SHOWN: Final = 10
_OPERATIONS: Final = {
    "rebase-merge": ("a rebase", "git rebase --continue` or `git rebase --abort"),
    "rebase-apply": ("a rebase or `git am`", "git rebase --abort` or `git am --abort"),
    "MERGE_HEAD": ("a merge", "git merge --continue` or `git merge --abort"),
    "CHERRY_PICK_HEAD": ("a cherry-pick", "git cherry-pick --continue` or `git cherry-pick --abort"),
    "REVERT_HEAD": ("a revert", "git revert --continue` or `git revert --abort"),
    "sequencer": ("a series of picks", "git cherry-pick --abort` or `git revert --abort"),
    "BISECT_LOG": ("a bisection", "git bisect reset"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalOptions:
    """What the caller asks for."""

    base: str = ""
    """Branch of the remote, "REMOTE/BRANCH" where it lies on another one; "" for the remote's default."""
    remote: str = ""
    """Where to push to; "" for the one that the branch is set up with."""
    title: str = ""
    draft: bool = False
    squash: bool = True
    rebase: bool = True
    push: bool = True
    replace_body: bool = False
    refuse_untracked: bool = False
    run_checks: bool = False
    """Whether the repository's checks run first, and have to pass."""
    audit: Path | None = None
    """JSON of `areal-upgrade-deps impact`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOutBranch:
    """What is checked out."""

    name: str
    tip: str
    """Hash of its newest commit."""

    @property
    def reference(self) -> str:
        """The full name, which nothing else can be mistaken for."""
        return f"{HEADS}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the branch goes, and what it is compared with."""

    remote: str
    base_remote: str
    base: str
    base_tip: str
    theirs: str
    """What the branch is on the remote; "" where it is not there."""
    url: str
    base_url: str


def current_branch(git: WorkTree) -> CheckedOutBranch:
    """Return the branch that is checked out. Raises UsageError where there is none, or it has no commits."""
    reference = git.text("symbolic-ref", "--quiet", "HEAD", allowed=(0, 1))
    if not reference:
        fix = "`git switch -c NAME` makes one of where you are"
        raise UsageError("no branch is checked out", where="HEAD", fix=fix)
    tip = git.commit(reference)
    if not reference.startswith(HEADS):
        raise UsageError("what is checked out is not a branch", where=reference, fix="`git switch BRANCH`")
    if tip is None:
        raise UsageError("there are no commits yet", where=reference, fix="commit something first")
    return CheckedOutBranch(name=reference.removeprefix(HEADS), tip=tip)


def refuse_operations(repository: Repository) -> None:
    """Raise UsageError while a rebase, merge or the like is in progress."""
    for name, (what, way_out) in _OPERATIONS.items():
        if os.path.lexists(repository.git_dir / name):
            raise UsageError(f"{what} is in progress", where=os.fspath(repository.root), fix=f"end it: `{way_out}`")


def refuse_elsewhere(git: WorkTree, branch: CheckedOutBranch) -> None:
    """Raise UsageError where another work tree has the same branch: it would silently be left behind."""
    here = os.path.realpath(git.root)
    place = ""
    for field in git.listed("worktree", "list", "--porcelain", "-z"):
        word, _, value = field.partition(" ")
        place = value if word == "worktree" else place
        if word == "branch" and value == branch.reference and os.path.realpath(place) != here:
            raise UsageError(
                f"{branch.name!r} is checked out in another work tree too",
                where=place,
                fix="`git switch` to something else there",
            )


def uncommitted(git: WorkTree, *, submodules: Literal["none", "dirty"] = "dirty") -> tuple[list[str], list[str]]:
    """Return the paths that differ from the commit that is checked out, and those that git does not know.

    submodules: what of them is ignored; work in progress inside of them belongs to other repositories.
    """
    what = ("--untracked-files=normal", f"--ignore-submodules={submodules}")
    fields = iter(git.listed("status", "--porcelain", "-z", *what))
    changed, untracked = list[str](), list[str]()
    for field in fields:
        state, path = field[:2], field[3:]
        if "R" in state or "C" in state:
            next(fields, "")
        (untracked if state == "??" else changed).append(path)
    return changed, untracked


def refuse_changes(git: WorkTree, *, refuse_untracked: bool) -> list[str]:
    """Raise UsageError for work that is not committed. Returns what is worth a warning: files git does not know."""
    changed, untracked = uncommitted(git)
    if changed:
        raise UsageError(
            f"there is work that is not committed: {named(changed)}",
            where=os.fspath(git.root),
            fix="commit it, or put it aside with `git stash`",
        )
    if untracked and refuse_untracked:
        fix = "`git add` and commit them, or name them in .git/info/exclude"
        raise UsageError(f"files that git does not know: {named(untracked)}", where="--untracked refuse", fix=fix)
    return [f"not part of the pull request, since git does not know them: {named(untracked)}"] if untracked else []


def target(git: WorkTree, branch: CheckedOutBranch, options: ProposalOptions) -> Target:
    """Find where everything is to go. Asks the remotes; raises UsageError for what they do not have."""
    addresses = remotes(git)
    remote = _remote(git, branch, options.remote, addresses)
    base_remote, named = _base(options.base, remote, addresses)
    offer = ask(git, remote)
    base_offer = offer if base_remote == remote else ask(git, base_remote)
    base = named or base_offer.default or _default_here(git, base_remote)
    if not base:
        raise UsageError("the remote does not say which branch is its default", where=remote, fix="name it: --base")
    same_remote = remote == base_remote
    is_base = branch.name == base and same_remote
    if is_base or branch.name in PROTECTED or (same_remote and branch.name == base_offer.default):
        what = "the base itself" if is_base else "a branch that others build on"
        raise UsageError(
            f"{branch.name!r} is {what}", where="HEAD", fix="`git switch -c NAME` takes your commits along"
        )
    return Target(
        remote=remote,
        base_remote=base_remote,
        base=base,
        base_tip=require_base(base_offer, base),
        theirs=offer.heads.get(branch.name, ""),
        url=addresses[remote],
        base_url=addresses[base_remote],
    )


def target_offline(git: WorkTree, branch: CheckedOutBranch, options: ProposalOptions) -> Target:
    """Find the same from what was fetched last: nothing is asked."""
    addresses = remotes(git)
    remote = _remote(git, branch, options.remote, addresses)
    base_remote, named = _base(options.base, remote, addresses)
    base = named or _default_here(git, base_remote)
    tip = git.commit(f"refs/remotes/{base_remote}/{base}") if base else None
    if tip is None:
        what = f"the branch {base!r} of" if base else "the default branch of"
        fix = f"`git fetch {base_remote}`, or name another: --base"
        raise UsageError(f"{what} the remote {base_remote!r} was never fetched", where="--base", fix=fix)
    theirs = git.commit(f"refs/remotes/{remote}/{branch.name}") or ""
    return Target(
        remote=remote,
        base_remote=base_remote,
        base=base,
        base_tip=tip,
        theirs=theirs,
        url=addresses[remote],
        base_url=addresses[base_remote],
    )


def remotes(git: WorkTree) -> dict[str, str]:
    """Return name -> address, without user names and passwords: as git resolves it, or as it was written where only
    that names a service (`insteadOf` may lead to a mirror)."""
    output = git.listed("config", "-z", "--get-regexp", r"^remote\..*\.url$", allowed=(0, 1))
    found: dict[str, str] = {}
    for line in output:
        key, _, written = line.partition("\n")
        name = key.removeprefix("remote.").removesuffix(".url")
        if name not in found:
            resolved = git.text("ls-remote", "--get-url", "--", name)
            found[name] = without_secrets(resolved if place_of(resolved) or not place_of(written) else written)
    return found


def _remote(git: WorkTree, branch: CheckedOutBranch, named: str, known: Mapping[str, str]) -> str:
    if named:
        if named not in known:
            fix = did_you_mean(named, known) or f"one of {', '.join(known) or 'none'}: `git remote -v`"
            raise UsageError(f"there is no remote {named!r}", where="--remote", fix=fix)
        return named
    if not known:
        raise UsageError("there is no remote", where=os.fspath(git.root), fix="`git remote add origin URL`")
    asked = (f"branch.{branch.name}.pushremote", "remote.pushdefault", f"branch.{branch.name}.remote")
    keys = r"^(remote\.pushdefault|branch\..*\.(push)?remote)$"
    listed = git.listed("config", "-z", "--get-regexp", keys, allowed=(0, 1))
    chosen = dict(line.split("\n", 1) for line in listed if "\n" in line)
    found = next((chosen[each] for each in asked if chosen.get(each) in known), "origin" if "origin" in known else "")
    if found:
        return found
    if len(known) > 1:
        raise UsageError(f"there are several remotes: {', '.join(known)}", where="--remote", fix="name one: --remote")
    return next(iter(known))


def _base(named: str, remote: str, known: Mapping[str, str]) -> tuple[str, str]:
    """Remote and branch of the base: "upstream/main" where `upstream` is a remote, "main" of the remote otherwise."""
    named = named.removeprefix("refs/remotes/").removeprefix(HEADS)
    lead = next((each for each in sorted(known, key=len, reverse=True) if named.startswith(f"{each}/")), "")
    return (lead, named.removeprefix(f"{lead}/")) if lead else (remote, named)


def _default_here(git: WorkTree, remote: str) -> str:
    """Return the default branch by what was fetched; the usual names where that was never asked."""
    head = f"refs/remotes/{remote}/HEAD"
    found = git.text("symbolic-ref", "--quiet", head, allowed=(0, 1, 128))
    if found:
        return found.removeprefix(f"refs/remotes/{remote}/")
    return next((each for each in _USUAL if git.commit(f"refs/remotes/{remote}/{each}")), "")


def named(paths: Sequence[str]) -> str:
    """Return the first of some paths for a message."""
    shown = ", ".join(repr(path) if not path.isprintable() else path for path in paths[:_SHOWN])
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def refuse_moved(git: WorkTree, branch: CheckedOutBranch) -> None:
    """Raise ConflictError when the branch is not what it was when the plan was made."""
    now = git.commit(branch.reference)
    if now != branch.tip:
        raise ConflictError(
            f"the branch moved meanwhile, from {branch.tip[:12]} to {(now or 'nothing')[:12]}",
            where=branch.name,
            fix="run it again",
        )
