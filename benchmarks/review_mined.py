"""Cases for review_history.py, from the history of any repository: fixes, and the commits that brought the bugs in.

    python benchmarks/review_mined.py REPOSITORY [--fixes 20] [--since DATE] [--skip N] > CASES.json

A fix is a commit whose subject says so, that replaces a few lines of code outside tests. The commit that `git blame`
names for most of the lines that it replaced is taken to have brought the bug in. Both are heuristics: some of these
"bugs" are missing features or changes of mind, and what no rule can see is in here too. The share that is found says
how much of everyday fixing the rules would have said before; not how well a rule finds its own kind of bug.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

SAYS_FIX = re.compile(r"\b(fix(es|ed)?|bug|crash|hang|deadlock|incorrect|wrong|broken)\b", re.IGNORECASE)
NO_BUG = re.compile(
    r"\b(ci|typos?|docs?|readme|lint|format|test|tests|style|deps?|bump|docstring|example|workflow)\b", re.I
)
MOST_FILES, MOST_REMOVED, MOST_ADDED = 3, 12, 60
"""A larger change does more than to fix one bug."""
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def git(mirror: Path, *arguments: str) -> str:
    """Output of git; empty when it fails."""
    done = subprocess.run(["git", "-C", str(mirror), *arguments], capture_output=True, check=False)
    return done.stdout.decode(errors="replace")


def removed_lines(mirror: Path, commit: str) -> dict[str, list[int]] | None:
    """Path -> lines of code that the commit replaced; None when it is no small fix of code."""
    patch = git(mirror, "diff-tree", "-p", "-U0", "--no-commit-id", "--no-renames", commit, "--", "*.py")
    found: dict[str, list[int]] = {}
    path, line, added = "", 0, 0
    for text in patch.splitlines():
        hunk = HUNK.match(text)
        if text.startswith("--- "):
            path = text.removeprefix("--- ").removeprefix("a/")
        elif hunk:
            line = int(hunk[1])
        elif text.startswith("+") and not text.startswith("+++"):
            added += 1
        elif text.startswith("-"):
            said = text[1:].strip()
            if said and not said.startswith(("#", '"""', "import ", "from ")) and not is_test(path):
                found.setdefault(path, []).append(line)
            line += 1
    few = 1 <= sum(map(len, found.values())) <= MOST_REMOVED and len(found) <= MOST_FILES and added <= MOST_ADDED
    return found if few and "/dev/null" not in found else None


def is_test(path: str) -> bool:
    """Whether a path is of a test."""
    return bool(re.search(r"(^|/)tests?/|(^|/)test_|_test\.py$|conftest", path))


def brought_in(mirror: Path, fix: str, removed: dict[str, list[int]]) -> dict[str, Any] | None:
    """Commit, path and lines of what the fix replaced, as they were when they came in."""
    places: Counter[tuple[str, str]] = Counter()
    lines: dict[tuple[str, str], list[int]] = {}
    for path, numbers in removed.items():
        ranges = [part for number in numbers for part in ("-L", f"{number},{number}")]
        blamed = git(mirror, "blame", "--line-porcelain", "-w", *ranges, f"{fix}^", "--", path)
        commit, origin = "", 0
        for text in blamed.splitlines():
            head = re.match(r"^([0-9a-f]{40}) (\d+) \d+", text)
            if head:
                commit, origin = head[1], int(head[2])
            elif text.startswith("filename "):
                key = (commit, text.removeprefix("filename "))
                places[key] += 1
                lines.setdefault(key, []).append(origin)
    if not places:
        return None
    commit, path = places.most_common(1)[0][0]
    if not git(mirror, "rev-parse", "--verify", "--quiet", f"{commit}^"):
        return None  # the first commit of all: everything came in with it
    return {"commit": commit, "path": path, "lines": sorted(lines[commit, path])}


def mine(mirror: Path, count: int, since: str, skip: int) -> list[dict[str, Any]]:
    """Return fixes, the newest first."""
    window = [f"--since={since}"] if since else []
    log = git(mirror, "log", "--first-parent", "--no-merges", *window, "--format=%H%x1f%s").splitlines()
    cases: list[dict[str, Any]] = []
    for number, (commit, _, subject) in enumerate(line.partition("\x1f") for line in log):
        if number < skip or not SAYS_FIX.search(subject) or NO_BUG.search(subject):
            continue
        removed = removed_lines(mirror, commit)
        place = brought_in(mirror, commit, removed) if removed else None
        if place is not None:
            fixed = {"commit": commit, "subject": subject}
            cases.append({"id": commit[:9], "rule": subject[:70], "fixed": fixed, "introduced": place})
        if len(cases) >= count:
            break
    return cases


def main() -> int:
    """Print the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--fixes", type=int, default=20, help="number of cases (default: 20)")
    parser.add_argument("--since", default="", metavar="DATE", help="the oldest fix")
    parser.add_argument("--skip", type=int, default=0, help="number of newest commits to leave out")
    arguments = parser.parse_args()
    if not git(arguments.repository, "rev-parse", "--git-dir"):
        print(f"error: {arguments.repository} is no git repository", file=sys.stderr)
        return 2
    cases = mine(arguments.repository, arguments.fixes, arguments.since, arguments.skip)
    print(json.dumps(cases, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
