"""The fields of `areal-upgrade-deps --json` beside those that every command has; `schemas/upgrade.json` says what they
are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tooling.upgrade.report.document import document, finding_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.locks.result import LockResult, RelaxProposal
    from tooling.upgrade.manifests.bump import VersionEdit
    from tooling.upgrade.operations.upgrading import Upgrade
    from tooling.upgrade.releases import Origin


def fields(upgrade: Upgrade) -> dict[str, Any]:
    """Of one upgrade or audit."""
    return {
        **document(upgrade.audits),
        "versions": [asdict(move) for move in upgrade.moves],
        "declarations": [_edit(edit) for edit in (upgrade.bump.edits if upgrade.bump else ())],
        "resolution": [_lock(result) for result in upgrade.locks],
        "fixed": [finding_object(finding) for finding in upgrade.fixes.done],
        "not_fixed": [{**finding_object(finding), "why": why} for finding, why in upgrade.fixes.left],
        "checklists": list(upgrade.checklists),
        "sources": sources(upgrade.sources),
    }


def sources(origins: Sequence[Origin]) -> list[dict[str, Any]]:
    """Where releases were read from, how far that was verified, and what it took."""
    return [asdict(origin) for origin in origins]


def _edit(edit: VersionEdit) -> dict[str, Any]:
    return {"path": edit.path, "line": edit.line, "before": edit.before, "after": edit.after, "why": edit.why}


def _lock(result: LockResult) -> dict[str, Any]:
    conflict = result.conflict
    return {
        "variant": result.variant,
        "made": str(result.made),
        "changes": [{"name": each.name, "old": each.old, "new": each.new} for each in result.changes],
        "conflict": {**asdict(conflict), "words": [str(cause) for cause in conflict.causes]} if conflict else None,
        "proposal": _proposal(result.proposal) if result.proposal else None,
        "notes": list(result.notes),
        "seconds": round(result.seconds, 3),
    }


def _proposal(proposal: RelaxProposal) -> dict[str, Any]:
    declaration = proposal.declaration
    return {
        "path": declaration.path,
        "line": declaration.line,
        "distribution": declaration.distribution,
        "before": declaration.specifier,
        "after": proposal.specifier,
        "version": proposal.version,
        "why": proposal.why,
        "applied": proposal.applied,
    }
