"""Writes a review: lines for people, Markdown, JSON, SARIF 2.1.0, reviewdog's rdjson, and annotations of GitHub."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tooling.review.records import Severity
from tooling.review.rules.catalogue import RULES, family_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.review.analysis import Pass, Risk
    from tooling.review.policy import Touched
    from tooling.review.records import ReviewFinding
    from tooling.review.repository.comparison import Comparison


@dataclass(frozen=True)
class ReviewResult:
    """Of one review."""

    comparison: Comparison
    domains: tuple[Touched, ...]
    risk: Risk
    passes: tuple[Pass, ...]
    findings: tuple[ReviewFinding, ...]
    notes: tuple[str, ...] = ()
    """What was not looked at."""
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Changed functions and classes -> where files outside the change use them; empty where nobody asked."""

    @property
    def open(self) -> tuple[ReviewFinding, ...]:
        """Findings that are not suppressed."""
        return tuple(each for each in self.findings if not each.suppressed)


def fields(outcome: ReviewResult) -> dict[str, Any]:
    """Return the fields of `--json`: CHANGE_ANALYSIS_REPORT holds phases 1 to 3, `findings` phase 4."""
    comparison = outcome.comparison
    analysis = {
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
            "reasons": list(outcome.risk.reasons),
        },
        "passes": [asdict(each) for each in outcome.passes],
    }
    return {
        "CHANGE_ANALYSIS_REPORT": analysis,
        "findings": [finding_object(each) for each in outcome.open],
        "suppressed": [
            {**finding_object(each), "reason": each.suppressed} for each in outcome.findings if each.suppressed
        ],
        "not_reviewed": list(outcome.notes),
    }


def finding_object(finding: ReviewFinding) -> dict[str, Any]:
    """Return one finding for JSON."""
    return {
        "rule": finding.rule.id,
        "family": family_of(finding.rule.id),
        "severity": finding.rule.severity.name,
        "path": finding.place.path,
        "line": finding.place.line,
        "symbol": finding.symbol,
        "message": finding.place.message,
        "why": finding.rule.text.why,
        "fix": finding.rule.text.fix,
        "evidence": finding.place.evidence,
        "code": finding.code,
        "fingerprint": finding.fingerprint,
    }


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&])")


def text(outcome: ReviewResult, *, quick: bool) -> str:
    """Format lines for a terminal."""
    comparison, risk = outcome.comparison, outcome.risk
    lines = list[str]()
    lines.append(f"{comparison.title}: {len(comparison.files)} files, +{comparison.added} -{comparison.removed}")
    lines.append(f"risk {risk.level.name}: {'; '.join(risk.reasons)}")
    for each in outcome.domains:
        raised = f" (signals: {', '.join(each.signals)})" if each.signals else ""
        lines.append(f"  {each.domain.name}: {len(each.paths)} files{raised}")
    if outcome.users:
        places = {place.rpartition(":")[0] for each in outcome.users.values() for place in each}
        lines.append(f"used outside the change: {', '.join(outcome.users)} (in {len(places)} files)")
    for one in outcome.passes:
        lines.append(f"pass {one.name}, {one.depth}: {one.why}")
    if quick:
        return "\n".join(lines) + "\n"
    for finding in outcome.open:
        place, rule = finding.place, finding.rule
        lines.append(f"{place.path}:{place.line}: {rule.severity.name} {rule.id}: {place.message}")
        lines.append(f"    why: {finding.rule.text.why}")
        lines.append(f"    fix: {finding.rule.text.fix}")
        if finding.place.evidence:
            lines.append(f"    see: {finding.place.evidence}")
    hidden = len(outcome.findings) - len(outcome.open)
    lines.append(f"{len(outcome.open)} new findings" + (f", {hidden} suppressed" if hidden else ""))
    for note in outcome.notes:
        lines.append(f"not reviewed: {note}")
    return "\n".join(lines) + "\n"


