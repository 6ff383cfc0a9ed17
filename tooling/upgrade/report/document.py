"""Audits as the JSON object of `--json`; `findings` is flat and sorted, so that a program needs no nesting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.upgrade.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.findings import Audit, Evidence, Finding


def document(audits: Sequence[Audit]) -> dict[str, Any]:
    """`findings` of all audits, and `audits` with the figures of each."""
    return {
        "findings": [finding_object(finding) for audit in audits for finding in audit.findings],
        "audits": [_figures(audit) for audit in audits],
    }


def finding_object(finding: Finding) -> dict[str, Any]:
    """One finding; empty sides are null."""
    return {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "kind": str(finding.kind),
        "severity": str(finding.severity),
        "confidence": round(finding.confidence, 2),
        "distribution": finding.distribution,
        "symbol": finding.symbol,
        "parameter": finding.parameter or None,
        "message": finding.message,
        "old": _side(finding.old),
        "new": _side(finding.new),
        "replacement": finding.replacement.text if finding.replacement else None,
        "replacement_evidence": finding.replacement.why if finding.replacement else None,
        "fixable": finding.fixable,
        "guard": finding.guard or None,
    }


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """Findings by severity, zeros included."""
    return {str(level): sum(finding.severity == level for finding in findings) for level in Severity}


def open_share(audit: Audit) -> float:
    """Share of the uses that could not be judged, 0 to 1."""
    hidden = audit.unresolved + sum(unseen.count for unseen in audit.open)
    return hidden / audit.uses if audit.uses else 0.0


def _side(evidence: Evidence) -> dict[str, Any] | None:
    if not evidence.file and not evidence.signature:
        return None
    return {"file": evidence.file, "line": evidence.line, "signature": evidence.signature}


def _figures(audit: Audit) -> dict[str, Any]:
    worst = audit.worst()
    return {
        "distribution": audit.distribution,
        "old_version": audit.old_version,
        "new_version": audit.new_version,
        "worst": str(worst) if worst else None,
        "counts": count(audit.findings),
        "files": audit.files,
        "uses": audit.uses,
        "symbols": audit.symbols,
        "judged": audit.judged,
        "unresolved": audit.unresolved,
        "open": [{"why": unseen.why, "count": unseen.count, "example": unseen.example} for unseen in audit.open],
        "open_share": round(open_share(audit), 4),
        "unreadable": list(audit.unreadable),
        "modules_read": {"old": audit.modules_read[0], "new": audit.modules_read[1]},
        "seconds": {phase: round(seconds, 3) for phase, seconds in audit.seconds.items()},
    }
