"""Finds what is new: runs the rules, numbers findings, and suppresses those that comments or a baseline accept.

Rules of one file run on both sides, and what both have is not the change's doing; rules about names run on files
outside the change too, when it removed or changed what they use. A comment suppresses a finding on its line or, alone,
on the line below; a reason is required:

# review: ignore[unsafe-yaml] our own constant
# noqa: RUF006 - short, and cancelled with the loop       where ruff's rule says the same as ours
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.review.records import MIN_REASON, Finding, Place, Rule, is_test
from tooling.review.rules import references
from tooling.review.rules.catalogue import RULES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tooling.review.policy import Policy
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side


_IGNORE = re.compile(r"#\s*review:\s*ignore\[(?P<rules>[\w, -]+)\]\s*[:-]*\s*(?P<reason>.*)")
_NOQA = re.compile(r"#\s*noqa:\s*(?P<rules>[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)[\s:#-]*(?P<reason>.*)")
LINTED: Final[dict[str, str]] = {
    "B006": "mutable-default",
    "BLE001": "swallowed-error",
    "F403": "wildcard-import",
    "F821": "undefined-name",
    "RUF006": "dropped-task",
    "S102": "evaluated-text",
    "S104": "open-address",
    "S110": "swallowed-error",
    "S112": "swallowed-error",
    "S301": "unsafe-deserialisation",
    "S307": "evaluated-text",
    "S506": "unsafe-yaml",
    "S602": "shell-from-values",
    "S605": "shell-from-values",
    "S614": "unsafe-torch-load",
}
"""Rules of ruff, and ours that looks for the same: whoever gave a reason to one does not have to repeat it."""


def reason(side: Side, finding: Finding) -> str:
    """Why a finding is suppressed; "" when it counts."""
    lines = (side.text(finding.place.path) or "").split("\n")
    at = finding.place.line - 1
    if not 0 <= at < len(lines):
        return ""
    above = lines[at - 1] if at and lines[at - 1].lstrip().startswith("#") else ""
    for line in (lines[at], above):
        ours, theirs = _IGNORE.search(line), _NOQA.search(line)
        if ours and finding.rule.id in _words(ours["rules"]):
            return _enough(ours["reason"])
        if theirs and finding.rule.id in {LINTED.get(code) for code in _words(theirs["rules"])}:
            return _enough(theirs["reason"])
    return ""


def codes_of(rule: str) -> list[str]:
    """The codes of ruff that say the same."""
    return [code for code, ours in LINTED.items() if ours == rule]


def _words(text: str) -> set[str]:
    return {each.strip() for each in text.split(",")}


def _enough(text: str) -> str:
    return text.strip() if len(text.strip()) >= MIN_REASON else ""


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


def find(comparison: Comparison, policy: Policy, accepted: Collection[str] = ()) -> tuple[Finding, ...]:
    """New findings, the worst first. accepted: fingerprints of a baseline."""
    comparison.base.frozen = comparison.head.frozen = policy.frozen
    found = [*_in_files(comparison, policy), *_in_change(comparison, policy)]
    found.sort(key=lambda each: (-each.rule.severity, each.place.path, each.place.line, each.rule.id))
    return tuple(_judged(comparison, _numbered(found), accepted))


def _in_files(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    active = [rule for rule in RULES.values() if rule.in_file is not None and rule.id not in policy.disable]
    files = [each for each in comparison.files if each.path.endswith(".py") and policy.reads(each.path)]
    after = {each.path: _places(active, comparison.head, each.path) if each.status != "D" else [] for each in files}
    # The other side is asked only what this side answers: most changes have nothing to compare.
    fired = [rule for rule in active if any(each.rule is rule for found in after.values() for each in found)]
    new: list[Finding] = []
    gone: list[Finding] = []
    for file in files if fired else ():
        before = _places(fired, comparison.base, file.old_path) if file.status != "A" else []
        new += _without(after[file.path], before, moved=False)
        gone += _without(before, after[file.path], moved=False)
    yield from _without(new, gone, moved=True)
    yield from _elsewhere(comparison, policy, [rule for rule in active if rule in references.RULES])


def _elsewhere(comparison: Comparison, policy: Policy, rules: list[Rule]) -> Iterator[Finding]:
    """In files that the change left alone, but took something from."""
    comparison.head.load(comparison.affected)
    for path in comparison.affected:
        after = _places(rules, comparison.head, path) if policy.reads(path) else []
        if after:
            yield from _without(after, _places(rules, comparison.base, path), moved=False)


def _places(rules: Iterable[Rule], side: Side, path: str) -> list[Finding]:
    module = side.module(path)
    found: dict[tuple[str, int, str], Finding] = {}
    held = [rule for rule in rules if rule.in_tests or not is_test(path)]
    for rule in held if module is not None else ():
        for place in rule.in_file(module, side) if rule.in_file is not None and module is not None else ():
            key = (rule.id, place.line, place.message)
            if key not in found:
                found[key] = _finding(rule, place, side)
    return list(found.values())


def _without(found: list[Finding], known: list[Finding], *, moved: bool) -> list[Finding]:
    """What is found more often than it is known. Of moved code the file and the enclosing function are another."""

    def key(finding: Finding) -> tuple[str, ...]:
        said = (finding.rule.id, finding.place.message, finding.code)
        return said if moved else (*said, finding.symbol)

    left = Counter(map(key, known))
    new: list[Finding] = []
    for finding in found:
        left[key(finding)] -= 1
        if left[key(finding)] < 0:
            new.append(finding)
    return new


def _in_change(comparison: Comparison, policy: Policy) -> Iterator[Finding]:
    for rule in RULES.values():
        if rule.in_change is not None and rule.id not in policy.disable:
            for place in rule.in_change(comparison):
                if policy.reads(place.path):
                    yield _finding(rule, place, comparison.head)


def _finding(rule: Rule, place: Place, side: Side) -> Finding:
    lines = (side.text(place.path) or "").split("\n")
    code = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
    module = side.module(place.path)
    return Finding(rule, place, module.symbol_at(place.line) if module is not None else "", code)


def _numbered(found: Iterable[Finding]) -> Iterator[Finding]:
    count: Counter[str] = Counter()
    for finding in found:
        yield Finding(finding.rule, finding.place, finding.symbol, finding.code, count[finding.fingerprint])
        count[finding.fingerprint] += 1


def _judged(comparison: Comparison, found: Iterable[Finding], accepted: Collection[str]) -> Iterator[Finding]:
    for finding in found:
        why = "baseline" if finding.fingerprint in accepted else reason(comparison.head, finding)
        yield Finding(finding.rule, finding.place, finding.symbol, finding.code, finding.nth, why)
