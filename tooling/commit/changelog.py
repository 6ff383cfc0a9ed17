"""History as a list of changes: of a range, or of everything with a section per tag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.cli.git import Git
from tooling.commit.changes import commits
from tooling.commit.message import NUMBER, parse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.commit.changes import Commit

TITLES: Final = {
    "feat": "New",
    "fix": "Corrected",
    "perf": "Faster",
    "refactor": "Rebuilt",
    "docs": "Documents",
    "gov": "Governance",
    "revert": "Reverted",
    "style": "Style",
    "test": "Tests",
    "build": "Build",
    "ci": "Build server",
    "chore": "Chores",
}
USERS: Final = ("feat", "fix", "perf", "refactor", "docs", "gov", "revert")
"""Types that readers of a list of changes care about."""
RELEASED: Final = ("feat", "fix", "perf")
"""Types that the page of a whole history shows: what is new, corrected or faster for users."""
UP_TO: Final = "<!-- areal-commit changelog: up to "
"""Begins the last line of that page; the hash of its newest commit follows."""
OTHER: Final = "other"
_REVERTED: Final = re.compile(r"This reverts commit ([0-9a-f]{7,40})")
_MARKDOWN: Final = re.compile(r"([\\`*_<>\[\]|#])")


@dataclass(frozen=True, slots=True)
class ChangelogEntry:
    """One commit of the list."""

    hash: str
    type: str
    """"other" without a conventional header."""
    scope: str
    subject: str
    number: str
    """"#12" of a squash merge; ""."""
    breaking: tuple[str, ...]
    """What it breaks, in its own words; its subject when it only says so by `!`."""


def entries(commits: Sequence[Commit]) -> list[ChangelogEntry]:
    """List changes, newest first. Merges are left out, and so are commits that the range itself reverts, with their
    reverts; a revert that is reverted itself reverts nothing."""
    hashes = [each.hash for each in commits]
    gone: set[str] = set()
    for each in commits:  # newest first
        if each.hash in gone:
            continue
        for short in _REVERTED.findall(each.message):
            target = next((name for name in hashes if name.startswith(short)), None)
            if target is not None and target != each.hash:
                gone |= {each.hash, target}
    return [_entry(each) for each in commits if len(each.parents) < 2 and each.hash not in gone]


def page(root: Path, revision: str, heading: str = "Changelog", *, all_types: bool = False) -> str:
    """Format the whole history of a commit: a section per tag, newest first, with what users see, by type and scope.
    all_types: documents, tests, the build and the rest too.

    Raises UsageError for what git does not know.
    """
    git = Git(root)
    last = git.commit(revision)
    if last is None:
        raise UsageError("there is no such commit", where=revision, fix="name a commit of this repository")
    shown = "%(refname:short)\t%(creatordate:short)"
    listed = git.text("for-each-ref", f"--merged={last}", "--sort=-creatordate", f"--format={shown}", "refs/tags")
    tags = [line.split("\t") for line in listed.splitlines()]
    note = "Written by `areal-commit changelog --write` from the messages of commits, never by hand."
    parts = [f"# {_escaped(heading)}\n\n{note}"]
    newer, title = last, "Unreleased"
    for tag, date in [*tags, ["", ""]]:
        found = entries(commits(root, f"{tag}..{newer}" if tag else newer))
        section = _section(found, tuple(TITLES) if all_types else RELEASED)
        if section or title != "Unreleased":
            parts.append(f"## {_escaped(title)}\n\n{section or 'Nothing that users see.'}")
        newer, title = tag, f"{tag} ({date})"
    return "\n\n".join(parts) + f"\n\n{UP_TO}{last} -->\n"


def _section(found: Sequence[ChangelogEntry], kinds: Sequence[str]) -> str:
    """Format one release: breaking changes, then each of these types, by scope; equal words stand once."""
    parts = []
    breaking = dict.fromkeys(f"- {_scoped(each)}{_escaped(text)}" for each in found for text in each.breaking)
    if breaking:
        parts.append("### Breaking\n\n" + "\n".join(breaking))
    for kind in kinds:
        lines: dict[str, dict[str, str]] = {}
        for each in found:
            if each.type == kind:
                line = f"- {_escaped(each.subject)} ({each.number or each.hash[:9]})"
                lines.setdefault(each.scope, {}).setdefault(each.subject, line)
        if lines:
            parts.append(f"### {TITLES[kind]}")
        for scope in sorted(lines):
            heading = f"**{_escaped(scope)}**\n\n" if scope else ""
            parts.append(heading + "\n".join(lines[scope].values()))
    return "\n\n".join(parts)


def markdown(found: Sequence[ChangelogEntry], title: str, *, all_types: bool) -> str:
    """Format the list for people."""
    parts = [f"## {_escaped(title)}"]
    breaking = [f"- {_scoped(each)}{_escaped(text)}" for each in found for text in each.breaking]
    if breaking:
        parts.append("### Breaking\n\n" + "\n".join(breaking))
    shown = [*TITLES] if all_types else [*USERS]
    for kind in shown:
        lines = [_line(each) for each in found if each.type == kind]
        if lines:
            parts.append(f"### {TITLES[kind]}\n\n" + "\n".join(lines))
    rest = [_line(each) for each in found if each.type == OTHER]
    if rest:
        parts.append("### Other\n\n" + "\n".join(rest))
    if len(parts) == 1:
        parts.append("Nothing that users see.")
    return "\n\n".join(parts) + "\n"


def _entry(commit: Commit) -> ChangelogEntry:
    message = parse(commit.message)
    known = message.kind == "conventional" and message.type.lower() in TITLES
    subject = message.subject if known else message.header
    number = NUMBER.search(subject)
    text = NUMBER.sub("", subject)
    breaking = [each.value.split("\n\n", 1)[0].replace("\n", " ") for each in message.footers if each.breaking]
    if message.marked and not breaking:
        breaking = [text]
    kind = message.type.lower() if known else "revert" if message.kind == "revert" else OTHER
    return ChangelogEntry(
        hash=commit.hash,
        type=kind,
        scope=message.scope or "" if known else "",
        subject=text,
        number=number[0].strip(" ()") if number else "",
        breaking=tuple(filter(None, breaking)),
    )


def _line(entry: ChangelogEntry) -> str:
    source = entry.number or entry.hash[:9]
    return f"- {_scoped(entry)}{_escaped(entry.subject)} ({source})"


def _scoped(entry: ChangelogEntry) -> str:
    return f"**{_escaped(entry.scope)}**: " if entry.scope else ""


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)
