"""Carries out a plan that --plan-out saved, exactly as it was reviewed.

Refused (exit code 3) when a file has changed since the plan was made. Applying it again does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.parser import add_changing
from tooling.new.command_line import add_testing
from tooling.new.run import run_change
from tooling.new.saved_plan import load_plan

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.new.command_line import Invocation


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", metavar="FILE", help="the saved plan")
    add_changing(parser)
    add_testing(parser)


def run(invocation: Invocation) -> Report:
    """Apply the plan."""
    return run_change(invocation, lambda workspace: load_plan(invocation.arguments.file, workspace))
