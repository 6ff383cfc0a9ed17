"""Share of real and of planted bugs that `areal-review` reports, on cases split before anybody looked.

    python benchmarks/review_recall.py REPOSITORY... [--introduced 14] [--planted 8] [--seed WORD]
        [--split dev|held-out] [--missed]

Real: the commit that brought in what a small fix (review_mined.py) mends, of repositories that are set aside; what the
version before a fix shows is counted by review_fixed.py.
Planted: defects of review_planted.py in files of the newest commit, one per file, many files in one review. A case is
found if something is reported within three lines of it that is not there without it. The hash of a case's name decides
whether it is for development or held out; of what is held out only rates are printed, never a place.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import review_mined
from review_history import NEAR, clean_commits
from review_planted import Edit, plant

from tooling.review.findings import find
from tooling.review.policy import read_policy
from tooling.review.records import is_test
from tooling.review.repository.comparison import ChangedFile, Comparison, commit_alone
from tooling.review.repository.git import ReviewedClone
from tooling.review.repository.side import Side

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 24
"""Files with a defect in one review: the type checker reads the repository once for all of them."""


SET_ASIDE = frozenset(
    [
        "NVIDIA-NeMo+RL",
        "NovaSky-AI+SkyRL",
        "THUDM+slime",
        "huggingface+lighteval",
        "huggingface+peft",
        "langchain-ai+langgraph",
        "pytorch+torchtitan",
        "pytorch+torchtune",
    ]
)
"""Repositories, as `fetch` names them, whose fixes nobody read before the rules were finished."""
FEW_REMOVED, FEW_ADDED = 5, 10
"""Lines of a fix that mends one thing."""


@dataclass(frozen=True)
class Judged:
    """One case with its outcome. `said`: rules that report it."""

    source: str
    """ "introduced", "planted by an edit" or "planted in a new file"."""
    kind: str
    name: str
    held_out: bool
    said: tuple[str, ...]


def is_held_out(name: str) -> bool:
    """Half of all names."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def introduced(mirror: Path, count: int, most_lines: int = 4000) -> Iterator[Judged]:
    """Review the commits that brought in what small fixes mend; larger ones than most_lines are left out."""
    git = ReviewedClone.open(mirror)
    review_mined.MOST_REMOVED, review_mined.MOST_ADDED = FEW_REMOVED, FEW_ADDED
    for case in review_mined.mine(mirror, count, "", 0):
        place = case["introduced"]
        comparison = commit_alone(git, place["commit"])
        if comparison.added + comparison.removed > most_lines:
            continue
        said = [
            each.rule.id
            for each in find(comparison, read_policy(comparison.base))[0]
            if each.place.path == place["path"] and any(abs(line - each.place.line) <= NEAR for line in place["lines"])
        ]
        name = f"{mirror.parent.name} {case['fixed']['commit'][:12]} {case['rule']}"
        yield Judged("introduced", "fix", name, mirror.parent.name in SET_ASIDE, tuple(said))


def wanted(name: str, split: str) -> bool:
    """Whether a case is of the split that is asked for."""
    return split == "both" or (split == "held-out") == is_held_out(name)


def planted(mirror: Path, per_kind: int, split: str, seed: str) -> Iterator[Judged]:
    """Plant defects in the newest commit, at most one per file of a batch, and review each batch once. Another seed
    chooses other files and places."""
    git = ReviewedClone.open(mirror)
    head = git.require("HEAD", "--head")
    base = Side(git, head)
    paths = sorted(path for path in base.paths if path.endswith(".py") and not is_test(path))
    base.load(paths)
    by_kind: defaultdict[str, list[tuple[str, Edit]]] = defaultdict(list)
    for path in paths:
        text = base.text(path) or ""
        for kind, edits in plant(text).items():
            ordered = sorted(edits, key=lambda edit: hashlib.sha256(f"{seed}{path}{edit.start}".encode()).digest())
            by_kind[kind].append((path, ordered[0]))
    chosen: list[tuple[str, Edit]] = []
    for kind, places in sorted(by_kind.items()):
        ordered_places = sorted(places, key=lambda place: hashlib.sha256(f"{seed}{kind}{place[0]}".encode()).digest())
        chosen += ordered_places[:per_kind]
    chosen = [(path, edit) for path, edit in chosen if wanted(f"{mirror.parent.name} {path} {edit.kind}", split)]
    while chosen:
        batch = dict(list(dict(reversed(chosen[: 4 * BATCH])).items())[:BATCH])
        chosen = [(path, edit) for path, edit in chosen if batch.get(path) is not edit]
        yield from _reviewed(git, base, mirror.parent.name, batch)


