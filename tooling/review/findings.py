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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import ToolError, UsageError
from tooling.review.checker import check
from tooling.review.linter import lint
from tooling.review.records import MIN_REASON, Place, ReviewFinding, Rule, is_test
from tooling.review.rules import references, typed
from tooling.review.rules.catalogue import FORMER, RULES
from tooling.review.rules.linted import CODES
from tooling.review.secrets import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from tooling.review.policy import Policy
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side


_IGNORE = re.compile(r"#\s*review:\s*ignore\[(?P<rules>[\w, -]+)\]\s*[:-]*\s*(?P<reason>.*)")
_NOQA = re.compile(r"#\s*noqa:\s*(?P<rules>[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)[\s:#-]*(?P<reason>.*)")
LINTED: Final[dict[str, str]] = CODES | {
    "B006": "mutable-default",
    "BLE001": "swallowed-error",
    "F403": "wildcard-import",
    "F821": "undefined-name",
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
    "TC004": "type-only-name",
}
"""Rules of ruff, and ours that looks for the same: whoever gave a reason to one does not have to repeat it."""


def reason(side: Side, finding: ReviewFinding) -> str:
    """Return why a finding is suppressed; "" when it counts."""
    lines = (side.text(finding.place.path) or "").split("\n")
    at = finding.place.line - 1
    if not 0 <= at < len(lines):
        return ""
    above = lines[at - 1] if at and lines[at - 1].lstrip().startswith("#") else ""
    for line in (lines[at], above):
        ours, theirs = _IGNORE.search(line), _NOQA.search(line)
        if ours and finding.rule.id in {FORMER.get(name, name) for name in _words(ours["rules"])}:
            return _enough(ours["reason"])
        if theirs and finding.rule.id in {LINTED.get(code) for code in _words(theirs["rules"])}:
            return _enough(theirs["reason"])
    return ""


def codes_of(rule: str) -> list[str]:
    """Return the codes of ruff that say the same."""
    return [code for code, ours in LINTED.items() if ours == rule]


def _words(text: str) -> set[str]:
    return {each.strip() for each in text.split(",")}


def _enough(text: str) -> str:
    return text.strip() if len(text.strip()) >= MIN_REASON else ""


VERSION = 1


def baseline(findings: Iterable[ReviewFinding]) -> str:
    """Write a baseline; each fingerprint comes with what it is about, for people."""
    rows = {
        each.fingerprint: f"{each.rule.id} {each.place.path}: {each.place.message}"
        for each in findings
        if each.suppressed in {"", "baseline"}
    }
    ordered = dict(sorted(rows.items(), key=lambda row: row[1]))
    return json.dumps({"version": VERSION, "accepted": ordered}, indent=1) + "\n"


