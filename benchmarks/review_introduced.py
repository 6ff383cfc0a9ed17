"""Share of the bugs in a repository's history that `areal-review` reports in the commit that brought them in.

    python benchmarks/review_introduced.py REPOSITORY [--facts FILE] [--set development|held-out] [--list]

FILE (benchmarks/review_introduced.json) lists bugs of inclusionAI/AReaL that fixes of it mend and that code, documents
or settings give away: kind, the fix, the commit that brought the bug in, its path and line. The list was written from
the diffs of the fixes, before any of these commits was reviewed, and corrected where a line or commit was wrong. A bug
whose commit the repository lacks is skipped and named. A bug counts as reported if something is said of its
path within three lines. The hash of the fix decides whether a bug is for development or held out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from review_history import NEAR

from tooling.cli.errors import UsageError
from tooling.review.findings import find
from tooling.review.policy import read_policy
from tooling.review.repository.comparison import commit_alone
from tooling.review.repository.git import ReviewedClone

FACTS = Path(__file__).with_suffix(".json")


def set_of(fix: str) -> str:
    """Return "development" or "held-out", half of all fixes each."""
    return "held-out" if hashlib.sha256(fix.encode()).digest()[0] % 2 else "development"


def main() -> int:
    """Review each commit once, and print what is found of what came with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--facts", type=Path, default=FACTS)
    parser.add_argument("--set", choices=("development", "held-out"))
    parser.add_argument("--list", action="store_true", help="print each bug for development, and what is said of it")
    arguments = parser.parse_args()
    try:
        git = ReviewedClone.open(arguments.repository)
    except UsageError as error:
        parser.error(f"{arguments.repository}: no repository; name a clone of inclusionAI/AReaL ({error})")
    by_commit: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for bug in json.loads(arguments.facts.read_text(encoding="utf-8")):
        if arguments.set in (None, set_of(bug["fixed"])):
            by_commit[bug["commit"]].append(bug)
    bugs, found, notes = Counter[str](), Counter[str](), set[str]()
    for commit, some in by_commit.items():
        if git.commit(commit) is None:
            print(f"skipped, no such commit: {commit} {' '.join(bug['path'] for bug in some)}", file=sys.stderr)
            continue
        comparison = commit_alone(git, commit)
        said, silent = find(comparison, read_policy(comparison.base))
        for note in silent:
            if note not in notes:
                print(note, file=sys.stderr)
            notes.add(note)
        for bug in some:
            near = [each for each in said if each.place.path == bug["path"]]
            rules = {each.rule.id for each in near if abs(each.place.line - int(bug["line"])) <= NEAR}
            name = set_of(bug["fixed"])
            bugs[name] += 1
            found[name] += bool(rules)
            if arguments.list and name == "development":
                print(f"{bug['kind']} {commit} {bug['path']}:{bug['line']} {' '.join(sorted(rules)) or 'MISSED'}")
    print(json.dumps({name: f"{found[name]} of {count}" for name, count in sorted(bugs.items())}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
