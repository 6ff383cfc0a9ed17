"""Findings that a repository accepted when it adopted the review: JSON of fingerprints, printed, never written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.review.records import Finding

VERSION = 1


def baseline(findings: Iterable[Finding]) -> str:
    """The file's content; what a fingerprint is about stands beside it, for people."""
    rows = {
        each.fingerprint: f"{each.rule.id} {each.place.path}: {each.place.message}"
        for each in findings
        if each.suppressed in {"", "baseline"}
    }
    ordered = dict(sorted(rows.items(), key=lambda row: row[1]))
    return json.dumps({"version": VERSION, "accepted": ordered}, indent=1) + "\n"


def read_baseline(text: str) -> frozenset[str]:
    """The fingerprints. Raises UsageError for what `--as-baseline` does not print."""
    if not text:
        return frozenset()
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise KeyError("version")
        return frozenset(document["accepted"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"is no baseline: {error}", where="baseline", fix="make it with --as-baseline") from error
