"""Lists what is kept of the branch that is checked out.

Backups are references below refs/areal-pr/backup: nothing collects them, and no push sends them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.report import Report, aligned
from tooling.pull_request.backups import backups
from tooling.pull_request.branch import current_branch
from tooling.pull_request.git import WorkTree

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("--all", action="store_true", help="of all branches")


def run(arguments: argparse.Namespace) -> Report:
    """List them, newest first."""
    git = WorkTree.of(find_repository(arguments.repo))
    found = backups(git, None if arguments.all else current_branch(git).name)
    rows = [(each.id, each.commit[:12], each.branch, each.subject) for each in found]
    return Report(
        command="areal-pr backups",
        changing=False,
        text=aligned(rows) if rows else "no backups",
        data={"backups": [{**asdict(each), "reference": each.reference} for each in found]},
    )
