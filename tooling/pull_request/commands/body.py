"""Prints the text of the pull request, by what was fetched last. Writes and asks nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.pull_request.commands.options import add_proposal_options, options_of
from tooling.pull_request.create import body_offline
from tooling.pull_request.git import WorkTree

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the arguments."""
    add_proposal_options(parser)


def run(arguments: argparse.Namespace) -> Report:
    """Print the text."""
    with WorkTree.rehearsing(find_repository(arguments.repo)) as git:
        proposal, body = body_offline(git, options_of(arguments))
    return Report(
        command="areal-pr body",
        changing=False,
        text=body,
        data={"title": proposal.title, "message": proposal.message, "body": body},
    )
