"""Audits as the JSON object of `--json`, as SARIF 2.1.0 (OASIS), as text for people and as Markdown.

Code review shows SARIF beside the lines: one run per distribution, one rule per verdict. A finding's fingerprint leaves
its line out, so that it is recognised after unrelated edits above it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tooling.cli.report import printable
from tooling.upgrade.findings import AuditSeverity, FindingKind, InterfaceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tooling.upgrade.findings import Audit, AuditFinding, Evidence


MEANING: Final[dict[FindingKind, str]] = {
    FindingKind.REMOVED: "the name no longer exists",
    FindingKind.MOVED: "the name lives in another module",
    FindingKind.RENAMED: "the same thing has another name",
    FindingKind.PARAM_REMOVED: "a parameter that is passed no longer exists",
    FindingKind.PARAM_RENAMED: "a parameter that is passed has another name",
    FindingKind.PARAM_REQUIRED: "a new parameter must be passed",
    FindingKind.PARAM_KWONLY: "an argument must be passed by keyword",
    FindingKind.PARAM_POSONLY: "an argument must be passed by position",
    FindingKind.PARAM_REORDERED: "a positional argument lands on another parameter",
    FindingKind.DEFAULT_CHANGED: "a default that this call relies on has another value",
    FindingKind.RETURN_CHANGED: "what is returned no longer fits what is done with it",
    FindingKind.OVERRIDE_DRIFT: "an override no longer fits how it is called",
    FindingKind.KIND_CHANGED: "a method became a property, a class a function, or the other way round",
    FindingKind.ASYNC_CHANGED: "a function became asynchronous, or no longer is",
    FindingKind.DEPRECATED: "it works, and is announced to go",
    FindingKind.PRIVATE: "a private name is touched, which may change without notice",
    FindingKind.CLI_FLAG: "a command-line flag no longer exists",
    FindingKind.HTTP_ROUTE: "an HTTP route no longer exists",
    FindingKind.HTTP_FIELD: "a field of a request or answer no longer exists",
    FindingKind.ENV_VAR: "nobody reads this environment variable any more",
    FindingKind.GUARD_DEAD: "a version check has the same answer for every allowed version",
    FindingKind.UNRESOLVED: "the old version does not have it either",
}


def counted(counts: Mapping[str, int]) -> str:
    """ "2 breaking, 1 warning", without zeros; "nothing" if all are."""
    parts = []
    for level in AuditSeverity:
        number = counts.get(str(level), 0)
        if number:
            plural = "s" if level is AuditSeverity.WARNING and number > 1 else ""
            parts.append(f"{number} {level}{plural}")
    return ", ".join(parts) or "nothing"


def document(audits: Sequence[Audit]) -> dict[str, Any]:
    """Return `findings` of all audits, and `audits` with the figures of each."""
    return {
        "findings": [finding_object(finding) for audit in audits for finding in audit.findings],
        "audits": [_figures(audit) for audit in audits],
    }


def finding_object(finding: AuditFinding) -> dict[str, Any]:
    """One finding; empty sides are null."""
    instead = finding.replacement
    return {
        **asdict(finding),
        "confidence": round(finding.confidence, 2),
        "parameter": finding.parameter or None,
        "old": _side(finding.old),
        "new": _side(finding.new),
        "replacement": instead.text if instead else None,
        "replacement_evidence": instead.why if instead else None,
        "guard": finding.guard or None,
    }


def count(findings: Sequence[AuditFinding]) -> dict[str, int]:
    """Count findings by severity, zeros included."""
    return {str(level): sum(finding.severity == level for finding in findings) for level in AuditSeverity}


def open_share(audit: Audit) -> float:
    """Share of the uses that could not be judged, 0 to 1."""
    hidden = audit.unresolved + sum(unseen.count for unseen in audit.open)
    return hidden / audit.uses if audit.uses else 0.0


def seen(audit: Audit) -> dict[str, int]:
    """Count what an audit looked at of one distribution: files, symbols, and different names of each interface."""
    names = {kind: len({use.name for use in audit.interfaces if use.kind is kind}) for kind in InterfaceKind}
    return {
        "files": len(audit.used_in),
        "imports": audit.imports,
        "symbols": audit.symbols,
        **{f"{kind}s": number for kind, number in names.items()},
        "unknown": len({(use.kind, use.name) for use in audit.interfaces if not use.known}),
        "unfollowed": len(audit.unfollowed),
    }


def seen_words(audit: Audit) -> str:
    """ "7 files: 3 imports, 4 symbols, 19 flags, 11 routes, 0 fields, 5 variables, 5 plugin modules"."""
    found = seen(audit)
    words = {"files": "file", "imports": "import", "plugins": "plugin module"}
    parts = [
        f"{number} {words.get(name, name.removesuffix('s'))}{'' if number == 1 else 's'}"
        for name, number in found.items()
        if name not in {"unknown", "unfollowed"}
    ]
    return f"{parts[0]}: {', '.join(parts[1:])}"


def _side(evidence: Evidence) -> dict[str, Any] | None:
    return asdict(evidence) if evidence.file or evidence.signature else None


def _figures(audit: Audit) -> dict[str, Any]:
    return {
        "distribution": audit.distribution,
        "old_version": audit.old_version,
        "new_version": audit.new_version,
        "files": audit.files,
        "uses": audit.uses,
        "symbols": audit.symbols,
        "judged": audit.judged,
        "unresolved": audit.unresolved,
        "unreadable": audit.unreadable,
        "worst": audit.worst(),
        "counts": count(audit.findings),
        "open": [asdict(unseen) for unseen in audit.open],
        "open_share": round(open_share(audit), 4),
        "seen": seen(audit),
        "interfaces": [asdict(use) for use in audit.interfaces],
        "unfollowed": [asdict(place) for place in audit.unfollowed],
        "modules_read": dict(zip(("old", "new"), audit.modules_read, strict=True)),
        "seconds": {phase: round(seconds, 3) for phase, seconds in audit.seconds.items()},
    }


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
        verb = "Use" if finding.replacement.certain else "Perhaps use"
        parts.append(f"{verb} {finding.replacement.text} ({finding.replacement.why}).")
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


_ACTIVE: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&-])")
TITLES: Final = {AuditSeverity.BREAKING: "Breaking", AuditSeverity.WARNING: "Warnings"}


def markdown(audits: Sequence[Audit]) -> str:
    """Return a section per distribution; information-only findings are counted, not listed."""
    return "\n".join(line for audit in audits for line in _audit(audit))


def escaped(text: str) -> str:
    """Escape the text so that Markdown shows it as it is, on one line."""
    return _ACTIVE.sub(r"\\\1", " ".join(printable(text).split()))


def code(text: str) -> str:
    """Inline code, whatever backticks and bars the text holds."""
    flat = " ".join(printable(text).split()).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", flat)), default=0))
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{ticks}{pad}{flat}{pad}{ticks}" if flat else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown; nothing where there are no rows."""
    for number, row in enumerate(rows):
        if not number:
            yield f"| {' | '.join(head)} |"
            yield f"| {' | '.join('---' for _ in head)} |"
        yield f"| {' | '.join(row)} |"


