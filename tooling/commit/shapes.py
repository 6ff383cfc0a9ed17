"""Says what the shape of a change, its files and lines without their contents, tells about its type.

    evidence(files)["docs"]      # 2.1: e ** 2.1 times as likely as among all changes, before anything else is known

A logistic regression with few facts, fitted by `benchmarks/commit_fit.py` on up to 500 commits each of nine
repositories. What diffs hold (definitions, conditions, words) was tried as well and says nothing more about another
repository.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tooling.commit.changes import role_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.commit.changes import CommittedFile, Role

USUAL: Final = {
    "build": 0.012,
    "chore": 0.165,
    "ci": 0.057,
    "docs": 0.100,
    "feat": 0.196,
    "fix": 0.290,
    "perf": 0.010,
    "refactor": 0.085,
    "style": 0.012,
    "test": 0.073,
}
"""Share of each type in those repositories."""
# fmt: off
_WEIGHTS: Final = {
    "build": (2.43, -0.85, -0.74, 0.57, 3.08, 0.44, -0.16, -0.00, -0.29, -0.79, 0.06, -0.27),
    "chore": (3.01, 0.84, -0.13, 0.94, 1.26, 0.38, -0.13, -0.08, 0.25, -0.64, 0.34, 0.06),
    "ci": (1.83, -0.34, 0.41, 4.42, 0.58, 0.20, -0.08, -0.19, 0.54, -0.13, 0.34, -0.29),
    "docs": (3.05, 3.25, -2.27, 0.75, -0.74, -0.06, -0.06, -0.24, 1.35, 0.04, -0.05, -0.11),
    "feat": (2.50, 2.19, -0.04, 0.12, -0.47, -1.45, 0.34, -0.13, 0.51, 1.23, 0.07, -0.33),
    "fix": (3.92, 0.30, 0.79, -0.50, -0.10, -1.09, 0.14, 0.04, -1.00, -0.16, -0.34, 0.02),
    "perf": (3.34, -0.83, 0.11, -0.64, -1.01, -0.76, 0.15, 0.43, -0.88, 0.40, -0.49, -0.51),
    "refactor": (3.17, -1.00, -1.14, -2.20, -1.45, -0.21, -0.05, 0.51, -0.02, 0.73, -0.36, 1.07),
    "style": (3.30, -1.14, -0.14, -1.41, -0.46, 0.53, -0.14, -0.00, -0.57, -0.18, 0.46, -0.22),
    "test": (1.87, -2.42, 3.14, -2.06, -0.70, 2.01, -0.01, -0.32, 0.12, -0.50, -0.03, 0.58),
}
# fmt: on
"""Per type: a constant, then the weight of each fact, in the order of `facts`."""
_CODE: Final[frozenset[Role]] = frozenset({"code", "example"})


def facts(files: Sequence[CommittedFile]) -> tuple[float, ...]:
    """Return the facts about a change, in the order of the weights."""
    lines: dict[Role, int] = {}
    for each in files:
        role = role_of(each.path)
        lines[role] = lines.get(role, 0) + max(1, each.churn)
    whole = sum(lines.values()) or 1
    code = [each for each in files if role_of(each.path) in _CODE]
    deleted = sum(each.deleted for each in code)
    net = sum(each.added for each in code) - deleted
    return (
        *(lines.get(role, 0) / whole for role in ("docs", "test", "ci", "build")),
        float(not code),
        math.copysign(math.log1p(abs(net)), net),
        math.log1p(deleted),
        math.log1p(sum(each.status == "A" for each in code)),
        float("test" in lines),
        math.log1p(len(files)),
        math.log1p(sum(each.status == "R" for each in files)),
    )


def evidence(files: Sequence[CommittedFile]) -> dict[str, float]:
    """Return for each type the logarithm of how much more likely it is than among all changes."""
    found = facts(files)
    scores = {
        kind: constant + sum(weight * fact for weight, fact in zip(weights, found, strict=True))
        for kind, (constant, *weights) in _WEIGHTS.items()
    }
    # likelihoods of types add up to 1: sum of USUAL * e ** (score - level)
    highest = max(scores.values())
    level = highest + math.log(sum(USUAL[kind] * math.exp(score - highest) for kind, score in scores.items()))
    return {kind: score - level for kind, score in scores.items()}
