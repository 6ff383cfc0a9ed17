"""Renames a generated unit: files, symbols, registry entry, test, document line and receipt. Edits are kept.

Other places that name it are listed; --references changes those where the name is certain to be meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.new.cli.arguments import add_changing, add_planning, add_testing
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
    parser.add_argument("old", metavar="OLD", help="its name")
    parser.add_argument("new", metavar="NEW", help="its new name")
    parser.add_argument(
        "--references", action="store_true", help="also change Python, YAML, TOML and Markdown files that name it"
    )
    add_changing(parser)
    add_planning(parser)
    add_testing(parser)


def run(invocation: Invocation) -> Report:
    """Rename."""
    arguments = invocation.arguments

    def make(workspace: Workspace) -> Work:
        from tooling.new.unit.rename import plan_rename

        unit = plan_rename(workspace, arguments.kind, arguments.old, arguments.new, references=arguments.references)
        return Work.of(unit, arguments.kind, arguments.new)

    back = f"areal-new rename {arguments.kind} {arguments.new} {arguments.old}"
    return perform(invocation, make, Advice(tests_failed=back, kept="change it by hand"))
