"""Checks that ask git: what was changed, what was committed and how, what a remote has."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.harness.evaluation.workspace import Workspace


def changed(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """Only these paths differ from the start, and each of those that must."""
    paths = workspace.changed()
    only = values.get("only")
    odd = [path for path in paths if only is not None and not _fits(path, only)]
    if odd:
        return f"changed as well: {', '.join(odd[:3])}"
    lacking = [glob for glob in values.get("must", []) if not any(fnmatchcase(path, glob) for path in paths)]
    return f"unchanged: {', '.join(lacking)}" if lacking else ""


def clean(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """Nothing is left uncommitted."""
    del values
    left = [line[3:] for line in workspace.git("status", "--porcelain").splitlines()]
    return f"not committed: {', '.join(left[:3])}" if left else ""


def commits(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """So many commits since the start, whose messages conform; `parts`: globs of paths, one commit for each list."""
    reach = str(values.get("range", "")) or f"{workspace.start}..HEAD"
    hashes = workspace.git("rev-list", "--reverse", reach, "--").split()
    count = values.get("count")
    if count is not None and len(hashes) != count:
        return f"{len(hashes)} commits, expected {count}"
    if not hashes:
        return "there is no commit"
    left = [list(part) for part in values.get("parts", [])]
    for commit in hashes if left else []:
        paths = workspace.git("show", "--format=", "--name-only", "--no-renames", commit).split("\n")
        part = next((one for one in left if all(_fits(path, one) for path in paths if path)), None)
        if part is None:
            return f"{commit[:10]} mixes what belongs apart, or repeats it: {', '.join(filter(None, paths))}"
        left.remove(part)
    if left:
        return f"no commit for {left[0]}"
    done = workspace.run(["areal-commit", "check", "--json", "--all", reach])
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return f"areal-commit: {done.stderr.strip()[-200:]}"
    wrong = [f"{one['header']!r}: {one['problems'][0]['message']}" for one in document["messages"] if _failed(one)]
    return wrong[0] if wrong else ""


def remote(workspace: Workspace, values: Mapping[str, Any]) -> str:
    """A branch that fits is on the remote, so many commits ahead of main."""
    lines = workspace.git("ls-remote", "--heads", values["name"]).splitlines()
    heads = {line.split("\t")[1].removeprefix("refs/heads/"): line.split("\t")[0] for line in lines}
    found = next((name for name in sorted(heads) if re.fullmatch(values["branch"], name)), None)
    if found is None:
        return f"{values['name']} has no branch {values['branch']}; it has {', '.join(sorted(heads)) or 'none'}"
    ahead = values.get("ahead")
    if ahead is None:
        return ""
    workspace.git("fetch", "-q", values["name"])
    number = workspace.git("rev-list", "--count", f"{values['name']}/main..{heads[found]}").strip()
    return "" if number == str(ahead) else f"{found} is {number or '?'} commits ahead of main, expected {ahead}"


def _failed(message: Mapping[str, Any]) -> bool:
    return any(problem["severity"] == "error" for problem in message["problems"])


def _fits(path: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)
