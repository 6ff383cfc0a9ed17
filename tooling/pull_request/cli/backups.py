"""`areal-pr backups`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.report import Report, aligned
from tooling.pull_request.git import Git
from tooling.pull_request.move.backups import backups
from tooling.pull_request.situation import current_branch

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> Report:
    """List them, newest first."""
    git = Git(find_repository(arguments.repo))
    found = backups(git, None if arguments.all else current_branch(git).name)
    rows = [(each.id, each.commit[:12], each.branch, each.subject) for each in found]
    return Report(
        command="areal-pr backups",
        changing=False,
        text=aligned(rows) if rows else "no backups",
        data={"backups": [{**asdict(each), "reference": each.reference} for each in found]},
    )
