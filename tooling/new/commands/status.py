"""Compares generated units with their receipts: files pristine, edited or missing; entries in place; template newer.

Only reads; a unit that needs attention is no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.cli.report import Report, aligned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation
    from tooling.new.unit.status import UnitStatus


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help="only units of this kind")
    parser.add_argument("name", metavar="NAME", nargs="?", help="only this unit")


def run(invocation: Invocation) -> Report:
    """Compare."""
    from tooling.kit.change.transaction import pending
    from tooling.new.unit.status import all_status

    kind, name = invocation.arguments.kind, invocation.arguments.name
    if kind is not None and name is None:
        invocation.workspace.kind(kind)  # refuses a misspelt one
    if name is not None and kind is None:
        raise UsageError("a name needs its kind", fix="write `areal-new status KIND NAME`")
    units = all_status(invocation.workspace, kind, name)
    warnings = ("an interrupted run waits for `areal-new recover`",) if pending(invocation.repository) else ()
    text = "\n".join(line for unit in units for line in _lines(unit)) or "no generated units"
    data = {"units": [unit.as_data() for unit in units]}
    return Report(command="status", changing=False, warnings=warnings, text=text, data=data)


def _lines(unit: UnitStatus) -> Iterator[str]:
    yield f"{unit.kind} {unit.name}: {unit.state} (template {unit.template})"
    rows: list[tuple[str, ...]] = [("", file.state, file.path) for file in unit.files]
    rows += [("", entry.state, f"{entry.file} {entry.table} {entry.key}") for entry in unit.entries]
    yield aligned(rows)
