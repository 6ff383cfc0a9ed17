"""Counts over history which scopes people chose for which folders.

    habits = Habits()
    for commit in oldest_first: habits.learn(commit.scope, commit.files)
    habits.likely(files)                 # {"archon": 0.6, "": 0.3, ...}; "": without a scope

Each folder on the way to a file counts what was chosen when something in it changed. A file is judged by the deepest
folders, as far as they have been seen often enough to be trusted, then by those above, and where nothing has been seen
by the names of its folders. Later commits count more: vocabularies drift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.commit.changes import role_of, shares
from tooling.commit.message import parse
from tooling.commit.settings import folded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tooling.commit.changes import Commit, CommittedFile


HALF_LIFE: Final = 80
"""Commits after which one counts half."""
TRUST: Final = 0.5
"""Commits that a folder must have seen to be believed as much as the folders above it."""
OMIT: Final = 0.5
"""Factor on leaving the scope out: a wrong scope is seen and corrected, a missing one is not."""
_PLAIN: Final = frozenset({"experimental", "lib", "python", "src", "tests", "test", "workflows"})
_ROLE_NAMES: Final = {"agents": "agents", "ci": "ci", "docs": "docs", "example": "examples", "test": "tests"}

Counts = dict[str, float]


class Habits:
    """Counts per folder. Cheap to fill: a thousand commits take some ten milliseconds."""

    def __init__(self) -> None:
        self.commits = 0
        self._seen: dict[str, Counts] = {}

    def learn(self, scope: str, files: Sequence[CommittedFile]) -> None:
        """Count one commit; scope "" where people left it out. Commits come oldest first."""
        self.commits += 1
        weight, name = 2 ** (self.commits / HALF_LIFE), folded(scope)
        for path, share in shares(files):
            for folder in _folders(path):
                counts = self._seen.setdefault(folder, {})
                counts[name] = counts.get(name, 0.0) + weight * share

    def likely(self, files: Sequence[CommittedFile]) -> Counts:
        """Return every scope with its likelihood, most likely first; they add up to 1."""
        total: Counts = {}
        for path, share in shares(files):
            for name, value in self.of_path(path).items():
                total[name] = total.get(name, 0.0) + share * value
        if "" in total:
            total[""] *= OMIT
        whole = sum(total.values()) or 1.0
        ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
        return {name: value / whole for name, value in ordered}

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


def conventional(found: Iterable[Commit]) -> list[Commit]:
    """Return those that are not merges and have a header that can be read."""
    return [each for each in found if len(each.parents) < 2 and parse(each.message).kind == "conventional"]
