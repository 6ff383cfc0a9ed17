"""For code review platforms: SARIF 2.1.0, reviewdog's rdjson, and the annotations of GitHub's workflow commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tooling.review.records import Severity
from tooling.review.rules.catalogue import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.review.records import Finding, Rule
    from tooling.review.report.outcome import Outcome

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Final = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
}


def sarif(outcome: Outcome, *, tool_version: str) -> dict[str, Any]:
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


def rdjson(outcome: Outcome) -> dict[str, Any]:
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


def github(outcome: Outcome) -> str:
    """`::error file=...`: one line per finding."""
    return "".join(_github(outcome))


def _github(outcome: Outcome) -> Iterator[str]:
    kinds = {"error": "error", "warning": "warning", "note": "notice"}
    for each in outcome.open:
        place = f"file={_property(each.place.path)},line={each.place.line},title={_property(each.rule.id)}"
        message = f"{each.place.message}. {each.rule.why} {each.rule.fix}"
        yield f"::{kinds[LEVELS[each.rule.severity]]} {place}::{_data(message)}\n"


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")
