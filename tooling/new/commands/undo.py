"""Removes a generated unit: its untouched files, registry entries and document lines.

Files that were edited since are kept and reported (exit code 4); --force moves them to a backup in the git directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.new.cli.arguments import add_changing, add_planning
from tooling.new.cli.performing import Advice, perform
from tooling.new.unit.work import Work

if TYPE_CHECKING:
    from tooling.cli.report import Report
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation
    from tooling.new.unit.context import Workspace


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", help="kind of the unit, e.g. reward")
    parser.add_argument("name", metavar="NAME", help="its name")
    parser.add_argument(
        "--force",
        action="store_true",
        help="remove edited files too, after copying them to a backup; replace an existing FILE of --plan-out",
    )
    add_changing(parser)
    add_planning(parser, force=False)


def run(invocation: Invocation) -> Report:
    """Undo."""
    arguments = invocation.arguments

    def make(workspace: Workspace) -> Work:
        from tooling.new.unit.undo import plan_undo

        unit = plan_undo(workspace, arguments.kind, arguments.name, force=arguments.force)
        return Work.of(unit, arguments.kind, arguments.name)

    return perform(invocation, make, Advice(kept="--force takes it away too and keeps a backup"))
