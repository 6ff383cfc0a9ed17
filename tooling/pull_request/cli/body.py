"""`areal-pr body`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.pull_request.cli.wishes import reports_of, wishes_of
from tooling.pull_request.create import body_offline
from tooling.pull_request.git import Git

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> Report:
    """Print the text."""
    with Git.rehearsing(find_repository(arguments.repo)) as git:
        proposal, body = body_offline(git, wishes_of(arguments), reports_of(arguments))
    return Report(
        command="areal-pr body",
        changing=False,
        text=body,
        data={"title": proposal.title, "message": proposal.message, "body": body},
    )
