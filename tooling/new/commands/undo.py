"""Removes a generated unit: its untouched files, registry entries and document lines.

Files that were edited since are kept and reported (exit code 4); --force moves them to a backup in the git directory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError
from tooling.cli.parser import add_changing
from tooling.kit.change.plan import sha256
from tooling.kit.receipts import Proof
from tooling.new.change import Change, KeptFile, UnitRequest, find_unit
from tooling.new.command_line import add_planning
from tooling.new.run import run_change
from tooling.new.unit import unregister

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.cli.report import Report
    from tooling.new.change import Invocation, Project


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
    """Undo the unit."""
    arguments = invocation.arguments
    return run_change(
        invocation, lambda project: plan_undo(project, arguments.kind, arguments.name, force=arguments.force)
    )


def plan_undo(project: Project, kind: str, name: str, *, force: bool = False) -> Change:
    """Plan the removal of a unit; `kept` says what was edited since and stays (exit code 4).

    The receipt shrinks to what stayed, so that `force` can take the rest later: it removes edited files too, with a
    backup in the git directory, and forgets registry entries that somebody changed. Raises UsageError when the unit was
    not generated here.
    """
    receipt = find_unit(project, kind, name)
    change = project.change(UnitRequest(kind=kind, name=receipt.name))
    change.fix_kept = "--force takes it away too and keeps a backup"
    plan = change.plan
    for path, entry in sorted(receipt.files.items()):
        try:
            content = plan.read(path)
        except ConflictError as error:
            change.kept.append(KeptFile(path, f"{error.message}; it is not what was generated"))
            continue
        is_pristine = content is not None and sha256(content) == entry.sha256
        if content is not None and not is_pristine and not force:
            change.kept.append(KeptFile(path, "edited since it was generated"))
        elif content is not None:
            if not is_pristine:
                change.backups.append(path)
            reason = entry.purpose if is_pristine else f"{entry.purpose} (edited; kept as a backup)"
            plan.delete(path, reason=reason)
    kept_files = {item.path for item in change.kept}
    left = unregister(change, [*receipt.entries, *receipt.unproven, *receipt.documents], forget=force)
    if not change.kept:
        plan.delete(receipt.path, reason="receipt")
        return change
    change.receipt = replace(
        receipt,
        files={path: entry for path, entry in receipt.files.items() if path in kept_files},
        entries=() if force else left.entries,
        documents=() if force else left.documents,
        unproven=(),
        proof=Proof(),
    )
    plan.write(receipt.path, change.receipt.to_bytes(), reason="receipt of what was kept")
    return change
