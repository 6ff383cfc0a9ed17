"""For people: lines for a terminal, and Markdown for a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.review.records import Finding
    from tooling.review.report.outcome import Outcome

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&])")


def text(outcome: Outcome, *, quick: bool) -> str:
    """Lines for a terminal."""
    return "\n".join(_text(outcome, quick)) + "\n"


def _text(outcome: Outcome, quick: bool) -> Iterator[str]:
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


def markdown(outcome: Outcome) -> str:
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
