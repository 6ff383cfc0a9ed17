"""Phase 4: what is new. Rules of one file run on both sides, and what both have is not the change's doing; rules about
names run on files outside the change too, when it removed or changed what they use.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tooling.review import suppression
from tooling.review.records import Finding, Place, Rule, is_test
from tooling.review.rules import references
from tooling.review.rules.catalogue import RULES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tooling.review.policy import Policy
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side


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
        reason = "baseline" if finding.fingerprint in accepted else suppression.reason(comparison.head, finding)
        yield Finding(finding.rule, finding.place, finding.symbol, finding.code, finding.nth, reason)
