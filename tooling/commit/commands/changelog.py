"""Prints the commits of a range (default: since the latest tag) as a list of changes, breaking ones first.

A commit that the same range reverts is left out together with the revert.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.cli.git import Git, find_repository
from tooling.cli.report import Report
from tooling.commit.changes import commits
from tooling.commit.message import NUMBER, parse

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tooling.cli.parser import Parser
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


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("range", nargs="?", metavar="BASE..HEAD", help="default: latest tag..HEAD, or all")
    parser.add_argument("--title", metavar="TEXT", default="", help="heading (default: the range)")
    parser.add_argument("--all-types", action="store_true", help="style, test, build, ci and chore too")


def run(arguments: argparse.Namespace) -> Report:
    """Print the list of changes of a range."""
    root = find_repository(arguments.repo).root
    revisions = arguments.range
    if not revisions:
        git = Git(root)
        if git.commit("HEAD") is None:
            raise UsageError("there are no commits yet", where="HEAD", fix="commit something first")
        tag = git.text("describe", "--tags", "--abbrev=0", "HEAD", allowed=(0, 128))
        revisions = f"{tag}..HEAD" if tag else "HEAD"
    found = entries(commits(root, revisions))
    return Report(
        command="areal-commit changelog",
        changing=False,
        text=markdown(found, arguments.title or revisions, all_types=arguments.all_types),
        data={"range": revisions, "entries": [asdict(each) for each in found]},
    )
