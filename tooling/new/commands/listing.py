"""Lists the units that were generated in this repository, by their receipts, and whether they are proven."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report, aligned

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.new.change import Invocation


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help="only units of this kind")


def run(invocation: Invocation) -> Report:
    """List the units."""
    from tooling.cli.git import find_repository
    from tooling.kit.change.plan import Plan
    from tooling.kit.receipts import read_receipts
    from tooling.new.proof import standing

    kind = invocation.arguments.kind
    if kind is not None:
        invocation.project.kind(kind)  # refuses a misspelt one
    root = find_repository(invocation.arguments.repo).root
    found = [standing(Plan(root), item) for item in read_receipts(root) if kind in (None, item.kind)]
    units = [
        {
            "kind": item.kind,
            "name": item.name,
            "generator": item.generator,
            "files": sorted(item.files),
            "proof": unit.as_data(),
        }
        for unit in found
        for item in [unit.receipt]
    ]
    rows = [
        (item.kind, item.name, f"{len(item.files)} files", item.generator, str(unit))
        for unit in found
        for item in [unit.receipt]
    ]
    return Report(command="list", changing=False, text=aligned(rows) or "no generated units", data={"units": units})
