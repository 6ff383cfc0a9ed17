"""What `areal-review` finds in the history of public repositories: known bugs where they came in, and noise elsewhere.

    python benchmarks/review_history.py CASES.json MIRROR [--clean 100] [--judged JUDGED.json] [--json]

CASES.json is a list of {id, rule, buggy: {commit, path, findings}, fixed: {commit}, introduced: {commit, path, lines,
parent}}; MIRROR is a git folder, bare or not, that has these commits; cases whose commits it lacks are skipped and
named. A case is found if the review of the commit that brought the bug in reports something near the buggy line of the
same file (or, where the line is of the whole file, in that file). Clean commits are the latest whose changed lines no
later fix touched: everything reported there is counted as a false alarm, per 1,000 changed lines, but for what
JUDGED.json ({"COMMIT PATH:LINE RULE": "right" | "wrong"}) says is right.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

NEAR = 3
"""Lines between a finding and the place of the case."""


def git(mirror: Path, *arguments: str) -> str:
    """Output of git; empty when it fails."""
    done = subprocess.run(["git", "-C", str(mirror), *arguments], capture_output=True, check=False)
    return done.stdout.decode(errors="replace")


def review(mirror: Path, commit: str) -> tuple[dict[str, Any], float]:
    """Return the report of one commit, and the seconds it took."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "tooling.review", "--repo", str(mirror), "--commit", commit, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parent.parent
    )
    report = json.loads(done.stdout)
    if "findings" not in report:
        raise SystemExit(f"{commit}: {report.get('error')}")
    return report, time.perf_counter() - started


def judge(case: dict[str, Any], mirror: Path) -> tuple[str, list[str]]:
    """("found" | "missed" | "skipped", what was reported in the file)."""
    place = case["introduced"]
    if not git(mirror, "rev-parse", "--verify", "--quiet", f"{place['commit']}^{{commit}}"):
        return "skipped", ["the mirror lacks its commit"]
    report, _ = review(mirror, place["commit"])
    here = [each for each in report["findings"] if each["path"] == place["path"]]
    lines = place.get("lines") or [1]
    near = [each for each in here if min(abs(each["line"] - line) for line in lines) <= NEAR]
    return ("found" if near else "missed"), [f"{each['rule']}:{each['line']}" for each in near or here]


def clean_commits(mirror: Path, count: int) -> list[str]:
    """Return the latest changes of code that are not fixes, and whose files no later fix touched."""
    log = [line.split("\x1f") for line in git(mirror, "log", "--first-parent", "--format=%H%x1f%s").splitlines()]
    fixed: Counter[str] = Counter()
    clean: list[str] = []
    for commit, subject in log:
        touched = git(mirror, "diff-tree", "-r", "--no-commit-id", "--name-only", commit, "--", "*.py").split("\n")
        code = [path for path in touched if path and "test" not in path]
        if re.match(r"\[?(bug|hot)?fix", subject.lower()):
            fixed.update(code)
        elif code and not any(fixed[path] for path in code):
            clean.append(commit)
        if len(clean) >= count:
            break
    return clean


def noise(mirror: Path, commits: list[str], judged: dict[str, str]) -> dict[str, Any]:
    """Count false alarms on clean commits. judged: findings that somebody read."""
    rules: Counter[str] = Counter()
    at: list[str] = []
    alarms, lines, seconds, right = [], 0, [], 0
    for commit in commits:
        report, took = review(mirror, commit)
        seconds.append(took)
        lines += report["CHANGE_ANALYSIS_REPORT"]["added"] + report["CHANGE_ANALYSIS_REPORT"]["removed"]
        alarms.append(len(report["findings"]))
        rules.update(each["rule"] for each in report["findings"])
        keys = [f"{commit[:9]} {each['path']}:{each['line']} {each['rule']}" for each in report["findings"]]
        right += sum(judged.get(key) == "right" for key in keys)
        at += [
            f"{commit[:9]} {each['path']}:{each['line']} {each['rule']}: {each['message']}"
            for each in report["findings"]
        ]
    return {
        "commits": len(commits),
        "changed_lines": lines,
        "alarms": sum(alarms),
        "right": right,
        "commits_with_alarms": sum(map(bool, alarms)),
        "per_1000_lines": round(1000 * (sum(alarms) - right) / max(1, lines), 2),
        "rules": dict(rules.most_common()),
        "median_seconds": round(statistics.median(seconds), 2) if seconds else None,
        "slowest_seconds": round(max(seconds, default=0), 2),
        "at": at,
    }


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("mirror", type=Path)
    parser.add_argument("--clean", type=int, default=100, help="number of clean commits (default: 100)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--judged", type=Path, metavar="FILE", help="findings on clean commits that were read")
    arguments = parser.parse_args()
    if not git(arguments.mirror, "rev-parse", "--git-dir"):
        print(f"skipped: {arguments.mirror} is no git repository")
        return 0
    cases = json.loads(arguments.cases.read_text(encoding="utf-8"))
    judged = {case["id"]: (case["rule"], *judge(case, arguments.mirror)) for case in cases}
    read = json.loads(arguments.judged.read_text(encoding="utf-8")) if arguments.judged else {}
    quiet = noise(arguments.mirror, clean_commits(arguments.mirror, arguments.clean), read)
    verdicts = Counter(verdict for _, verdict, _ in judged.values())
    if arguments.json:
        print(json.dumps({"cases": judged, "verdicts": verdicts, "clean": quiet}, indent=1))
        return 0
    for name, (rule, verdict, said) in judged.items():
        print(f"{name} {rule}: {verdict} {', '.join(said[:4])}")
    print(f"found {verdicts['found']} of {verdicts['found'] + verdicts['missed']}, {verdicts['skipped']} skipped")
    print("\n".join(f"{key}: {value}" for key, value in quiet.items() if key != "at"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
