"""The scope of a commit: by the table of the project, and where that is silent or missing, by habit.

Each file has a share of the commit (tests and documents come along with code). A symbol that a row of the table names
decides about its file before the path does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.commit.files import shares
from tooling.commit.scopes import scope_of_path, scope_of_symbol
from tooling.commit.suggest.guess import Guess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.commit.git import ChangedFile
    from tooling.commit.habits import Habits
    from tooling.commit.settings import Settings
    from tooling.commit.staged import Symbol

WIDE = 0.34
"""A commit whose first scope has no larger share than this belongs to none: it is about the whole."""


def guess_scope(
    files: Sequence[ChangedFile], symbols: Sequence[Symbol], settings: Settings, habits: Callable[[], Habits]
) -> Guess:
    """The most likely scope. habits: asked only where the table has no answer (reading history takes time)."""
    if not files:
        return Guess("", 0.0, ("nothing is changed",))
    found = _by_table(files, symbols, settings) if settings.scopes else None
    return found or _by_habit(files, habits())


def _by_table(files: Sequence[ChangedFile], symbols: Sequence[Symbol], settings: Settings) -> Guess | None:
    votes: dict[str, float] = {}
    reasons: dict[str, list[str]] = {}
    silent = 0.0
    for path, share in shares(files):
        named = _by_symbols([each for each in symbols if each.path == path], settings)
        row = scope_of_path(settings, path)
        if named:
            for (scope, reason), part in named.items():
                votes[scope] = votes.get(scope, 0.0) + share * part
                reasons.setdefault(scope, []).append(f"{path}: {reason}")
        elif row is not None:
            scope, glob = row
            votes[scope] = votes.get(scope, 0.0) + share
            reasons.setdefault(scope, []).append(f"{path}: {glob}")
        else:
            silent += share
    ranked = sorted(votes.items(), key=lambda item: (-item[1], item[0]))
    if not ranked:
        return None
    named_scopes = [item for item in ranked if item[0]] or ranked
    best, share = ranked[0]
    if best == "" and named_scopes[0][1] > 0.25:
        best, share = named_scopes[0]  # files that have no scope come along with those that have one
    if share < WIDE and len(ranked) > 2:
        said = f"spread over {len(ranked)} scopes, none with more than {share:.0%}"
        return Guess("", 0.5, (said,), tuple(ranked[:3]))
    evidence = [f"{share:.0%} of the change", *_short(reasons[best])]
    if silent:
        evidence.append(f"{silent:.0%} of the change is in no row of the table")
    return Guess(best, round(share, 2), tuple(evidence), _others(ranked, best))


def _by_symbols(symbols: Sequence[Symbol], settings: Settings) -> dict[tuple[str, str], float]:
    """Scopes that the table gives to symbols of one file, with their share of the changed lines of all its symbols;
    empty when the larger part has none."""
    whole = sum(each.lines for each in symbols)
    found: dict[tuple[str, str], float] = {}
    for each in symbols:
        row = scope_of_symbol(settings, each.name)
        if row is not None:
            key = (row[0], f"`{each.name}` is `{row[1]}`")
            found[key] = found.get(key, 0.0) + each.lines / whole
    named = sum(found.values())
    return {key: part / named for key, part in found.items()} if named >= 0.5 else {}


def _by_habit(files: Sequence[ChangedFile], habits: Habits) -> Guess:
    ranked = list(habits.likely(files).items())
    best, share = ranked[0]
    paths = sorted(shares(files), key=lambda item: -item[1])
    evidence = [f"{habits.commits} earlier commits were looked at"]
    for path, _ in paths[:3]:
        likely = habits.of_path(path)
        evidence.append(f"{path}: {_said(best)} in {likely.get(best, 0.0):.0%} of what is known about it")
    return Guess(best, round(min(share, 0.95), 2), tuple(evidence), _others(ranked, best))


def _said(scope: str) -> str:
    return f"`{scope}`" if scope else "no scope"


def _others(ranked: Sequence[tuple[str, float]], best: str) -> tuple[tuple[str, float], ...]:
    return tuple((name, round(value, 2)) for name, value in ranked if name != best and value >= 0.02)[:3]


def _short(reasons: Sequence[str]) -> list[str]:
    return [*reasons[:4], f"and {len(reasons) - 4} more"] if len(reasons) > 4 else list(reasons)
