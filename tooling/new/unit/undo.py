"""Taking a generated unit back: what is untouched goes, what was edited since stays and is reported.

The receipt shrinks to what stayed, so that `--force` can take the rest later; forced files are copied into the git
directory first. Undoing is a plan like any other: it has a dry run, a diff and a rollback.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError
from tooling.kit.change.plan import Plan, sha256
from tooling.new.unit.context import find_unit
from tooling.new.unit.records import Kept, UnitPlan
from tooling.new.unit.registration import unregister

if TYPE_CHECKING:
    from tooling.kit.receipts import Receipt
    from tooling.new.unit.context import Workspace


def plan_undo(workspace: Workspace, kind: str, name: str, *, force: bool = False) -> UnitPlan:
    """The plan that removes a unit; its `kept` says what was edited since and stays (exit code 4).

    `force` removes edited files too, with a backup, and forgets registry entries that somebody changed. Raises
    UsageError when the unit was not generated here.
    """
    receipt = find_unit(workspace, kind, name)
    plan = Plan(workspace.root)
    kept, backups = _remove_files(plan, receipt, force=force)
    removal = unregister(plan, receipt.entries, receipt.documents)
    warnings = tuple(f"{item.path}: {item.reason}" for item in removal.kept) if force else ()
    everything_kept = kept if force else (*kept, *removal.kept)
    left = None
    if everything_kept:
        paths = {item.path for item in kept}
        left = replace(
            receipt,
            files={path: entry for path, entry in receipt.files.items() if path in paths},
            entries=() if force else removal.entries,
            documents=() if force else removal.documents,
        )
        plan.write(receipt.path, left.to_bytes(), reason="receipt of what was kept")
    else:
        plan.delete(receipt.path, reason="receipt")
    return UnitPlan(
        plan=plan, receipt=left, registered=removal.registered, warnings=warnings, kept=everything_kept, backups=backups
    )


def _remove_files(plan: Plan, receipt: Receipt, *, force: bool) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
    """Kept files, and files to back up."""
    kept: list[Kept] = []
    backups: list[str] = []
    for path, entry in sorted(receipt.files.items()):
        try:
            content = plan.read(path)
        except ConflictError as error:
            kept.append(Kept(path, f"{error.message}; it is not what was generated"))
            continue
        if content is None:
            continue
        pristine = sha256(content) == entry.sha256
        if not pristine and not force:
            kept.append(Kept(path, "edited since it was generated"))
            continue
        if not pristine:
            backups.append(path)
        plan.delete(path, reason=entry.purpose if pristine else f"{entry.purpose} (edited; kept as a backup)")
    return tuple(kept), tuple(backups)
