"""How often `areal-commit suggest` says what people chose, next to simple baselines.

    python benchmarks/commit_scope.py COMMITS.json [--history REPOSITORY] [--held-out 0.5] [--json]
    python benchmarks/commit_scope.py --history REPOSITORY [--held-out 0.5] [--json]

COMMITS.json: a list of {"hash", "date", "type", "scope", "conventional", "files": [{"path", "status", "added",
"deleted"}]}. Commits with a conventional header are taken in the order of their dates; the newest part is held out, and
each of these is predicted from those before it only. With --history, the commits of a clone that are older than the
oldest of the file are known too, as they are to a person who runs the command there; without a file, all of its commits
are the cases.

"relaxed" counts another spelling and a scope that contains or is contained in the right one ("proxy", "openai-proxy").
"where sure" is the share that is right among answers of 60 % confidence or more. Symbols of the diff are not used: the
file has none. People disagree with each other, so nothing reaches 100 %.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.commit.changes import CommittedFile, commits
from tooling.commit.habits import Habits
from tooling.commit.message import parse
from tooling.commit.settings import TYPES, folded
from tooling.commit.suggestion import Guess, guess_type
from tooling.commit.type_history import TypeHistory

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Case:
    """One commit, and what its author chose."""

    files: tuple[CommittedFile, ...]
    type: str
    scope: str


def read_cases(path: Path) -> tuple[list[Case], str]:
    """Return the conventional commits of the file, oldest first, and the hash of the oldest commit."""
    rows = sorted(json.loads(path.read_text(encoding="utf-8")), key=lambda row: row["date"])
    cases = [
        Case(tuple(map(_file, row["files"])), row["type"], folded(row["scope"] or ""))
        for row in rows
        if row["conventional"] and row["files"]
    ]
    return cases, rows[0]["hash"]


def _file(row: dict[str, Any]) -> CommittedFile:
    return CommittedFile(row["path"], row["status"][:1], row["added"] or 0, row["deleted"] or 0)


def older_cases(repository: Path, newest: str) -> list[Case]:
    """Conventional commits of a history, oldest first."""
    found = []
    for commit in reversed(commits(repository, newest, files=True)):
        message = parse(commit.message, merge=len(commit.parents) > 1)
        if message.kind == "conventional" and message.type.lower() in TYPES and commit.files:
            scope = message.scopes[0] if message.scopes else ""
            found.append(Case(commit.files, message.type.lower(), folded(scope)))
    return found


# ------------------------------------------------------------------------------- ways to predict; all learn one by one


class Omit:
    """Never a scope."""

    def learn(self, case: Case) -> None: ...

    def scopes(self, case: Case) -> list[str]:
        return [""]


class Frequent:
    """What was chosen most often so far, whatever changes."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def learn(self, case: Case) -> None:
        self.seen[case.scope] += 1

    def scopes(self, case: Case) -> list[str]:
        return [name for name, _ in self.seen.most_common(3)] or [""]


class Folder:
    """A fixed table of paths: the folder below the package that most files are in."""

    def learn(self, case: Case) -> None: ...

    def scopes(self, case: Case) -> list[str]:
        votes = Counter(_folder(each.path) for each in case.files)
        return [name for name, _ in votes.most_common(3)]


def _folder(path: str) -> str:
    parts = folded(path).split("/")
    if parts[0] in {"docs", "examples", "tests"}:
        return parts[0]
    if parts[0] == ".github":
        return "ci"
    return parts[1] if len(parts) > 2 else ""


