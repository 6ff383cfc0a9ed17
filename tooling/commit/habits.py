"""Counts over history which scopes people chose for which folders.

    habits = Habits()
    for commit in oldest_first: habits.learn(commit.scope, commit.files)
    habits.likely(files)                 # {"archon": 0.6, "": 0.3, ...}; "": without a scope

Each folder on the way to a file counts what was chosen when something in it changed, and each word of the path too. A
file is judged by the deepest folders, as far as they have been seen often enough to be trusted, then by those above,
and where nothing has been seen by the names of its folders. A scope that is a word of the path gains by that. Later
commits count more, since vocabularies drift, and so do those of the person who asks.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Final

from tooling.commit.changes import role_of, shares
from tooling.commit.settings import folded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.commit.changes import CommittedFile


HALF_LIFE: Final = 150
"""Commits after which one counts half."""
OWN: Final = 4.0
"""How much more a commit of the same author counts: people disagree with each other more than with themselves."""
TRUST: Final = 0.5
"""Commits that a folder must have seen to be believed as much as the folders above it."""
CANDIDATES: Final = 12
"""Scopes by folders that are looked at."""
SPELT: Final = 0.2
"""Share of the change whose paths have to hold a scope as a word for it to be looked at."""
_RARE: Final = 0.01
"""Likelihood of what has not been seen."""
WEIGHTS: Final = (0.56, 0.78, 1.94, 1.53)
"""Of the logarithms of what folders and words say, of being a word of the path, and of no scope where no code changes:
a conditional logit, fitted by `benchmarks/commit_fit.py`."""
_PLAIN: Final = frozenset({"experimental", "lib", "python", "src", "tests", "test", "workflows"})
_ROLE_NAMES: Final = {"agents": "agents", "ci": "ci", "docs": "docs", "example": "examples", "test": "tests"}
_WORDS: Final = re.compile(r"[a-z0-9]+")

Counts = dict[str, float]


class Habits:
    """Counts per folder and per word of paths."""

    def __init__(self) -> None:
        self.commits = 0
        self._seen: dict[str, Counts] = {}
        self._words: dict[str, Counts] = {}

    def learn(self, scope: str, files: Sequence[CommittedFile], *, own: bool = False) -> None:
        """Count one commit; scope "" where people left it out. Commits come oldest first. own: whether its author is
        the person who asks."""
        self.commits += 1
        weight, name = 2 ** (self.commits / HALF_LIFE) * (OWN if own else 1.0), folded(scope)
        words: Counts = {}
        for path, share in shares(files):
            for folder in _folders(path):
                counts = self._seen.setdefault(folder, {})
                counts[name] = counts.get(name, 0.0) + weight * share
            for word in _WORDS.findall(path.lower()):
                words[word] = max(share, words.get(word, 0.0))
        for word, share in words.items():
            counts = self._words.setdefault(word, {})
            counts[name] = counts.get(name, 0.0) + weight * share

    def likely(self, files: Sequence[CommittedFile]) -> Counts:
        """Return the scopes that are possible with their likelihood, most likely first; they add up to 1."""
        odds = {
            name: math.exp(sum(weight * fact for weight, fact in zip(WEIGHTS, found, strict=True)))
            for name, found in self.facts(files).items()
        }
        whole = sum(odds.values())
        ordered = sorted(odds.items(), key=lambda item: (-item[1], item[0]))
        return {name: value / whole for name, value in ordered}

    def facts(self, files: Sequence[CommittedFile]) -> dict[str, tuple[float, ...]]:
        """Return for each scope candidate its facts, in the order of WEIGHTS."""
        by_folders: Counts = {}
        by_words: Counts = {}
        in_path: Counts = {}
        for path, share in shares(files):
            for name, value in self.of_path(path).items():
                by_folders[name] = by_folders.get(name, 0.0) + share * value
            for name, value in self._of_words(path).items():
                by_words[name] = by_words.get(name, 0.0) + share * value
            for name in _possible_names(path):
                in_path[name] = in_path.get(name, 0.0) + share
        candidates = {"", *sorted(by_folders, key=lambda name: (-by_folders[name], name))[:CANDIDATES]}
        candidates |= {name for name in self._seen.get("", {}) if in_path.get(name, 0.0) > SPELT}
        no_code = not any(role_of(each.path) in {"code", "example"} for each in files)
        return {
            name: (
                math.log(by_folders.get(name, 0.0) + _RARE),
                math.log(by_words.get(name, 0.0) + _RARE),
                in_path.get(name, 0.0),
                float(not name and no_code),
            )
            for name in candidates
        }

    def _of_words(self, path: str) -> Counts:
        """Return the mean over the words of a path of what was chosen where they occurred."""
        now = 2 ** (self.commits / HALF_LIFE)
        known = [self._words[word] for word in _WORDS.findall(path.lower()) if word in self._words]
        found: Counts = {}
        for counts in known:
            whole = sum(counts.values()) / now + 1
            for name, value in counts.items():
                found[name] = found.get(name, 0.0) + value / now / whole / len(known)
        return found

    def of_path(self, path: str) -> Counts:
        """Return the likelihood of each scope for one path, from the names of its folders down to its own history."""
        now = 2 ** (self.commits / HALF_LIFE)
        everywhere = self._seen.get("", {})
        omitted = (everywhere.get("", 0.0) / now + 0.5) / (sum(everywhere.values()) / now + 1)
        names = _names(path)
        believed = {name: (1 - omitted) * weight for name, weight in names.items()}
        believed[""] = omitted if names else 1.0
        for folder in list(_folders(path))[1:]:
            counts = self._seen.get(folder)
            if not counts:
                continue
            # What the folders above say, corrected by what this one has seen
            whole = sum(counts.values())
            trust = whole / now / (whole / now + TRUST)
            believed = {
                name: (1 - trust) * believed.get(name, 0.0) + trust * counts.get(name, 0.0) / whole
                for name in {*believed, *counts}
            }
        return believed


def _folders(path: str) -> Iterator[str]:
    """ "a/b.py" -> "", "a", "a/b.py"."""
    yield ""
    end = path.find("/")
    while end != -1:
        yield path[:end]
        end = path.find("/", end + 1)
    yield path


def _possible_names(path: str) -> set[str]:
    """Return the scopes that a path spells: "b/archon_engine.py" -> "b", "archon-engine", "archon", "engine"."""
    found: set[str] = set()
    *folders, name = path.lower().split("/")
    for part in (*folders, name.rpartition(".")[0] or name):
        words = _WORDS.findall(part)
        found |= {"-".join(words), *words, *map("-".join, itertools.pairwise(words))}
        if part.endswith("s"):
            found.add("-".join(words)[:-1])
    return found - {""}


def _names(path: str) -> Counts:
    """Guess scopes from the names of a path's folders: the first below the package most, then those below it."""
    parts = folded(path).split("/")
    if len(parts) == 1:
        return {}
    role, found = role_of(path), dict[str, float]()
    if role in _ROLE_NAMES:
        found[_ROLE_NAMES[role]] = 1.0
    inner = [part for part in parts[1:-1] if part not in _PLAIN]
    for depth, name in enumerate(inner, 1):
        found[name] = found.get(name, 0.0) + (0.5 if role in {"docs", "test"} else 1.0 / depth)
    whole = sum(found.values())
    return {name: weight / whole for name, weight in found.items()}
