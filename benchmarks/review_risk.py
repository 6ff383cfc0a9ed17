"""How well the risk level of `areal-review` ranks the changes that were fixed later, next to simple rankings.

    python benchmarks/review_risk.py REPOSITORY... [--days 60] [--newest 400] [--json]

A change counts as bad if a later fix (its subject says so) replaced a line of it within --days; `git blame` of what
the fix removed tells whose it was. Taken are the newest changes of code that are old enough.
AUC: how often a bad change is ranked above a good one; 0.5 is chance. No rule runs: the level is that of size, domains
and signals alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tooling.review.analysis import Level, assess
from tooling.review.policy import Policy, read_policy, touched
from tooling.review.repository.comparison import Comparison, commit_alone
from tooling.review.repository.git import ReviewedClone

DAY = 86_400
FIX = re.compile(r"\b(fix(es|ed)?|bug|crash|hang|deadlock|incorrect|wrong|broken)\b", re.IGNORECASE)
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? ")
MOST_REMOVED = 200
"""A fix that removes more rewrites something."""


@dataclass(frozen=True)
class Change:
    """One commit with what ranks it."""

    bad: bool
    lines: int
    files: int
    heaviest: int
    score: float
    level: Level


def git(mirror: Path, *arguments: str) -> str:
    """Output of git; empty when it fails."""
    done = subprocess.run(["git", "-C", str(mirror), *arguments], capture_output=True, check=False)
    return done.stdout.decode(errors="replace")


def fixed_by(mirror: Path, fix: str) -> set[str]:
    """Return the commits whose lines of code a fix replaced."""
    patch = git(mirror, "diff-tree", "-p", "-U0", "--no-commit-id", "--no-renames", fix, "--", "*.py")
    ranges: defaultdict[str, list[str]] = defaultdict(list)
    path, removed = "", 0
    for line in patch.splitlines():
        hunk = HUNK.match(line)
        if line.startswith("--- a/"):
            path = line.removeprefix("--- a/")
        elif hunk and hunk[2] != "0" and not re.search(r"(^|/)tests?/|test_", path):
            count = int(hunk[2] or 1)
            removed += count
            ranges[path] += ["-L", f"{hunk[1]},+{count}"]
    if removed > MOST_REMOVED:
        return set()
    blamed = (
        git(mirror, "blame", "--porcelain", "-w", *where, f"{fix}^", "--", name) for name, where in ranges.items()
    )
    return {match[1] for text in blamed for match in re.finditer(r"^([0-9a-f]{40}) \d+ \d+ \d+$", text, re.MULTILINE)}


def changes(mirror: Path, days: int, newest: int) -> list[Change]:
    """Return the newest changes of code that are old enough, with whether they were fixed."""
    log = git(mirror, "log", "--first-parent", "--no-merges", "--format=%H%x1f%ct%x1f%s", "--", "*.py").splitlines()
    rows = [line.split("\x1f", 2) for line in log]
    when = {commit: int(at) for commit, at, _ in rows}
    end = max(when.values(), default=0)
    taken = [commit for commit, at, _ in rows if int(at) <= end - days * DAY][:newest]
    oldest = min((when[commit] for commit in taken), default=0)
    bad: set[str] = set()
    for commit, at, subject in rows:
        if FIX.search(subject) and int(at) >= oldest:
            bad |= {
                each for each in fixed_by(mirror, commit) if each in when and 0 < int(at) - when[each] <= days * DAY
            }
    reader = ReviewedClone.open(mirror)
    found = (measured(commit_alone(reader, commit), bad=commit in bad) for commit in taken)
    return [each for each in found if each is not None]


def measured(comparison: Comparison, *, bad: bool) -> Change | None:
    """Return what ranks a change; None for one that adds no code outside tests."""
    policy: Policy = read_policy(comparison.base)
    domains = touched(comparison, policy.domains)
    risk = assess(comparison, domains, ())
    code = [each for each in comparison.files if each.path.endswith(".py") and "test" not in each.path]
    lines = sum(len(each.added) for each in code)
    heaviest = max((each.domain.weight for each in domains), default=0)
    return Change(bad, lines, len(code), heaviest, risk.score, risk.level) if lines else None


def auc(scores: list[tuple[float, bool]]) -> float:
    """Share of pairs of a bad and a good change that are ranked right; ties count half."""
    bad = [score for score, is_bad in scores if is_bad]
    good = [score for score, is_bad in scores if not is_bad]
    right = sum((one > other) + 0.5 * (one == other) for one in bad for other in good)
    return right / max(1, len(bad) * len(good))


def summary(found: list[Change]) -> dict[str, object]:
    """AUCs, and the share of bad changes per level."""
    levels: defaultdict[str, list[bool]] = defaultdict(list)
    for each in found:
        levels[each.level.name].append(each.bad)
    return {
        "changes": len(found),
        "bad": sum(each.bad for each in found),
        "auc": {
            "areal-review": round(auc([(each.score + each.level / 1000, each.bad) for each in found]), 3),
            "lines added": round(auc([(each.lines, each.bad) for each in found]), 3),
            "files changed": round(auc([(each.files, each.bad) for each in found]), 3),
            "heaviest domain": round(auc([(each.heaviest, each.bad) for each in found]), 3),
        },
        "bad by level": {
            level.name: f"{sum(levels[level.name])}/{len(levels[level.name])}" for level in sorted(Level, reverse=True)
        },
    }


def main() -> int:
    """Print one summary per repository, and one of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", type=Path, metavar="REPOSITORY")
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--newest", type=int, default=400, help="changes per repository (default: 400)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    every: list[Change] = []
    results = {}
    for repository in arguments.repositories:
        found = changes(repository, arguments.days, arguments.newest)
        every += found
        results[str(repository)] = summary(found)
    results["all"] = summary(every)
    if arguments.json:
        print(json.dumps(results, indent=1))
        return 0
    for name, result in results.items():
        print(name)
        print("\n".join(f"  {key}: {value}" for key, value in result.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
