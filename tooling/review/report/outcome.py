"""Everything a review found, and its JSON object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tooling.review.rules.catalogue import family_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.review.domains import Touched
    from tooling.review.passes import Pass
    from tooling.review.records import Finding
    from tooling.review.repository.comparison import Comparison
    from tooling.review.risk import Risk


@dataclass(frozen=True)
class Outcome:
    """Of one review."""

    comparison: Comparison
    domains: tuple[Touched, ...]
    risk: Risk
    passes: tuple[Pass, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """What was not looked at."""
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Changed functions and classes -> where files outside the change use them; empty where nobody asked."""

    @property
    def open(self) -> tuple[Finding, ...]:
        """Findings that are not suppressed."""
        return tuple(each for each in self.findings if not each.suppressed)


def fields(outcome: Outcome) -> dict[str, Any]:
    """For `--json`: CHANGE_ANALYSIS_REPORT holds phases 1 to 3, `findings` phase 4."""
    return {
        "CHANGE_ANALYSIS_REPORT": _analysis(outcome),
        "findings": [finding_object(each) for each in outcome.open],
        "suppressed": [
            {**finding_object(each), "reason": each.suppressed} for each in outcome.findings if each.suppressed
        ],
        "not_reviewed": list(outcome.notes),
    }


def _analysis(outcome: Outcome) -> dict[str, Any]:
    comparison = outcome.comparison
    return {
        "change": comparison.title,
        "base": comparison.base.where,
        "head": comparison.head.where,
        "added": comparison.added,
        "removed": comparison.removed,
        "files": [
            {
                "path": each.path,
                "old_path": each.old_path if each.old_path != each.path else None,
                "status": each.status,
                "added": len(each.added),
                "removed": len(each.removed),
                "symbols": list(comparison.symbols.get(each.path, ())),
            }
            for each in comparison.files
        ],
        "used_outside_the_change": {symbol: list(places) for symbol, places in outcome.users.items()},
        "broken_outside_the_change": list(comparison.affected),
        "domains": [
            {
                "name": each.domain.name,
                "title": each.domain.title,
                "expert": each.domain.expert,
                "paths": list(each.paths),
                "signals": {name: list(places) for name, places in each.signals.items()},
            }
            for each in outcome.domains
        ],
        "risk": {
            "level": outcome.risk.level.name,
            "probability": outcome.risk.probability,
            "reasons": list(outcome.risk.reasons),
        },
        "passes": [
            {
                "name": each.name,
                "expert": each.expert,
                "depth": each.depth,
                "why": each.why,
                "paths": list(each.paths),
                "questions": list(each.questions),
                "prompt": each.prompt,
            }
            for each in outcome.passes
        ],
    }


def finding_object(finding: Finding) -> dict[str, Any]:
    """One finding."""
    return {
        "rule": finding.rule.id,
        "family": family_of(finding.rule.id),
        "severity": finding.rule.severity.name,
        "path": finding.place.path,
        "line": finding.place.line,
        "symbol": finding.symbol,
        "message": finding.place.message,
        "why": finding.rule.why,
        "fix": finding.rule.fix,
        "evidence": finding.place.evidence,
        "code": finding.code,
        "fingerprint": finding.fingerprint,
    }