def markdown(outcome: ReviewResult) -> str:
    """Write a comment for a pull request. Names of files and code are escaped: they are somebody's text."""
    comparison, risk = outcome.comparison, outcome.risk
    parts = [f"### Review: risk {risk.level.name}", ""]
    parts += [f"- {escaped(reason)}" for reason in risk.reasons]
    parts += ["", f"{len(comparison.files)} files, +{comparison.added} -{comparison.removed}", ""]
    if outcome.open:
        parts += ["| severity | rule | place | what | fix |", "| --- | --- | --- | --- | --- |"]
        for each in outcome.open:
            place, rule = each.place, each.rule
            cells = (rule.severity.name, rule.id, escaped(f"{place.path}:{place.line}"), escaped(place.message))
            parts.append(f"| {' | '.join(cells)} | {escaped(rule.text.fix)} |")
    else:
        parts += ["No new findings."]
    if outcome.passes:
        parts += ["", "Passes to do:", ""]
        parts += [f"- **{escaped(one.name)}** ({one.depth}): {escaped(one.why)}" for one in outcome.passes]
    parts += [f"- not reviewed: {escaped(note)}" for note in outcome.notes]
    return "\n".join(parts) + "\n"


def escaped(words: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))


SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Final = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
}


def sarif(outcome: ReviewResult, *, tool_version: str) -> dict[str, Any]:
    """Return the SARIF log as an object for `json.dumps`; suppressed findings are marked as such."""
    order = sorted({each.rule.id for each in outcome.findings})
    driver = {
        "name": "areal-review",
        "semanticVersion": tool_version,
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.text.title},
                "fullDescription": {"text": rule.text.why},
                "help": {"text": f"{rule.text.fix}\n\nExample:\n{rule.text.example}"},
                "defaultConfiguration": {"level": LEVELS[rule.severity]},
            }
            for rule in map(RULES.__getitem__, order)
        ],
    }
    results = [_result(each, order.index(each.rule.id)) for each in outcome.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: ReviewFinding, index: int) -> dict[str, Any]:
    artifact = {"uri": quote(finding.place.path, errors="surrogateescape"), "uriBaseId": "%SRCROOT%"}
    result: dict[str, Any] = {
        "ruleId": finding.rule.id,
        "ruleIndex": index,
        "level": LEVELS[finding.rule.severity],
        "message": {"text": f"{finding.place.message}. {finding.rule.text.why} {finding.rule.text.fix}"},
        "locations": [
            {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(1, finding.place.line)}}}
        ],
        "partialFingerprints": {"arealReview/v1": finding.fingerprint},
    }
    if finding.suppressed:
        kind = "external" if finding.suppressed == "baseline" else "inSource"
        result["suppressions"] = [{"kind": kind, "justification": finding.suppressed}]
    return result


def rdjson(outcome: ReviewResult) -> dict[str, Any]:
    """Return reviewdog's DiagnosticResult; findings that are suppressed stay out, since it has no word for them."""
    source = {"name": "areal-review"}
    severities = {"error": "ERROR", "warning": "WARNING", "note": "INFO"}
    found = []
    for each in outcome.open:
        path = each.place.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        found.append(
            {
                "message": f"{each.place.message}. {each.rule.text.why} {each.rule.text.fix}",
                "location": {"path": path, "range": {"start": {"line": max(1, each.place.line)}}},
                "severity": severities[LEVELS[each.rule.severity]],
                "code": {"value": each.rule.id},
            }
        )
    return {"source": source, "diagnostics": found}


def github(outcome: ReviewResult) -> str:
    """Write annotations, `::error file=...`: one line per finding."""
    kinds, lines = {"error": "error", "warning": "warning", "note": "notice"}, list[str]()
    for each in outcome.open:
        place = f"file={_property(each.place.path)},line={each.place.line},title={_property(each.rule.id)}"
        message = f"{each.place.message}. {each.rule.text.why} {each.rule.text.fix}"
        lines.append(f"::{kinds[LEVELS[each.rule.severity]]} {place}::{_data(message)}\n")
    return "".join(lines)


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")
