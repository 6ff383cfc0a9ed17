"""Learns which type people choose for which kind of change, from the history of the repository.

    history = TypeHistory()
    for commit in oldest_first: history.learn(commit.type, commit.files, what_rules_say)
    history.likely(files, what_rules_say)              # {"fix": 0.6, "feat": 0.3, ...}

Naive Bayes over what can be seen without reading contents: kinds of files, lines added and removed, new and renamed
files, names, and what the rules of suggestion.py would say. Evidence is damped, since these facts depend on each other:
where 0.8 is said, people chose the answer in about 80 of 100 held-out commits (benchmarks/commit_scope.py).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from tooling.commit.changes import role_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.commit.changes import CommittedFile

HALF_LIFE: Final = 100
"""Commits after which one counts half."""
ENOUGH: Final = 20
"""Commits from which history is asked at all."""
SHRINK: Final = 2.0
"""Commits that a fact must have been seen in to be believed half."""
MOST_NAMES: Final = 12
_WEIGHTS: Final = {
    "added": 0.2,
    "deleted": 0.2,
    "files": 0.15,
    "folder": 0.15,
    "name": 0.18,
    "net": 0.3,
    "new": 0.3,
    "new tests": 0.25,
    "ratio": 0.2,
    "renamed": 0.2,
    "role": 0.15,
    "roles": 0.5,
    "rules": 0.5,
}
"""How much a fact of each kind counts; with 1 all facts would count as if they were independent."""

Fact = tuple[str, object]


class TypeHistory:
    """Counts of facts per type."""

    def __init__(self) -> None:
        self.commits = 0
        self._types: Counter[str] = Counter()
        self._facts: defaultdict[Fact, Counter[str]] = defaultdict(Counter)

    def learn(self, kind: str, files: Sequence[CommittedFile], ruled: str) -> None:
        """Count one commit, oldest first. ruled: the type that the rules would give it."""
        weight = 2 ** (self.commits / HALF_LIFE)
        self.commits += 1
        self._types[kind] += weight  # type: ignore[assignment]  # counters hold any number
        for fact in set(_facts(files, ruled)):
            self._facts[fact][kind] += weight  # type: ignore[assignment]  # counters hold any number

    def likely(self, files: Sequence[CommittedFile], ruled: str) -> dict[str, float]:
        """Return every type with its likelihood, most likely first; empty where too little was seen."""
        if self.commits < ENOUGH:
            return {}
        now = 2 ** (self.commits / HALF_LIFE)
        whole = sum(self._types.values()) / now
        facts = set(_facts(files, ruled))
        scores: dict[str, float] = {}
        for kind, weight in self._types.items():
            before = (weight / now + 0.3) / (whole + 0.3 * len(self._types))
            score = math.log(before)
            for fact in facts:
                counts = self._facts.get(fact, Counter())
                share = (counts[kind] / now + SHRINK * before) / (sum(counts.values()) / now + SHRINK)
                score += _WEIGHTS[fact[0]] * math.log(share / before)
            scores[kind] = score
        highest = max(scores.values())
        odds = {kind: math.exp(score - highest) for kind, score in scores.items()}
        total = sum(odds.values())
        return {kind: value / total for kind, value in sorted(odds.items(), key=lambda item: (-item[1], item[0]))}


def _facts(files: Sequence[CommittedFile], ruled: str) -> Iterator[Fact]:
    """Yield facts about a change, one per kind and value."""
    roles: Counter[str] = Counter()
    for each in files:
        roles[role_of(each.path)] += max(1, each.churn)
    code = [each for each in files if role_of(each.path) in {"code", "example"}]
    added, deleted = sum(each.added for each in code), sum(each.deleted for each in code)
    yield "rules", ruled
    yield "roles", tuple(sorted(roles))
    for role in roles:
        yield "role", role
    yield "added", _size(added)
    yield "deleted", _size(deleted)
    yield "net", (added > deleted, _size(abs(added - deleted)))
    yield "ratio", round(4 * added / (added + deleted)) if added + deleted else -1
    yield "files", _size(len(files))
    yield "new", min(3, sum(each.status == "A" for each in code))
    yield "new tests", min(2, sum(each.status == "A" for each in files if role_of(each.path) == "test"))
    yield "renamed", min(2, sum(each.status in {"R", "D"} for each in files))
    for each in files[:MOST_NAMES]:
        folder, _, name = each.path.lower().rpartition("/")
        yield "name", name
        yield "folder", folder.partition("/")[0]


def _size(number: int) -> int:
    """Return the number of binary digits: 3 and 4 lines differ, 300 and 400 do not."""
    return number.bit_length()
