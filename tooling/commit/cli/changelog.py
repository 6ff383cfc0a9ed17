"""`areal-commit changelog`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.commit.changelog import entries, markdown
from tooling.commit.git import commits, knows, latest_tag

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def run(arguments: argparse.Namespace) -> Report:
    """Print the list of changes of a range."""
    root = find_repository(arguments.repo).root
    revisions = arguments.range or _since_tag(root)
    found = entries(commits(root, revisions))
    title = arguments.title or revisions
    return Report(
        command="areal-commit changelog",
        changing=False,
        text=markdown(found, title, all_types=arguments.all_types),
        data={"range": revisions, "entries": [asdict(each) for each in found]},
    )


def _since_tag(root: Path) -> str:
    if not knows(root, "HEAD"):
        raise UsageError("there are no commits yet", where="HEAD", fix="commit something first")
    tag = latest_tag(root)
    return f"{tag}..HEAD" if tag else "HEAD"