def _audit(audit: Audit) -> Iterator[str]:
    yield f"### {escaped(audit.distribution)} {escaped(audit.old_version)} → {escaped(audit.new_version)}"
    yield ""
    found = "nothing was looked at" if audit.looked_at_nothing else counted(count(audit.findings))
    yield (
        f"{found.capitalize()}. {audit.files} files looked at: {audit.uses} uses of {audit.symbols} symbols, "
        f"{audit.judged} judged, {open_share(audit):.0%} not seen. Used in {seen_words(audit)}."
    )
    yield ""
    if audit.unfollowed:
        places = ((code(f"{each.path}:{each.line}"), escaped(each.what)) for each in audit.unfollowed)
        yield from (f"- not followed: {place} {what}" for place, what in places)
        yield ""
    for level, title in TITLES.items():
        findings = [finding for finding in audit.findings if finding.severity == level]
        if findings:
            yield f"#### {title}"
            yield ""
            yield from table(("place", "kind", "what", "write instead"), map(_row, findings))
            yield ""


def _row(finding: AuditFinding) -> tuple[str, ...]:
    replacement = ""
    if finding.replacement:
        replacement = code(finding.replacement.text) + ("" if finding.fixable else " (to be checked)")
    return code(f"{finding.path}:{finding.line}"), str(finding.kind), escaped(finding.message), replacement


SEEN_OPEN = 5
"""Reasons why uses were not judged, and flags that the old release lacks, that are shown; --json has all."""


def text(audits: Sequence[Audit], *, show_info: bool = False) -> str:
    """Return the report without colour. show_info: findings of severity info too."""
    return "\n\n".join("\n".join(_lines(audit, show_info)) for audit in audits) + "\n" if audits else ""


def _lines(audit: Audit, show_info: bool) -> Iterator[str]:
    found = "nothing was looked at" if audit.looked_at_nothing else counted(count(audit.findings))
    yield f"{audit.distribution} {audit.old_version} -> {audit.new_version}: {found}"
    levels = list(AuditSeverity) if show_info else [AuditSeverity.BREAKING, AuditSeverity.WARNING]
    for level in levels:
        of_level = [finding for finding in audit.findings if finding.severity == level]
        for path, findings in groupby(of_level, attrgetter("path")):
            yield ""
            yield f"  {path}"
            for finding in findings:
                yield f"    {finding.line}: {finding.severity} {finding.kind}: {finding.message}"
                if finding.guard:
                    yield f"        under: {finding.guard}"
                for name, side in (("old", finding.old), ("new", finding.new)):
                    if side.file:
                        place = f"{side.file}:{side.line}" if side.line else side.file
                        yield f"        {name}: {place}  {side.signature}".rstrip()
                if finding.replacement:
                    how = "--fix may write it" if finding.fixable else "look at it first"
                    yield f"        write: {finding.replacement.text} ({finding.replacement.why}; {how})"
    yield ""
    seconds = sum(audit.seconds.values())
    yield (
        f"  {audit.files} files looked at: {audit.uses} uses of {audit.symbols} symbols, {audit.judged} judged, "
        f"{open_share(audit):.0%} not seen; {audit.modules_read[0]} + {audit.modules_read[1]} modules read; "
        f"{seconds:.1f} s"
    )
    yield f"  used in {seen_words(audit)}"
    strangers = [use for use in audit.interfaces if not use.known]
    for use in strangers[:SEEN_OPEN]:
        yield f"    {use.path}:{use.line}: {use.kind} {use.name}: {audit.old_version} does not have it"
    if len(strangers) > SEEN_OPEN:
        yield f"    and {len(strangers) - SEEN_OPEN} more that {audit.old_version} does not have (--json lists them)"
    for hidden in audit.unfollowed:
        yield f"    not followed: {hidden.path}:{hidden.line}: {hidden.what}"
    for unseen in sorted(audit.open, key=lambda unseen: -unseen.count)[:SEEN_OPEN]:
        yield f"    {unseen.count} not seen: {unseen.why} (e.g. {unseen.example})"
    if audit.unresolved:
        yield f"    {audit.unresolved} that {audit.old_version} does not have either"
    for problem in audit.unreadable:
        yield f"    not read: {problem}"
