"""Whether the checklists on disk are true, and what is not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.upgrade.checklists.document import parse, parts_of, render

if TYPE_CHECKING:
    from tooling.upgrade.checklists.contents import Checklist


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that is not true any more."""

    path: str
    key: str
    """"files", "guarded", "entry vllm.LLM", "frontmatter", or "file" for the whole."""
    what: str
    """"missing", "stale", "changed" or "damaged"."""
    message: str


def drift(checklist: Checklist, text: str | None, path: str, *, signatures: bool = True) -> list[Drift]:
    """Everything `text` says that is not so; empty when it is what would be written. signatures: whether the release
    was there to compare with; without it files and guards are compared only."""
    if text is None:
        return [Drift(path, "file", "missing", "this package has no checklist")]
    try:
        front, existing = parse(text, path)
    except UsageError as error:
        return [Drift(error.where, "file", "damaged", error.message)]
    bodies = {part.key: part.body for part in existing if part.key}
    fresh = {part.key: part.body for part in parts_of(checklist)}
    found = []
    for key, body in fresh.items():
        if not signatures and (key.startswith("entry ") or key == "files"):
            continue
        if key not in bodies:
            entry = key.removeprefix("entry ")
            what = f"no part {key!r}" if entry == key else f"{entry} is used and has no entry"
            found.append(Drift(path, key, "missing", what))
        elif bodies[key] != body:
            found.append(Drift(path, key, "changed", _difference(bodies[key], body)))
    if not signatures:
        # Without the release tiers are not compared, only the names of the files.
        names = {file.path for file in checklist.files}
        listed = set(re.findall(r"^- `([^`]+)`", bodies.get("files", ""), re.MULTILINE))
        what = "uses it and is not listed"
        found += [Drift(path, "files", "missing", f"{name} {what}") for name in sorted(names - listed)]
        what = "is listed and does not use it"
        return found + [Drift(path, "files", "stale", f"{name} {what}") for name in sorted(listed - names)]
    found += [Drift(path, key, "stale", "nothing uses it any more") for key in bodies if key not in fresh]
    if not found and render(checklist, text, path) != text:
        expected = render(checklist, text, path)
        found.append(Drift(path, "frontmatter", "changed", _difference(front, expected)))
    return found


def _difference(old: str, new: str) -> str:
    """Return the first lines that differ, in words."""
    before, after = old.splitlines(), new.splitlines()
    for left, right in zip(before, after, strict=False):
        if left != right:
            return f"says {left.strip()!r}, is {right.strip()!r}"
    return f"has {len(before)} lines, should have {len(after)}"
