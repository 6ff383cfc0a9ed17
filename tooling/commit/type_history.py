"""Learns which type people choose for which kind of change, from the history of the repository.

    history = TypeHistory()
    for commit in oldest_first: history.learn(commit.type, commit.files)
    history.likely(files)                              # {"fix": 0.6, "feat": 0.3, ...}

What changes of this shape are everywhere (shapes.py), times what people here make of it: how often each type is chosen,
and naive Bayes over files by kind, folder, name and state. Lines of earlier commits are not needed: counting them is
most of what reading a history costs. Evidence is damped, since these facts depend on each other.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from tooling.commit.changes import role_of
from tooling.commit.shapes import USUAL, evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.commit.changes import CommittedFile

HALF_LIFE: Final = 100
"""Commits after which one counts half."""
OWN: Final = 3.0
"""How much more a commit of the same author counts: people disagree with each other more than with themselves."""
PRIOR: Final = 5.0
"""Commits that the usual shares of types count as."""
SHRINK: Final = 2.0
"""Commits that a fact must have been seen in to be believed half."""
MOST_NAMES: Final = 12
_WEIGHTS: Final = {
    "files": 0.12,
    "folder": 0.12,
    "name": 0.14,
    "new": 0.24,
    "new tests": 0.2,
    "renamed": 0.16,
    "role": 0.12,
    "roles": 0.4,
}
"""How much a fact of each kind counts; with 1 all facts would count as if they were independent."""

Fact = tuple[str, object]


class TypeHistory:
    """Counts of facts per type."""

    def __init__(self) -> None:
        self.commits = 0
        self._types: defaultdict[str, float] = defaultdict(float)
        self._facts: defaultdict[Fact, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def learn(self, kind: str, files: Sequence[CommittedFile], *, own: bool = False) -> None:
        """Count one commit, oldest first. own: whether its author is the person who asks."""
        self.commits += 1
        weight = 2 ** (self.commits / HALF_LIFE) * (OWN if own else 1.0)
        self._types[kind] += weight
        for fact in set(_facts(files)):
            self._facts[fact][kind] += weight

    def likely(self, files: Sequence[CommittedFile]) -> dict[str, float]:
        """Return every type with its likelihood, most likely first; they add up to 1."""
        now = 2 ** (self.commits / HALF_LIFE)
        whole = sum(self._types.values()) / now
        shape, facts = evidence(files), set(_facts(files))
        scores: dict[str, float] = {}
        for kind in {*self._types, *USUAL}:
            before = (self._types.get(kind, 0.0) / now + PRIOR * USUAL.get(kind, 0.0)) / (whole + PRIOR)
            score = math.log(before) + shape.get(kind, 0.0)
            for fact in facts:
                counts: Mapping[str, float] = self._facts.get(fact, {})
                share = (counts.get(kind, 0.0) / now + SHRINK * before) / (sum(counts.values()) / now + SHRINK)
                score += _WEIGHTS[fact[0]] * math.log(share / before)
            scores[kind] = score
        highest = max(scores.values())
        odds = {kind: math.exp(score - highest) for kind, score in scores.items()}
        total = sum(odds.values())
        return {kind: value / total for kind, value in sorted(odds.items(), key=lambda item: (-item[1], item[0]))}


def _facts(files: Sequence[CommittedFile]) -> Iterator[Fact]:
    """Yield facts about a change, one per kind and value."""
    roles = Counter(role_of(each.path) for each in files)
    code = [each for each in files if role_of(each.path) in {"code", "example"}]
    yield "roles", tuple(sorted(roles))
    for role in roles:
        yield "role", role
    yield "files", len(files).bit_length()
    # Histories are read without renames: there a renamed file is a new one and one that is gone
    yield "new", min(3, sum(each.status in {"A", "R"} for each in code))
    yield "new tests", min(2, sum(each.status in {"A", "R"} for each in files if role_of(each.path) == "test"))
    yield "renamed", min(2, sum(each.status in {"R", "D"} for each in files))
    for each in files[:MOST_NAMES]:
        folder, _, name = each.path.lower().rpartition("/")
        yield "name", name
        yield "folder", folder.partition("/")[0]