def read_baseline(text: str) -> frozenset[str]:
    """Read the fingerprints. Raises UsageError for what `--as-baseline` does not print."""
    if not text:
        return frozenset()
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise KeyError("version")
        return frozenset(document["accepted"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"is not a baseline: {error}", where="baseline", fix="make it with --as-baseline") from error


Reported = dict[str, list[tuple[str, Place]]]
"""What ruff and ty say of the files of one side: path -> the rule's id and the place."""


def find(
    comparison: Comparison, policy: Policy, accepted: Collection[str] = ()
) -> tuple[tuple[ReviewFinding, ...], tuple[str, ...]]:
    """Return new findings, the worst first, and what did not look. accepted: fingerprints of a baseline."""
    comparison.base.frozen = comparison.head.frozen = policy.frozen
    reported, notes = _reported(comparison, policy)
    failures: dict[str, str] = {}
    found = list(_in_files(comparison, policy, reported, failures))
    for rule in RULES.values():
        if rule.in_change is not None and rule.id not in policy.disable:
            places = _looked(rule, partial(rule.in_change, comparison), "the change", failures)
            found += [_finding(rule, place, comparison.head) for place in places if policy.reads(place.path)]
    notes = (*notes, *failures.values())
    if "secret" not in policy.disable:
        said = {(each.place.path, each.place.line) for each in found if each.rule.id == "secret"}
        reported_secrets, note = scan(comparison)
        new = [each for each in reported_secrets if policy.reads(each.path) and (each.path, each.line) not in said]
        found += [_finding(RULES["secret"], place, comparison.head) for place in new]
        notes = (*notes, note) if note else notes
    found.sort(key=lambda each: (-each.rule.severity, each.place.path, each.place.line, each.rule.id))
    judged, count = list[ReviewFinding](), Counter[str]()
    for each in found:
        nth, count[each.fingerprint] = count[each.fingerprint], count[each.fingerprint] + 1
        numbered = replace(each, nth=nth)
        why = "baseline" if numbered.fingerprint in accepted else reason(comparison.head, numbered)
        judged.append(replace(numbered, suppressed=why))
    return tuple(judged), notes


def _reported(comparison: Comparison, policy: Policy) -> tuple[tuple[Reported, Reported], tuple[str, ...]]:
    """Ask ruff about all changed files at once, and ty about these and the files that use what changed. Return what
    they say before and after, and why one of them did not look."""
    changed = [each for each in comparison.files if each.path.endswith(".py") and policy.reads(each.path)]
    texts: dict[str, str] = {}
    for file in changed:
        for mark, side, path, gone in (
            ("base", comparison.base, file.old_path, file.status == "A"),
            ("head", comparison.head, file.path, file.status == "D"),
        ):
            if not gone and side.module(path) is not None:
                texts[f"{mark}/{path}"] = side.text(path) or ""
    found, of_ruff = lint(texts)
    sides: dict[str, Reported] = {"base": {}, "head": {}}
    for name, rows in found.items():
        mark, _, path = name.partition("/")
        sides[mark][path] = [(rule, replace(place, path=path)) for rule, place in rows]
    present = [each.path for each in changed if each.status != "D"]
    after, of_ty = check(comparison.head, [*present, *filter(policy.reads, comparison.affected)] if changed else [])
    # As with our own rules, the other side is asked only about files in which this side answers.
    old = {each.path: each.old_path for each in comparison.files if each.status != "A"}
    asked = [old.get(path, path) for path in after if path in old or path not in comparison.by_path]
    before = check(comparison.base, asked)[0] if asked else {}
    for mark, rows_of in (("base", before), ("head", after)):
        for path, rows in rows_of.items():
            sides[mark].setdefault(path, []).extend(rows)
    return (sides["base"], sides["head"]), tuple(filter(None, (of_ruff, of_ty)))


def _looked(rule: Rule, ask: Callable[[], Iterable[Place]], where: str, failures: dict[str, str]) -> list[Place]:
    """Return what a rule yields. One that raises is noted in `failures`, and says nothing; the others go on."""
    try:
        return list(ask())
    except ToolError:
        raise
    except Exception as error:  # noqa: BLE001 - code of any shape is read: a fault in one rule is not the end of all
        failures.setdefault(rule.id, f"the rule {rule.id} failed on {where}: {type(error).__name__}: {error}")
        return []


def _in_files(
    comparison: Comparison, policy: Policy, reported: tuple[Reported, Reported], failures: dict[str, str]
) -> Iterator[ReviewFinding]:
    old, now = reported
    active = [rule for rule in RULES.values() if rule.in_change is None and rule.id not in policy.disable]
    files = [each for each in comparison.files if each.path.endswith(".py") and policy.reads(each.path)]
    after = {
        each.path: _places(active, comparison.head, each.path, now, failures) if each.status != "D" else []
        for each in files
    }
    # The other side is asked only what this side answers: most changes have nothing to compare.
    fired = [rule for rule in active if any(each.rule is rule for found in after.values() for each in found)]
    new: list[ReviewFinding] = []
    gone: list[ReviewFinding] = []
    for file in files if fired else ():
        before = _places(fired, comparison.base, file.old_path, old, failures) if file.status != "A" else []
        new += _without(after[file.path], before, moved=False)
        gone += _without(before, after[file.path], moved=False)
    yield from _without(new, gone, moved=True)
    # In files that the change left alone, but took something from
    rules = [rule for rule in active if rule in references.RULES or rule in typed.RULES]
    comparison.head.load(comparison.affected)
    for path in comparison.affected:
        used = _places(rules, comparison.head, path, now, failures) if policy.reads(path) else []
        if used:
            yield from _without(used, _places(rules, comparison.base, path, old, failures), moved=False)


def _places(
    rules: Iterable[Rule], side: Side, path: str, reported: Reported, failures: dict[str, str]
) -> list[ReviewFinding]:
    module = side.module(path)
    if module is None:
        return []
    found: dict[tuple[str, int, str], ReviewFinding] = {}
    held = [rule for rule in rules if rule.in_tests or not is_test(path)]
    for rule in held:
        for place in _looked(rule, partial(rule.places, module, side), path, failures):
            key = (rule.id, place.line, place.message)
            if key not in found:
                found[key] = _finding(rule, place, side)
    named = {rule.id: rule for rule in held}
    said = {(rule, line) for rule, line, _ in found}
    for rule_id, place in reported.get(path, ()):
        # A rule of ours that found it too says more about it.
        same = {(rule_id, place.line), (typed.SAID_BY.get(rule_id, rule_id), place.line)}
        if rule_id in named and said.isdisjoint(same):
            found[rule_id, place.line, place.message] = _finding(named[rule_id], place, side)
    return list(found.values())


def _without(found: list[ReviewFinding], known: list[ReviewFinding], *, moved: bool) -> list[ReviewFinding]:
    """Return what is found more often than it is known. Moved code has another file and another enclosing function."""

    def key(finding: ReviewFinding) -> tuple[str, ...]:
        said = (finding.rule.id, finding.place.message, finding.code)
        return said if moved else (*said, finding.symbol)

    left = Counter(map(key, known))
    new: list[ReviewFinding] = []
    for finding in found:
        left[key(finding)] -= 1
        if left[key(finding)] < 0:
            new.append(finding)
    return new


def _finding(rule: Rule, place: Place, side: Side) -> ReviewFinding:
    lines = (side.text(place.path) or "").split("\n")
    code = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
    module = side.module(place.path)
    return ReviewFinding(rule, place, module.symbol_at(place.line) if module is not None else "", code)
