"""Pull requests through `gh`; without it, what to do by hand. Everything is handed over as arguments of the form
`--name=value`, the text on standard input: nothing in a name or a message can become an option or a command.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tooling.pull_request.git import ServiceError
from tooling.pull_request.remote import place_of, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.pull_request.branch import CheckedOutBranch, Target

_SECONDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A pull request that is open for the branch."""

    number: int
    url: str
    title: str
    base: str
    draft: bool
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswer:
    """What the service said of the branch."""

    usable: bool
    """Whether `gh` is there and may be used."""
    why: str = ""
    """Why not."""
    existing: OpenRequest | None = None


def look_up(folder: Path, branch: CheckedOutBranch, target: Target) -> ServiceAnswer:
    """Find whether `gh` can be used, and which pull request is open. Changes nothing."""
    if shutil.which("gh") is None:
        return ServiceAnswer(usable=False, why="`gh` is not installed")
    fields = "number,url,title,baseRefName,headRefName,isDraft,body,isCrossRepository,headRepositoryOwner"
    words = ("pr", "list", *_repo(target), f"--head={branch.name}", "--state=open", "--limit=30", f"--json={fields}")
    done = _gh(folder, words)
    if done.returncode != 0:
        return ServiceAnswer(usable=False, why=f"`gh` cannot be used: {_said(done)}")
    try:
        row = next((each for each in json.loads(done.stdout) if _is_ours(each, branch, target)), None)
        if row is None:
            return ServiceAnswer(usable=True)
        existing = OpenRequest(
            number=int(row["number"]),
            url=str(row["url"]),
            title=str(row["title"]),
            base=str(row["baseRefName"]),
            draft=bool(row["isDraft"]),
            body=str(row["body"] or ""),
        )
        return ServiceAnswer(usable=True, existing=existing)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return ServiceAnswer(usable=False, why=f"`gh pr list` answered something unknown ({error})")


def create_words(branch: CheckedOutBranch, target: Target, title: str, *, draft: bool) -> list[str]:
    """Return the command that makes a pull request; the text is its standard input."""
    fork = place_of(target.url) if target.remote != target.base_remote else None
    head = f"{fork.owner}:{branch.name}" if fork is not None else branch.name
    words = ["pr", "create", *_repo(target), f"--base={target.base}", f"--head={head}"]
    return [*words, f"--title={title}", "--body-file=-", *(["--draft"] if draft else [])]


def edit_words(number: int, target: Target, *, title: str, body: bool, base: str) -> list[str]:
    """Return the command that changes a pull request; empty parts stay as they are."""
    words = ["pr", "edit", str(number), *_repo(target)]
    words += [f"--title={title}"] if title else []
    words += [f"--base={base}"] if base else []
    return words + (["--body-file=-"] if body else [])


def perform(folder: Path, words: list[str], body: str) -> str:
    """Run such a command; return the address that `gh` printed. Raises ServiceError."""
    done = _gh(folder, tuple(words), given=body)
    if done.returncode != 0:
        raise ServiceError(
            f"`gh {' '.join(words[:2])}` failed: {_said(done)}",
            where=f"exit code {done.returncode}",
            fix="the branch is pushed; put right what it says and run it again",
        )
    lines = done.stdout.decode(errors="replace").split()
    return next((each for each in reversed(lines) if each.startswith(("https://", "http://"))), "")


def by_hand(branch: CheckedOutBranch, target: Target, title: str, body: Path, *, draft: bool) -> tuple[str, ...]:
    """Say what a person does without `gh`: an address to open where the service is known, and the command."""
    steps = []
    place, fork = place_of(target.base_url), place_of(target.url)
    base, head = quote(target.base, safe="/"), quote(branch.name, safe="/")
    if place is not None and "gitlab" in place.host:
        query = f"merge_request[source_branch]={quote(branch.name, safe='')}&merge_request[target_branch]="
        steps.append(f"open https://{place}/-/merge_requests/new?{query}{quote(target.base, safe='')}")
    elif place is not None:
        lead = f"{quote(fork.owner)}:" if fork is not None and fork != place else ""
        title_there = quote(title, safe="")
        steps.append(f"open https://{place}/compare/{base}...{lead}{head}?expand=1&title={title_there}")
    words = [each for each in create_words(branch, target, title, draft=draft) if each != "--body-file=-"]
    steps.append(shlex.join(["gh", *words, f"--body-file={os.fspath(body)}"]))
    return tuple(steps)


def shown(words: list[str]) -> str:
    """Return a command line for people."""
    return shlex.join(["gh", *words])


def _repo(target: Target) -> tuple[str, ...]:
    place = place_of(target.base_url)
    return (f"--repo={place}",) if place is not None else ()


def _is_ours(row: dict[str, Any], branch: CheckedOutBranch, target: Target) -> bool:
    """Tell whether a request is of this branch: the same name in somebody else's fork is another one."""
    fork = place_of(target.url) if target.remote != target.base_remote else None
    if fork is None:
        return bool(row["headRefName"] == branch.name and not row["isCrossRepository"])
    owner = (row["headRepositoryOwner"] or {}).get("login", "")
    return bool(row["headRefName"] == branch.name and owner.casefold() == fork.owner.casefold())


def _gh(folder: Path, words: tuple[str, ...], given: str = "") -> subprocess.CompletedProcess[bytes]:
    quiet = {"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1", "GH_PAGER": "cat"}
    try:
        return subprocess.run(
            ["gh", *words],
            cwd=folder,
            env={**os.environ, **quiet},
            input=given.encode("utf-8", errors="replace"),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"no answer within {_SECONDS} seconds".encode()
        return subprocess.CompletedProcess(["gh"], 124, b"", said)


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode(errors="replace").strip()
    return without_secrets(text) or f"exit code {done.returncode}"
