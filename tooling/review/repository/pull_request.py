"""Fetches a pull request by its number under refs of its own, and touches nothing else.

Branches, index and work tree stay as they are; what a pull request says (title, text, names of branches) is not read,
but for the name of the branch that it asks to be merged into. `gh` tells that name if it is there; without it the base
is the remote's default branch, and the report says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from tooling.review.repository.git import ReviewedClone

FOLDER: Final = "refs/areal-review"
_HEADS: Final = ("refs/pull/{}/head", "refs/merge-requests/{}/head")
"""Where servers keep a request: GitHub and Gitea; GitLab."""
_GH_SECONDS: Final = 20


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What was fetched."""

    number: int
    head: str
    """Hash of its newest commit."""
    base: str
    """Hash of the branch that it asks to be merged into."""
    base_name: str
    told: bool
    """Whether somebody said so; otherwise it is the remote's default branch."""


def fetch(git: ReviewedClone, number: int, *, remote: str = "", base: str = "") -> PullRequest:
    """Fetch a request and its base. base: a branch of the remote; "" asks `gh`, then the remote.

    Raises UsageError: no such remote or request, or it cannot be reached.
    """
    if not remote:
        remotes = git.text("remote").split()
        preferred = [each for each in ("upstream", "origin") if each in remotes] or remotes
        if not preferred:
            fix = "add one, or review a branch with --head"
            raise UsageError("this repository has no remote", where="--pr", fix=fix)
        remote = preferred[0]
    known = _listed(git, remote, number)
    source = next((name for name in (each.format(number) for each in _HEADS) if name in known), None)
    if source is None:
        raise UsageError(
            f"{remote} has no pull request {number}", where=f"--pr {number}", fix="check the number, or name --remote"
        )
    name, told = _base(git, number, base, known)
    if f"refs/heads/{name}" not in known:
        raise UsageError(f"{remote} has no branch {name!r}", where="--base", fix="name a branch of the remote: --base")
    kept = {source: f"{FOLDER}/{number}/head", f"refs/heads/{name}": f"{FOLDER}/{number}/base"}
    git.fetch(remote, [f"+{there}:{here}" for there, here in kept.items()])
    head, onto = (git.require(here, f"--pr {number}") for here in kept.values())
    return PullRequest(number, head, onto, name, told)


def _listed(git: ReviewedClone, remote: str, number: int) -> dict[str, str]:
    """Return refs of the remote that matter here, with their hashes; "HEAD" with the name of the default branch."""
    if remote.startswith("-"):
        raise UsageError("is not a remote", where=f"--remote {remote}", fix="name one that `git remote` lists")
    patterns = ["HEAD", "refs/heads/*", *(each.format(number) for each in _HEADS)]
    found: dict[str, str] = {}
    for line in git.remote("ls-remote", "--symref", "--", remote, *patterns).splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            found["HEAD"] = value.removeprefix("ref: ")
        elif name != "HEAD":
            found[name] = value
    return found


def _base(git: ReviewedClone, number: int, given: str, known: dict[str, str]) -> tuple[str, bool]:
    if given:
        return given, True
    told = _told_by_gh(git, number)
    if f"refs/heads/{told}" in known:
        return told, True
    default = known.get("HEAD", "").removeprefix("refs/heads/")
    if not default:
        raise UsageError("the remote names no default branch", where="--pr", fix="name the base: --base BRANCH")
    return default, False


def _told_by_gh(git: ReviewedClone, number: int) -> str:
    """Ask `gh` for the base branch; "" where `gh` is missing, logged out, or of another host."""
    program = shutil.which("gh")
    if program is None:
        return ""
    environment = {**os.environ, "GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            [program, "pr", "view", str(number), "--json", "baseRefName"],
            cwd=git.root,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GH_SECONDS,
            check=False,
        )
        name = json.loads(done.stdout)["baseRefName"] if done.returncode == 0 else ""
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        return ""
    return name if isinstance(name, str) else ""
