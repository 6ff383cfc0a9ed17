"""Writes a review: lines for people, Markdown, JSON, SARIF 2.1.0, reviewdog's rdjson, and annotations of GitHub."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tooling.review.records import Severity
from tooling.review.rules.catalogue import RULES, family_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.review.analysis import Pass, Risk
    from tooling.review.policy import Touched
    from tooling.review.records import Finding, Rule
    from tooling.review.repository.comparison import Comparison


@dataclass(frozen=True)
class ReviewResult:
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


def fields(outcome: ReviewResult) -> dict[str, Any]:
    """For `--json`: CHANGE_ANALYSIS_REPORT holds phases 1 to 3, `findings` phase 4."""
    return {
        "CHANGE_ANALYSIS_REPORT": _analysis(outcome),
        "findings": [finding_object(each) for each in outcome.open],
        "suppressed": [
            {**finding_object(each), "reason": each.suppressed} for each in outcome.findings if each.suppressed
        ],
        "not_reviewed": list(outcome.notes),
    }


def _analysis(outcome: ReviewResult) -> dict[str, Any]:
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


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&])")


def text(outcome: ReviewResult, *, quick: bool) -> str:
    """Lines for a terminal."""
    return "\n".join(_text(outcome, quick)) + "\n"


def _text(outcome: ReviewResult, quick: bool) -> Iterator[str]:
    comparison, risk = outcome.comparison, outcome.risk
    yield f"{comparison.title}: {len(comparison.files)} files, +{comparison.added} -{comparison.removed}"
    yield f"risk {risk.level.name}: {'; '.join(risk.reasons)}"
    for each in outcome.domains:
        raised = f" (signals: {', '.join(each.signals)})" if each.signals else ""
        yield f"  {each.domain.name}: {len(each.paths)} files{raised}"
    if outcome.users:
        places = {place.rpartition(":")[0] for each in outcome.users.values() for place in each}
        yield f"used outside the change: {', '.join(outcome.users)} (in {len(places)} files)"
    for one in outcome.passes:
        yield f"pass {one.name}, {one.depth}: {one.why}"
    if quick:
        return
    for finding in outcome.open:
        place, rule = finding.place, finding.rule
        yield f"{place.path}:{place.line}: {rule.severity.name} {rule.id}: {place.message}"
        yield f"    why: {finding.rule.why}"
        yield f"    fix: {finding.rule.fix}"
        if finding.place.evidence:
            yield f"    see: {finding.place.evidence}"
    hidden = len(outcome.findings) - len(outcome.open)
    yield f"{len(outcome.open)} new findings" + (f", {hidden} suppressed" if hidden else "")
    for note in outcome.notes:
        yield f"not reviewed: {note}"


def markdown(outcome: ReviewResult) -> str:
    """A comment for a pull request. Names of files and code are escaped: they are somebody's text."""
    comparison, risk = outcome.comparison, outcome.risk
    parts = [f"### Review: risk {risk.level.name}", ""]
    parts += [f"- {escaped(reason)}" for reason in risk.reasons]
    parts += ["", f"{len(comparison.files)} files, +{comparison.added} -{comparison.removed}", ""]
    if outcome.open:
        parts += ["| severity | rule | place | what | fix |", "| --- | --- | --- | --- | --- |"]
        parts += [_row(each) for each in outcome.open]
    else:
        parts += ["No new findings."]
    if outcome.passes:
        parts += ["", "Passes to do:", ""]
        parts += [f"- **{escaped(each.name)}** ({each.depth}): {escaped(each.why)}" for each in outcome.passes]
    parts += [f"- not reviewed: {escaped(note)}" for note in outcome.notes]
    return "\n".join(parts) + "\n"


def _row(finding: Finding) -> str:
    place = escaped(f"{finding.place.path}:{finding.place.line}")
    cells = (
        finding.rule.severity.name,
        finding.rule.id,
        place,
        escaped(finding.place.message),
        escaped(finding.rule.fix),
    )
    return f"| {' | '.join(cells)} |"


def escaped(words: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))


SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Final = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
}


def sarif(outcome: ReviewResult, *, tool_version: str) -> dict[str, Any]:
    """The log as an object for `json.dumps`; suppressed findings are marked as such."""
    order = sorted({each.rule.id for each in outcome.findings})
    driver = {
        "name": "areal-review",
        "semanticVersion": tool_version,
        "rules": [_rule(RULES[name]) for name in order],
    }
    results = [_result(each, order.index(each.rule.id)) for each in outcome.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.fix}\n\nExample:\n{rule.example}"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    artifact = {"uri": quote(finding.place.path, errors="surrogateescape"), "uriBaseId": "%SRCROOT%"}
    result: dict[str, Any] = {
        "ruleId": finding.rule.id,
        "ruleIndex": index,
        "level": LEVELS[finding.rule.severity],
        "message": {"text": f"{finding.place.message}. {finding.rule.why} {finding.rule.fix}"},
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
    """reviewdog's DiagnosticResult; findings that are suppressed stay out, since it has no word for them."""
    source = {"name": "areal-review"}
    return {"source": source, "diagnostics": [_diagnostic(each) for each in outcome.open]}


def _diagnostic(finding: Finding) -> dict[str, Any]:
    severities = {"error": "ERROR", "warning": "WARNING", "note": "INFO"}
    path = finding.place.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    start = {"line": max(1, finding.place.line)}
    return {
        "message": f"{finding.place.message}. {finding.rule.why} {finding.rule.fix}",
        "location": {"path": path, "range": {"start": start}},
        "severity": severities[LEVELS[finding.rule.severity]],
        "code": {"value": finding.rule.id},
    }


def github(outcome: ReviewResult) -> str:
    """`::error file=...`: one line per finding."""
    return "".join(_github(outcome))


def _github(outcome: ReviewResult) -> Iterator[str]:
    kinds = {"error": "error", "warning": "warning", "note": "notice"}
    for each in outcome.open:
        place = f"file={_property(each.place.path)},line={each.place.line},title={_property(each.rule.id)}"
        message = f"{each.place.message}. {each.rule.why} {each.rule.fix}"
        yield f"::{kinds[LEVELS[each.rule.severity]]} {place}::{_data(message)}\n"


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")
