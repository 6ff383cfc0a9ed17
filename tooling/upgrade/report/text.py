"""Audits for people at a terminal: the worst first, grouped by file, what to write instead, and how much was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.upgrade.findings import Severity
from tooling.upgrade.report.document import count, open_share
from tooling.upgrade.report.wording import by_path, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.findings import Audit, Evidence, Finding

SEEN_OPEN = 5
"""Reasons why uses were not judged that are shown; --json has all."""


def text(audits: Sequence[Audit], *, show_info: bool = False) -> str:
    """The report without colour. show_info: findings of severity info too."""
    return "\n\n".join("\n".join(_audit(audit, show_info)) for audit in audits) + "\n" if audits else ""


def _audit(audit: Audit, show_info: bool) -> Iterator[str]:
    found = "nothing was looked at" if audit.looked_at_nothing else counted(count(audit.findings))
    yield f"{audit.distribution} {audit.old_version} -> {audit.new_version}: {found}"
    levels = list(Severity) if show_info else [Severity.BREAKING, Severity.WARNING]
    for level in levels:
        for path, findings in by_path([finding for finding in audit.findings if finding.severity == level]).items():
            yield ""
            yield f"  {path}"
            for finding in findings:
                yield from _finding(finding)
    yield ""
    seconds = sum(audit.seconds.values())
    yield (
        f"  {audit.files} files looked at: {audit.uses} uses of {audit.symbols} symbols, {audit.judged} judged, "
        f"{open_share(audit):.0%} not seen; {audit.modules_read[0]} + {audit.modules_read[1]} modules read; "
        f"{seconds:.1f} s"
    )
    for unseen in sorted(audit.open, key=lambda unseen: -unseen.count)[:SEEN_OPEN]:
        yield f"    {unseen.count} not seen: {unseen.why} (e.g. {unseen.example})"
    if audit.unresolved:
        yield f"    {audit.unresolved} that {audit.old_version} does not have either"
    for problem in audit.unreadable:
        yield f"    not read: {problem}"


def _finding(finding: Finding) -> Iterator[str]:
    yield f"    {finding.line}: {finding.severity} {finding.kind}: {finding.message}"
    if finding.guard:
        yield f"        under: {finding.guard}"
    for name, side in (("old", finding.old), ("new", finding.new)):
        if side.file:
            yield f"        {name}: {_side(side)}"
    if finding.replacement:
        how = "--fix does it" if finding.fixable else "look at it first"
        yield f"        write: {finding.replacement.text} ({finding.replacement.why}; {how})"


def _side(side: Evidence) -> str:
    place = f"{side.file}:{side.line}" if side.line else side.file
    return f"{place}  {side.signature}" if side.signature else place
