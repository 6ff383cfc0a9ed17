"""How many small fixes of public repositories replace lines that `areal-review` reports, and no longer reports after.

    python benchmarks/review_fixed.py MIRRORS [--facts FILE] [--set development|held-out] [--list] [--jobs N]
    python benchmarks/review_fixed.py MIRRORS --add OWNER/NAME... --set held-out [--fixes 40]

MIRRORS is a folder of clones, OWNER+NAME/repo. A fix is a commit that says so and replaces at most five lines of code,
adding ten (review_mined.py). It counts if rules of one file or ruff report something within three lines of what it
replaces in the version before, and not the same thing in the version after. That is weaker than to find what brought
the bug in, but needs no history, and a repository of any size takes seconds.

FILE (benchmarks/review_fixed.json) says which fixes were taken, so that a later run asks about the same ones: commits,
paths and lines. The set of a repository was chosen by its name, before anybody looked at its fixes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import review_mined
from review_history import NEAR

from tooling.review.findings import ReviewFinding, _places
from tooling.review.linter import lint
from tooling.review.repository.git import ReviewedClone
from tooling.review.repository.side import Side
from tooling.review.rules.catalogue import RULES

FACTS = Path(__file__).with_suffix(".json")
FEW_REMOVED, FEW_ADDED = 5, 10
"""Lines of a fix that mends one thing."""
MOST_PARSED = 2500
"""Modules that are kept between the fixes of one repository."""

Facts = dict[str, dict[str, Any]]
"""OWNER/NAME -> {"set": ..., "fixes": {commit: {path: lines}}}."""


def clone(mirrors: Path, name: str) -> Path:
    """Return the clone of a repository."""
    return mirrors / name.replace("/", "+") / "repo"


def mine(repository: Path, count: int) -> dict[str, dict[str, list[int]]]:
    """Return the newest small fixes: commit -> path -> lines that it replaces, in the version before."""
    review_mined.MOST_REMOVED, review_mined.MOST_ADDED = FEW_REMOVED, FEW_ADDED
    found: dict[str, dict[str, list[int]]] = {}
    log = review_mined.git(repository, "log", "--first-parent", "--no-merges", "--format=%H%x1f%s").splitlines()
    for commit, _, subject in (line.partition("\x1f") for line in log):
        if not review_mined.SAYS_FIX.search(subject) or review_mined.NO_BUG.search(subject):
            continue
        removed = review_mined.removed_lines(repository, commit)
        if removed:
            found[commit[:12]] = removed
        if len(found) >= count:
            break
    return found


def reported(before: Side, after: Side, replaced: dict[str, list[int]]) -> list[str]:
    """Return the rules that report something near the replaced lines, and not the same after the fix."""
    sides = {"before": before, "after": after}
    texts = {f"{name}/{path}": side.text(path) or "" for name, side in sides.items() for path in replaced}
    of_ruff, _ = lint({path: text for path, text in texts.items() if text})
    said: list[str] = []
    for path, lines in replaced.items():
        found: dict[str, list[ReviewFinding]] = {}
        rules = [rule for rule in RULES.values() if rule.in_change is None]
        for name, side in sides.items():
            rows = {path: [(rule, replace(at, path=path)) for rule, at in of_ruff.get(f"{name}/{path}", ())]}
            found[name] = _places(rules, side, path, rows, {})
            if name == "before":
                found[name] = [
                    each for each in found[name] if any(abs(each.place.line - line) <= NEAR for line in lines)
                ]
                rules = [rule for rule in rules if any(each.rule is rule for each in found[name])]
        left = {(each.rule.id, each.place.message, each.code) for each in found["after"]}
        said += [each.rule.id for each in found["before"] if (each.rule.id, each.place.message, each.code) not in left]
    return said


def measure(mirrors: Path, name: str, fixes: dict[str, dict[str, list[int]]]) -> dict[str, list[str] | None]:
    """Return what is reported for each fix of a repository; None for commits that its clone lacks."""
    git, parsed = ReviewedClone.open(clone(mirrors, name)), dict[str, Any]()
    found: dict[str, list[str] | None] = {}
    for commit, replaced in fixes.items():
        tip, parent = git.commit(commit), git.commit(f"{commit}^")
        if tip is None or parent is None:
            found[commit] = None
            continue
        found[commit] = reported(Side(git, parent, _parsed=parsed), Side(git, tip, _parsed=parsed), replaced)
        if len(parsed) > MOST_PARSED:
            parsed.clear()
    return found


def main() -> int:
    """Print how many fixes are reported, by repository."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("--facts", type=Path, default=FACTS)
    parser.add_argument("--set", choices=("development", "held-out"))
    parser.add_argument("--add", nargs="+", default=[], metavar="OWNER/NAME", help="take fixes of these into the facts")
    parser.add_argument("--fixes", type=int, default=40, help="fixes per added repository (default: 40)")
    parser.add_argument("--list", action="store_true", help="name the fixes of the development set")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    facts: Facts = json.loads(arguments.facts.read_text(encoding="utf-8")) if arguments.facts.is_file() else {}
    if arguments.add:
        if not arguments.set:
            parser.error("--add needs --set: whether rules may be developed on these")
        for name in arguments.add:
            facts[name] = {"set": arguments.set, "fixes": mine(clone(arguments.mirrors, name), arguments.fixes)}
        rows = (f"{json.dumps(name)}:{json.dumps(facts[name], separators=(',', ':'))}" for name in sorted(facts))
        arguments.facts.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
        return 0
    asked = {name: each for name, each in sorted(facts.items()) if arguments.set in {None, each["set"]}}
    present = [name for name in asked if clone(arguments.mirrors, name).is_dir()]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        made = [pool.submit(measure, arguments.mirrors, name, asked[name]["fixes"]) for name in present]
        outcomes = {name: each.result() for name, each in zip(present, made, strict=True)}
    total, hits = Counter[str](), Counter[str]()
    for name, found in outcomes.items():
        chosen = asked[name]["set"]
        known = {commit: said for commit, said in found.items() if said is not None}
        total[chosen] += len(known)
        hits[chosen] += sum(map(bool, known.values()))
        print(f"{name} ({chosen}): {sum(map(bool, known.values()))} of {len(known)}, {len(found) - len(known)} absent")
        if arguments.list and chosen == "development":
            for commit, said in known.items():
                print(f"  {commit[:10]} {'reported ' + ' '.join(sorted(set(said))) if said else 'missed'}")
    for name in sorted(set(asked) - set(present)):
        print(f"{name}: skipped, {clone(arguments.mirrors, name)} is absent")
    print(json.dumps({chosen: f"{hits[chosen]} of {total[chosen]}" for chosen in sorted(total)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
