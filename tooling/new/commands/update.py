"""Brings a unit to the template as it is now, or gives it other answers, without losing edits.

Edits and changes of the template are merged; where both changed the same lines, conflict markers are left (exit
code 5). The questions of the kind are options here too: `areal-new update reward digits --style boxed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.new.cli.answering import read_answers
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
    parser.add_argument("kind", metavar="KIND", nargs="?", help="kind of the unit, e.g. reward")
    parser.add_argument("name", metavar="NAME", nargs="?", help="its name")
    parser.add_argument("--all", action="store_true", help="every unit (of the kind, when one is given), or none")
    parser.add_argument("--answers", metavar="FILE.json", help="an object of new answers; options win ('-': stdin)")
    add_changing(parser)
    add_planning(parser)
    add_testing(parser)


def run(invocation: Invocation) -> Report:
    """Update."""
    arguments = invocation.arguments
    kind, name = arguments.kind, arguments.name
    answers, options = read_answers(arguments)
    if arguments.all:
        if name is not None or answers or options:
            raise UsageError("--all takes neither a name nor answers", where="--all", fix="leave one of them out")
    elif name is None:
        raise UsageError("which unit?", where="KIND NAME", fix="name one (see `areal-new list`), or use --all")

    def make(workspace: Workspace) -> Work:
        from tooling.new.unit.update import plan_update, plan_update_all

        if arguments.all:
            return Work.of(plan_update_all(workspace, kind), kind or "", "")
        return Work.of(plan_update(workspace, kind, name, answers=answers, options=options), kind, name)

    return perform(invocation, make, Advice(kept="remove or change it by hand"))