class Bayes:
    """Naive Bayes over the words of the paths."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.words: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def learn(self, case: Case) -> None:
        self.seen[case.scope] += 1
        self.words[case.scope].update(_words(case))

    def scopes(self, case: Case) -> list[str]:
        known, words = len({word for counts in self.words.values() for word in counts}), _words(case)
        scores = {}
        for name, count in self.seen.items():
            whole = sum(self.words[name].values()) + known + 1
            scores[name] = math.log(count) + sum(math.log((self.words[name][word] + 1) / whole) for word in words)
        return sorted(scores, key=lambda name: -scores[name])[:3] or [""]


def _words(case: Case) -> set[str]:
    return {word for each in case.files for word in re.split(r"[^a-z0-9]+", each.path.lower()) if word}


class Ours:
    """`areal-commit suggest` in a repository without a table."""

    def __init__(self) -> None:
        self.habits = Habits()

    def learn(self, case: Case) -> None:
        self.habits.learn(case.scope, case.files)

    def scopes(self, case: Case) -> list[str]:
        return list(self.habits.likely(case.files))[:3]


COLUMNS = ("exact", "relaxed", "in top 3", "where sure")
METHODS = {
    "no scope ever": Omit,
    "most frequent so far": Frequent,
    "folder below the package": Folder,
    "naive Bayes on paths": Bayes,
    "areal-commit": Ours,
}


def related(one: str, other: str) -> bool:
    """Another word for the same, or a part of it."""
    return one == other or bool(one and other and set(one.split("-")) & set(other.split("-")))


def measure_scopes(known: Sequence[Case], held_out: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Share of the held-out commits that each method gets right."""
    results = {}
    for name, kind in METHODS.items():
        method, exact, relaxed, top = kind(), 0, 0, 0
        for case in known:
            method.learn(case)
        for case in held_out:
            answers = method.scopes(case)
            exact += answers[0] == case.scope
            relaxed += related(answers[0], case.scope)
            top += case.scope in answers
            method.learn(case)
        results[name] = {
            key: value / len(held_out) for key, value in (("exact", exact), ("relaxed", relaxed), ("in top 3", top))
        }
    return results


def measure_types(known: Sequence[Case], held_out: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Do the same for types: the rules alone, and with what was learnt."""
    frequent = Counter(case.type for case in known).most_common(1)[0][0] if known else "fix"
    history = TypeHistory()
    for case in known:
        history.learn(case.type, case.files, guess_type(case.files).value)
    guesses: dict[str, list[Guess]] = {"rules alone": [], "areal-commit": []}
    for case in held_out:
        guesses["rules alone"].append(guess_type(case.files))
        guesses["areal-commit"].append(guess_type(case.files, history=history))
        history.learn(case.type, case.files, guess_type(case.files).value)
    shares = {"most frequent so far": {"exact": sum(case.type == frequent for case in held_out) / len(held_out)}}
    for name, found in guesses.items():
        pairs = list(zip(held_out, found, strict=True))
        top = sum(case.type in {each.value, *(value for value, _ in each.alternatives[:2])} for case, each in pairs)
        exact = sum(case.type == each.value for case, each in pairs) / len(held_out)
        sure = [case.type == each.value for case, each in pairs if each.confidence >= 0.6]
        shares[name] = {"exact": exact, "in top 3": top / len(held_out), "where sure": sum(sure) / max(1, len(sure))}
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", type=Path, metavar="COMMITS.json", nargs="?")
    parser.add_argument("--history", type=Path, metavar="REPOSITORY", help="a clone that has the older commits")
    parser.add_argument("--held-out", type=float, default=0.5, metavar="SHARE", help="newest part (default: 0.5)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.commits is None and arguments.history is None:
        parser.error("name COMMITS.json, or a clone with --history")
    if arguments.commits is None:
        cases, oldest = older_cases(arguments.history, "HEAD"), ""
    else:
        cases, oldest = read_cases(arguments.commits)
    number = max(1, round(len(cases) * min(1.0, max(0.0, arguments.held_out))))
    known, held_out = cases[:-number] if number < len(cases) else [], cases[-number:]
    if arguments.history and oldest:
        known = [*older_cases(arguments.history, f"{oldest}~1"), *known]
    results = {"scope": measure_scopes(known, held_out), "type": measure_types(known, held_out)}
    if arguments.json:
        print(json.dumps({"known": len(known), "held_out": len(held_out), **results}))
        return
    print(f"{len(held_out)} commits held out, {len(known)} known before the first of them")
    for what, methods in results.items():
        print(f"\n{what:<28}" + "".join(f"{key:>12}" for key in COLUMNS))
        for name, shares in methods.items():
            cells = (f"{shares[key]:>12.1%}" if key in shares else " " * 12 for key in COLUMNS)
            print(f"  {name:<26}{''.join(cells)}")


if __name__ == "__main__":
    main()
