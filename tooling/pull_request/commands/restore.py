"""Brings the branch that is checked out back to a backup (default: the newest that differs), with index and work tree.

Its present state is kept as a new backup, so that this can be undone too. The remote is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.pull_request.commands.options import add_running_options, recovered, recovery_fields, shown
from tooling.pull_request.create import restore

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("id", nargs="?", default="", metavar="ID", help="which one (`areal-pr backups`)")
    add_running_options(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Bring the branch back."""
    repository = find_repository(arguments.repo)
    steps, found, recovery = restore(repository, arguments.id, dry_run=arguments.dry_run, wait_seconds=arguments.wait)
    return Report(
        command="areal-pr restore",
        dry_run=arguments.dry_run,
        changing=False,
        text=shown(steps, details=arguments.dry_run) or f"the branch is {found.id} already",
        warnings=recovered(recovery),
        data={
            "branch": found.branch,
            "id": found.id,
            "commit": found.commit,
            "steps": [each.fields() for each in steps],
            "recovery": recovery_fields(recovery),
        },
    )