def _reviewed(git: ReviewedClone, base: Side, repository: str, batch: dict[str, Edit]) -> Iterator[Judged]:
    """Review a batch twice: as edits of files that were right, and as files that are new as a whole."""
    after, without = Side(git, base.where, _parsed=base._parsed), Side(git, base.where, _parsed=base._parsed)
    after._texts.update(base._texts)
    without.__dict__["paths"] = base.paths - set(batch)
    spans: dict[str, range] = {}
    edited, new, right = [], [], []
    for path, edit in batch.items():
        text = base.text(path) or ""
        after._texts[path] = edit.apply(text)
        spans[path] = range(edit.line, edit.line + max(0, edit.apply(text).count("\n") - text.count("\n")) + 1)
        edited.append(ChangedFile(path, path, "M", frozenset(spans[path]), frozenset({edit.line})))
        new.append(ChangedFile(path, path, "A", frozenset(range(1, after._texts[path].count("\n") + 2))))
        right.append(ChangedFile(path, path, "A", frozenset(range(1, text.count("\n") + 2))))
    policy = read_policy(base)
    findings, _ = find(Comparison(base, after, tuple(edited), "planted"), policy)
    fresh, _ = find(Comparison(without, after, tuple(new), "planted"), policy)
    known, _ = find(Comparison(without, base, tuple(right), "as it was"), policy)
    said = {(each.rule.id, each.place.path, each.place.message, each.symbol) for each in known}
    fresh = tuple(
        each for each in fresh if (each.rule.id, each.place.path, each.place.message, each.symbol) not in said
    )
    for path, edit in batch.items():
        name = f"{repository} {path} {edit.kind}"
        span = range(spans[path][0] - NEAR, spans[path][-1] + NEAR + 1)
        for source, found in (("planted by an edit", findings), ("planted in a new file", fresh)):
            near = tuple(each.rule.id for each in found if each.place.path == path and each.place.line in span)
            yield Judged(source, edit.kind, f"{name}:{edit.line}", is_held_out(name), near)


@dataclass(frozen=True)
class Clean:
    """What is reported on commits that no later fix touched."""

    commits: int
    lines: int
    said: tuple[tuple[str, str], ...]
    """Rule, and commit with place and message."""


def clean(mirror: Path, count: int, most_lines: int = 4000) -> Clean:
    """Review the newest clean commits; larger ones than most_lines are left out: they are generated, or vendored."""
    git = ReviewedClone.open(mirror)
    commits, lines, said = 0, 0, []
    for commit in clean_commits(mirror, count + count // 4):
        comparison = commit_alone(git, commit)
        if comparison.added + comparison.removed > most_lines or commits >= count:
            continue
        commits += 1
        lines += comparison.added + comparison.removed
        for each in find(comparison, read_policy(comparison.base))[0]:
            if not each.suppressed:
                place = f"{mirror.parent.name} {commit[:9]} {each.place.path}:{each.place.line}"
                said.append((each.rule.id, f"{place} {each.place.message}"))
    return Clean(commits, lines, tuple(said))


def measure(mirror: Path, introductions: int, per_kind: int, split: str, seed: str) -> list[Judged]:
    """Return all cases of one repository."""
    found = list(introduced(mirror, introductions)) if introductions else []
    return found + (list(planted(mirror, per_kind, split, seed)) if per_kind else [])


def rates(judged: list[Judged]) -> dict[str, dict[str, str]]:
    """Found of all, per kind, for development and held out apart."""
    table: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for held_out in (False, True):
        counts: Counter[str] = Counter()
        hits: Counter[str] = Counter()
        for each in judged:
            if each.held_out is held_out:
                keys = (each.source,) if each.source == "introduced" else (each.source, f"{each.source}: {each.kind}")
                for key in keys:
                    counts[key] += 1
                    hits[key] += bool(each.said)
        for key, count in counts.items():
            table[key]["held out" if held_out else "development"] = f"{hits[key]} of {count}"
    return dict(table)


def main() -> int:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", type=Path, metavar="REPOSITORY")
    parser.add_argument("--introduced", type=int, default=0, help="fixes whose introductions are reviewed (default: 0)")
    parser.add_argument("--planted", type=int, default=8, help="planted defects per kind and repository (default: 8)")
    parser.add_argument("--seed", default="", help="other planted cases: any word (default: none)")
    parser.add_argument("--split", choices=("dev", "held-out", "both"), default="both")
    parser.add_argument("--missed", action="store_true", help="list the cases for development, with what was reported")
    parser.add_argument("--clean", type=int, default=0, help="clean commits per repository (default: none)")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    for each in arguments.repositories:
        if subprocess.run(["git", "-C", str(each), "rev-parse"], capture_output=True, check=False).returncode:
            print(f"error: {each} is no git repository", file=sys.stderr)
            return 2
    with ProcessPoolExecutor(arguments.jobs) as pool:
        asked = [
            pool.submit(measure, each, arguments.introduced, arguments.planted, arguments.split, arguments.seed)
            for each in arguments.repositories
        ]
        quiet = [pool.submit(clean, each, arguments.clean) for each in arguments.repositories if arguments.clean]
        judged = [each for one in asked for each in one.result()]
        reviewed = [each.result() for each in quiet]
    if arguments.missed:
        for each in judged:
            if not each.held_out:
                said = " ".join(sorted(set(each.said)))
                print(f"{'found ' if each.said else 'MISSED'} {each.source} {each.kind:22} {each.name} {said}")
    for rule, place in sorted(pair for one in reviewed for pair in one.said):
        print(f"clean {rule}: {place}")
    lines, alarms = sum(each.lines for each in reviewed), sum(len(each.said) for each in reviewed)
    summary: dict[str, object] = dict(rates(judged))
    if reviewed:
        rate = round(1000 * alarms / max(1, lines), 2)
        counted = Counter(rule for one in reviewed for rule, _ in one.said)
        commits = sum(each.commits for each in reviewed)
        summary["clean"] = {"commits": commits, "lines": lines, "reported": alarms, "per 1,000": rate, "rules": counted}
    print(json.dumps(summary, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
