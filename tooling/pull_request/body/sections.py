"""Facts as Markdown, one function per section. Names and messages are somebody's text: they stay text, and call
nobody."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.cli.report import printable
from tooling.review.report import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tooling.pull_request.body.facts import Facts
    from tooling.review.domains import Touched

_FILES: Final = 8
_FINDINGS: Final = 20
_REASONS: Final = 15
_CODE: Final = re.compile(r"(`+[^`\n]+`+)")


def description(facts: Facts) -> str:
    """What the authors say."""
    text = "\n".join(line for _, line in facts.message.body).strip("\n")
    if not facts.proposal.joined:
        text = "\n".join(f"- {each.subject}" for each in facts.proposal.commits)
    return harmless(text) or escaped(facts.message.subject or facts.message.header)


def changes(facts: Facts) -> str:
    """What changed, by whose code it is."""
    comparison = facts.review.comparison
    lines = [f"{len(comparison.files)} files, +{comparison.added} -{comparison.removed}", ""]
    lines += [_domain(facts, each) for each in facts.review.domains]
    gone = sorted(comparison.gone)
    if gone:
        lines += ["", f"Names that are gone: {', '.join(escaped(name) for name in gone[:_FILES])}"]
    return "\n".join(lines)


def _domain(facts: Facts, each: Touched) -> str:
    files = [facts.review.comparison.by_path[path] for path in each.paths]
    counts = f"+{sum(len(one.added) for one in files)} -{sum(len(one.removed) for one in files)}"
    largest = sorted(files, key=lambda one: (-len(one.added) - len(one.removed), one.path))
    named = ", ".join(escaped(one.path) for one in largest[:_FILES])
    more = f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
    signals = f" (signals: {', '.join(each.signals)})" if each.signals else ""
    return f"- **{escaped(each.domain.title)}**, {counts}{signals}: {named}{more}"


def risk(facts: Facts) -> str:
    """How risky, and why."""
    said = facts.review.risk
    lines = [f"**{said.level.name}**", "", *(f"- {escaped(reason)}" for reason in said.reasons)]
    wanted = [f"{each.name} ({each.depth})" for each in facts.review.passes]
    return "\n".join([*lines, *([f"- readings asked for: {escaped(', '.join(wanted))}"] if wanted else [])])


def findings(facts: Facts) -> str:
    """Findings that stand."""
    found = facts.review.open
    lines = [f"`areal-review` finds nothing new in {len(facts.review.comparison.files)} files."]
    if found:
        lines = ["| severity | rule | place | what |", "| --- | --- | --- | --- |"]
        for each in found[:_FINDINGS]:
            place = escaped(f"{each.place.path}:{each.place.line}")
            lines.append(f"| {each.rule.severity.name} | {each.rule.id} | {place} | {escaped(each.place.message)} |")
        lines += ["", f"and {len(found) - _FINDINGS} more"] if len(found) > _FINDINGS else []
    hidden = len(facts.review.findings) - len(found)
    lines += ["", f"{hidden} more are suppressed with a reason."] if hidden else []
    return "\n".join(lines)


def tests(facts: Facts) -> str:
    """What ran, what did not, and why. Nothing is claimed that no report says."""
    changed = facts.paths("test")
    touched = f"Test files of this change: {', '.join(map(escaped, changed[:_FILES]))}" if changed else ""
    touched += f" and {len(changed) - _FILES} more" if len(changed) > _FILES else ""
    report = facts.tests
    if report is None:
        return "\n\n".join(filter(None, ["No test report was given: nothing is claimed about tests.", touched]))
    when = f" of {report.when:%Y-%m-%d %H:%M} UTC" if report.when else ""
    skipped = sum(number for _, number in report.skipped)
    head = f"{report.passed} passed, {len(report.failed)} failed, {skipped} skipped in {report.seconds:.0f} s"
    lines = [f"{head}, by {escaped(report.name)}{when}."]
    if not report.total:
        lines = [f"{escaped(report.name)} lists no test: nothing ran."]
    if facts.tests_outdated:
        lines += ["", "**The report is older than the newest commit: it is about an earlier state.**"]
    elif facts.merged_since:
        lines += ["", "They ran before this was brought onto the newest base."]
    if report.failed:
        lines += ["", "Failed:", "", *(f"- {escaped(name)}" for name in report.failed[:_REASONS])]
    if report.skipped:
        lines += ["", "Skipped:", ""]
        lines += [f"- {number}: {escaped(reason)}" for reason, number in report.skipped[:_REASONS]]
    return "\n".join([*lines, *(["", touched] if touched else [])])


def breaking(facts: Facts) -> str:
    """What users have to do."""
    if facts.breaking:
        return "\n".join(f"- {harmless(each)}" for each in facts.breaking)
    gone = sorted(facts.review.comparison.gone)
    if facts.announces_breaking:
        return "Yes; see the description."
    if gone:
        return f"None announced, but public names are gone: {', '.join(escaped(name) for name in gone[:_FILES])}"
    return "None announced, and no public name is gone."


def dependencies(facts: Facts) -> str:
    """Requirements that move, and what an audit says."""
    lines = [
        f"- {escaped(each.name)} in {escaped(each.file)}: {_range(each.before)} -> {_range(each.after)}"
        for each in facts.requirements
    ]
    if facts.audit is None:
        return "\n".join([*lines, "", "No audit was given."]) if lines else "No requirement changes."
    lines = lines or ["No requirement changes."]
    lines += ["", "| audited | from | to | worst | findings | not judged |", "| --- | --- | --- | --- | --- | --- |"]
    for row in facts.audit:
        cells = (row.distribution, row.before, row.after, row.worst or "none", str(row.findings), str(row.unjudged))
        lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    return "\n".join(lines)


def issues(facts: Facts) -> str:
    """Which issues this closes or is about; "" for none."""
    lines = [f"Closes {each}" for each in facts.closes]
    return "\n".join([*lines, *(f"Refs {each}" for each in facts.refers if each not in facts.closes)])


SECTIONS: Final[dict[str, tuple[str, Callable[[Facts], str]]]] = {
    "description": ("Description", description),
    "issues": ("Related issues", issues),
    "changes": ("What changed", changes),
    "risk": ("Risk", risk),
    "findings": ("Review", findings),
    "tests": ("Tests", tests),
    "breaking": ("Breaking changes", breaking),
    "dependencies": ("Dependencies", dependencies),
}
"""Name -> heading and text, in the order of our own template."""


def escaped(text: str) -> str:
    """Names, as Markdown shows them; control characters are spelt out."""
    return written.escaped(printable(text))


def harmless(text: str) -> str:
    """Somebody's Markdown that makes no headings, holds no HTML, and mentions nobody. Code stays as it is."""
    return "\n".join(_lines(text.split("\n")))


def _lines(lines: Sequence[str]) -> Iterator[str]:
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith(("```", "~~~"))
        fenced = fenced ^ fence
        if fence or fenced:
            yield line
            continue
        parts = _CODE.split(line)
        # Code spans are the odd ones.
        text = "".join(part if number % 2 else _plain(part) for number, part in enumerate(parts))
        yield re.sub(r"^(\s*)(#+\s|[=-]{2,}\s*$)", r"\1\\\2", text)
    if fenced:
        yield "```"


def _plain(text: str) -> str:
    return re.sub(r"@(?=\w)", "&#64;", printable(text).replace("<", "&lt;"))


def _range(text: str) -> str:
    return escaped(text) if text else "nothing"
