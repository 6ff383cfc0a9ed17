"""Audits as SARIF 2.1.0 (OASIS), which code review shows beside the lines.

One run per distribution, one rule per verdict. A finding's fingerprint leaves its line out, so that it is recognised
after unrelated edits above it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tooling.upgrade.findings import AuditSeverity, FindingKind
from tooling.upgrade.report.document import MEANING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.findings import Audit, AuditFinding

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Final = {AuditSeverity.BREAKING: "error", AuditSeverity.WARNING: "warning", AuditSeverity.INFO: "note"}


def sarif(audits: Sequence[Audit], *, tool_version: str) -> dict[str, Any]:
    """Return the log as an object for `json.dumps`."""
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(audit, tool_version) for audit in audits]}


def _run(audit: Audit, tool_version: str) -> dict[str, Any]:
    used = sorted({finding.kind for finding in audit.findings}, key=list(FindingKind).index)
    return {
        "tool": {
            "driver": {
                "name": "areal-upgrade-deps",
                "semanticVersion": tool_version,
                "rules": [{"id": str(kind), "shortDescription": {"text": MEANING[kind]}} for kind in used],
            }
        },
        "automationDetails": {"id": f"areal-upgrade-deps/{audit.distribution}/"},
        "columnKind": "unicodeCodePoints",
        "properties": {"from": audit.old_version, "to": audit.new_version},
        "results": [_result(finding, used.index(finding.kind)) for finding in audit.findings],
    }


def _result(finding: AuditFinding, rule: int) -> dict[str, Any]:
    parts = [finding.message]
    if finding.replacement:
        parts.append(f"Use {finding.replacement.text} ({finding.replacement.why}).")
    for name, side in (("Old", finding.old), ("New", finding.new)):
        if side.signature:
            parts.append(f"{name}: {side.signature} ({side.file}:{side.line}).")
    what = "\0".join((finding.path, str(finding.kind), finding.symbol, finding.parameter))
    return {
        "ruleId": str(finding.kind),
        "ruleIndex": rule,
        "level": LEVELS[finding.severity],
        "message": {"text": " ".join(parts)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(finding.path), "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": finding.line, "endLine": max(finding.line, finding.end_line)},
                }
            }
        ],
        "partialFingerprints": {"arealUse/v1": hashlib.sha256(what.encode()).hexdigest()[:32]},
        "properties": {"confidence": round(finding.confidence, 2), "symbol": finding.symbol},
    }
