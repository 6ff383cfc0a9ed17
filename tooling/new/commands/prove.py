"""Runs the tests of generated units that are not proven, and notes in their receipts what came out.

That is how an interrupted proof is finished, and one that failed is repeated. A unit is not proven either when it was
edited after its tests had passed. What is proven is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.cli.parser import add_changing
from tooling.kit.receipts import read_receipts
from tooling.new.change import UnitRequest, find_unit
from tooling.new.run import run_change

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.new.change import Change, Invocation, Project


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help="kind of the unit, e.g. reward")
    parser.add_argument("name", metavar="NAME", nargs="?", help="its name")
    parser.add_argument("--all", action="store_true", help="every unit (of the kind, when one is given)")
    add_changing(parser)


def run(invocation: Invocation) -> Report:
    """Prove the unit, or all of them."""
    kind, name, every = (getattr(invocation.arguments, given) for given in ("kind", "name", "all"))
    if every and name is not None:
        raise UsageError("--all takes no name", where="--all", fix="leave one of them out")
    if not every and name is None:
        raise UsageError("which unit?", where="KIND NAME", fix="name one (see `areal-new status`), or use --all")
    return run_change(invocation, lambda project: plan_proof(project, kind, name))


def plan_proof(project: Project, kind: str | None, name: str | None) -> Change:
    """Plan nothing but the tests of a unit; without a name, of every unit, or every unit of a kind. Raises UsageError
    for a unit that was not generated here, and for an unknown kind."""
    change = project.change(UnitRequest(kind=kind or "", name=name or ""))
    if kind is not None and name is not None:
        change.receipt = find_unit(project, kind, name)
        change.units = [change.receipt]
        return change
    if kind is not None:
        project.kind(kind)  # refuses a misspelt one
    change.units = [receipt for receipt in read_receipts(project.root) if kind in (None, receipt.kind)]
    return change
