"""How often `areal-commit suggest` says what people chose, next to simple baselines.

    python benchmarks/commit_scope.py REPOSITORY... [--newest 250] [--only COMMITS.json] [--json]

The newest conventional commits of each clone are predicted from the 400 commits before them, as the command would have
done for their author; those of bots are learnt from, but not asked about. --only: a list of {"hash"}; no other commits
are predicted. Merges are neither learnt from nor predicted.

"relaxed" counts another spelling and a scope that contains or is contained in the right one ("proxy", "openai-proxy").
"said": how often a scope is named at all, "said, right" how many of those are right (relaxed). "sure": the share of
answers of 60 % confidence or more, "sure, right" how many of those are right. There is no table of scopes, and symbols
of the diff are not used. People disagree with each other, so nothing reaches 100 %.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tooling.commit.changes import Commit, commits
from tooling.commit.history import MAX_COMMITS, CommitHistory
from tooling.commit.message import parse
from tooling.commit.settings import TYPES, CommitSettings, folded
from tooling.commit.suggestion import Guess, guess_scope, guess_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BOT = re.compile(r"bot[\]@]|@renovate", re.IGNORECASE)
Ranked = list[tuple[str, float]]
"""Answers with their confidence, best first."""


@dataclass(frozen=True)
class Case:
    """One commit, what its author chose, and those before it."""

    commit: Commit
    type: str
    scope: str
    before: Sequence[Commit]
    """Oldest first, without numbers of lines."""


def chosen(commit: Commit) -> tuple[str, str] | None:
    """Return type and scope of a conventional commit."""
    message = parse(commit.message.strip().partition("\n")[0], merge=len(commit.parents) > 1)
    if message.kind != "conventional" or message.type.lower() not in TYPES or not commit.files:
        return None
    return message.type.lower(), folded(message.scopes[0] if message.scopes else "")


def cases(repository: Path, newest: int, only: set[str]) -> Iterator[Case]:
    """Yield the commits to predict."""
    limit = 0 if only else MAX_COMMITS + 4 * newest  # of four commits one is by a person and conventional, or more
    found = commits(repository, "HEAD", limit=limit, files=True, lines=False, authors=True)
    wanted = [
        (place, each, said)
        for place, each in enumerate(found)
        if (said := chosen(each)) and not _BOT.search(each.author) and (not only or each.hash in only)
    ][:newest]
    last = wanted[-1][0] + 1 if wanted else 0
    counted = {each.hash: each for each in commits(repository, "HEAD", limit=last, files=True)}
    for place, each, (kind, scope) in wanted:
        yield Case(counted[each.hash], kind, scope, found[place + 1 : place + 1 + MAX_COMMITS][::-1])


class Method(Protocol):
    """A way to predict."""

    def answer(self, case: Case) -> tuple[Ranked, Ranked]:
        """Return types and scopes."""


class Frequent:
    """What was chosen most often, whatever changes."""

    def answer(self, case: Case) -> tuple[Ranked, Ranked]:
        """Return types and scopes."""
        said = [one for each in case.before if (one := chosen(each))]
        return ranked(Counter(kind for kind, _ in said)), ranked(Counter(scope for _, scope in said))


class Folders:
    """What was chosen most often in the deepest folders that were touched before."""

    def answer(self, case: Case) -> tuple[Ranked, Ranked]:
        """Return types and scopes."""
        seen: defaultdict[str, tuple[Counter[str], Counter[str]]] = defaultdict(lambda: (Counter(), Counter()))
        for each in case.before:
            if said := chosen(each):
                for folder in {folder for file in each.files for folder in prefixes(file.path)}:
                    for counts, one in zip(seen[folder], said, strict=True):
                        counts[one] += 1
        votes: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for file in case.commit.files:
            folder = next((each for each in reversed(prefixes(file.path)) if each in seen), None)
            if folder is not None:
                for vote, counts in zip(votes, seen[folder], strict=True):
                    for one, count in counts.items():
                        vote[one] += count / counts.total()  # type: ignore[assignment]  # counters hold any number
        return ranked(votes[0]), ranked(votes[1])


class Nearest:
    """What was chosen in the 15 commits that touched the most similar folders; rare folders count more."""

    def answer(self, case: Case) -> tuple[Ranked, Ranked]:
        """Return types and scopes."""
        past = [
            ({x for file in each.files for x in prefixes(file.path)}, said)
            for each in case.before
            if (said := chosen(each))
        ]
        number = Counter(folder for folders, _ in past for folder in folders)
        rarity = {folder: math.log((len(past) + 1) / count) for folder, count in number.items()}
        own = {folder for file in case.commit.files for folder in prefixes(file.path)}
        votes: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        near = [
            (
                sum(rarity[each] ** 2 for each in folders & own)
                / math.sqrt(sum(rarity[each] ** 2 for each in folders) or 1),
                said,
            )
            for folders, said in past
        ]
        for similarity, said in sorted(near, key=lambda item: -item[0])[:15]:
            for vote, one in zip(votes, said, strict=True):
                vote[one] += similarity  # type: ignore[assignment]  # counters hold any number
        return ranked(votes[0]), ranked(votes[1])


class Ours:
    """`areal-commit suggest` in a repository without a table."""

    def answer(self, case: Case) -> tuple[Ranked, Ranked]:
        """Return types and scopes."""
        history = CommitHistory(case.commit.author)
        for each in case.before:
            history.learn(each)
        kind = guess_type(case.commit.files, history=history.types)
        return listed(kind), listed(guess_scope(case.commit.files, (), CommitSettings(), history.scopes))


def prefixes(path: str) -> list[str]:
    """Return "", every folder on the way to a file, and the file."""
    parts = path.split("/")
    return ["", *("/".join(parts[: end + 1]) for end in range(len(parts)))]


def ranked(votes: Counter[str]) -> Ranked:
    """Return shares of votes."""
    return [(one, count / votes.total()) for one, count in votes.most_common() if count] or [("", 0.0)]


def listed(guess: Guess) -> Ranked:
    """Return a guess and its alternatives."""
    return [(guess.value, guess.confidence), *guess.alternatives]


METHODS: dict[str, Callable[[], Method]] = {
    "most frequent": Frequent,
    "folders": Folders,
    "nearest commits": Nearest,
    "areal-commit": Ours,
}


def related(one: str, other: str) -> bool:
    """Whether it is another word for the same, or a part of it."""
    return one == other or bool(one and other and set(one.split("-")) & set(other.split("-")))


def measure(found: Sequence[Case], method: Method) -> dict[str, float]:
    """Return shares of the cases, from 0 to 1."""
    counts: Counter[str] = Counter()
    for case in found:
        types, scopes = method.answer(case)
        kind, scope = types[0], scopes[0]
        counts["type"] += kind[0] == case.type
        counts["type in 3"] += case.type in [one for one, _ in types[:3]]
        counts["type sure"] += kind[1] >= 0.6
        counts["type sure, right"] += kind[1] >= 0.6 and kind[0] == case.type
        counts["scope"] += scope[0] == case.scope
        counts["scope relaxed"] += related(scope[0], case.scope)
        counts["scope in 3"] += case.scope in [one for one, _ in scopes[:3]]
        counts["scope said"] += bool(scope[0])
        counts["scope said, right"] += bool(scope[0]) and related(scope[0], case.scope)
    shares = {name: count / len(found) for name, count in counts.items()}
    for name in ("type sure", "scope said"):
        shares[f"{name}, right"] = counts[f"{name}, right"] / max(1, counts[name])
    return shares


def main() -> None:
    """Print a table per repository, and the mean over them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path, metavar="REPOSITORY", nargs="+", help="clones with their history")
    parser.add_argument("--newest", type=int, default=250, metavar="N", help="commits to predict (default: 250)")
    parser.add_argument("--only", type=Path, metavar="COMMITS.json", help="predict no others")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for repository in arguments.repositories:
        if not repository.is_dir():
            parser.error(f"{repository}: no such folder; name clones with their history")
    only = {row["hash"] for row in json.loads(arguments.only.read_text(encoding="utf-8"))} if arguments.only else set()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for repository in arguments.repositories:
        found = list(cases(repository, arguments.newest, only))
        if not found:
            sys.stderr.write(f"{repository}: no conventional commit to predict\n")
            continue
        results[str(repository)] = {name: measure(found, make()) for name, make in METHODS.items()}
        print_table(f"{repository}: {len(found)} commits", results[str(repository)], quiet=arguments.json)
    if arguments.json:
        print(json.dumps(results))
    elif len(results) > 1:
        names = next(iter(results.values()))["areal-commit"]
        mean = {
            method: {name: sum(each[method][name] for each in results.values()) / len(results) for name in names}
            for method in METHODS
        }
        print_table("mean", mean, quiet=False)


def print_table(title: str, rows: dict[str, dict[str, float]], *, quiet: bool) -> None:
    """Print one line per method."""
    if quiet:
        return
    print(f"\n{title}")
    for method, shares in rows.items():
        print(f"  {method:<16}" + "  ".join(f"{name} {share:.1%}" for name, share in shares.items()), flush=True)


if __name__ == "__main__":
    main()
