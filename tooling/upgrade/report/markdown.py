"""Audits as Markdown, for `upgrade-summary.md` and the body of a pull request.

Names and messages come from other people's files: everything that Markdown or HTML would act on is escaped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.cli.report import printable
from tooling.upgrade.findings import Severity
from tooling.upgrade.report.document import count, open_share
from tooling.upgrade.report.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.findings import Audit, Finding

_ACTIVE: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&-])")
TITLES: Final = {Severity.BREAKING: "Breaking", Severity.WARNING: "Warnings"}


def markdown(audits: Sequence[Audit]) -> str:
    """A section per distribution; information-only findings are counted, not listed."""
    return "\n".join(line for audit in audits for line in _audit(audit))


def escaped(text: str) -> str:
    """The text so that Markdown shows it as it is, on one line."""
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
        f"{audit.judged} judged, {open_share(audit):.0%} not seen."
    )
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


def _row(finding: Finding) -> str:
    replacement = ""
    if finding.replacement:
        replacement = code(finding.replacement.text) + ("" if finding.fixable else " (to be checked)")
    return f"| {code(f'{finding.path}:{finding.line}')} | {finding.kind} | {escaped(finding.message)} | {replacement} |"
