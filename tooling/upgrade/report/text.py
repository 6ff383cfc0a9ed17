"""Write audits for people: as text for a terminal, as Markdown for a summary or a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.cli.report import printable
from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.report.document import by_path, count, counted, open_share, seen_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.findings import Audit, AuditFinding


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
            yield "| place | kind | what | write instead |"
            yield "| --- | --- | --- | --- |"
            yield from map(_row, findings)
            yield ""


def _row(finding: AuditFinding) -> str:
    replacement = ""
    if finding.replacement:
        replacement = code(finding.replacement.text) + ("" if finding.fixable else " (to be checked)")
    return f"| {code(f'{finding.path}:{finding.line}')} | {finding.kind} | {escaped(finding.message)} | {replacement} |"


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
        for path, findings in by_path([finding for finding in audit.findings if finding.severity == level]).items():
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
                    how = "--fix does it" if finding.fixable else "look at it first"
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
