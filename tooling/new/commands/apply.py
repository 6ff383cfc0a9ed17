"""Carries out a plan that --plan-out saved, exactly as it was reviewed.

Refused (exit code 3) when a file has changed since the plan was made. Applying it again does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.new.cli.arguments import add_changing, add_testing
from tooling.new.cli.performing import perform

if TYPE_CHECKING:
    from tooling.cli.report import Report
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation
    from tooling.new.unit.context import Workspace
    from tooling.new.unit.work import Work


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", metavar="FILE", help="the saved plan")
    add_changing(parser)
    add_testing(parser)


def run(invocation: Invocation) -> Report:
    """Apply."""

    def make(workspace: Workspace) -> Work:
        from tooling.new.cli.plan_file import load_plan

        return load_plan(invocation.arguments.file, workspace.root)

    return perform(invocation, make)
