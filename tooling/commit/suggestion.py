"""Suggests type, scope and skeleton of a message, each with the evidence for it and what else it could be.

Type: what changes of this shape are usually called, here and elsewhere. Whether a change repairs something or improves
it can hardly be seen in a diff: the confidence says so.

Scope: the table of the project decides, and where that is silent or missing, habit. Each file has a share of the commit
(tests and documents come along with code). A symbol that a row of the table names decides about its file before the
path does.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.commit.changes import role_of, shares
from tooling.commit.settings import scope_of_path, scope_of_symbol
from tooling.commit.type_history import TypeHistory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.commit.changes import ChangedSymbol, CommittedFile, Staged
    from tooling.commit.habits import Habits
    from tooling.commit.settings import CommitSettings


@dataclass(frozen=True, slots=True)
class Guess:
    """Example: Guess("models", 0.8, ("areal/models/** holds 3 of 4 files",), (("api", 0.2),))."""

    value: str
    """"" for no scope."""
    confidence: float
    """Between 0 and 1; how often such a guess is what people chose, roughly."""
    evidence: tuple[str, ...]
    alternatives: tuple[tuple[str, float], ...] = ()
    """Next best answers with their confidence."""


UNSURE: Final = 0.3
"""A scope that is less likely is left out, and named among the alternatives."""
OPEN: Final = 0.5
"""Below this it is more likely than not that another type is right, which is said."""


def guess_type(files: Sequence[CommittedFile], types: Sequence[str] = (), history: TypeHistory | None = None) -> Guess:
    """Return the most likely type. types: those the project has; empty: all. history: what was chosen for similar
    changes before; without any, what is usual elsewhere."""
    history = history or TypeHistory()
    likely = history.likely(files)
    possible = {kind: likely.get(kind, 0.0) for kind in types or likely}
    whole = sum(possible.values())
    if not whole:
        return Guess(types[0], 0.1, ("nothing is known about the types of this project",))
    ranked = sorted(((kind, value / whole) for kind, value in possible.items()), key=lambda item: -item[1])
    best, share = ranked[0]
    known = f"{history.commits} earlier commits: " if history.commits else "no earlier commits; elsewhere "
    evidence = [f"{known}changes like this one were `{best}` in {share:.0%}", _shape(files)]
    if share < OPEN:
        evidence.append("not sure: see what else it could be")
    return Guess(best, round(share, 2), tuple(evidence), _others(ranked, best))


def _shape(files: Sequence[CommittedFile]) -> str:
    """Describe what speaks for a type."""
    code = [each for each in files if role_of(each.path) in {"code", "example"}]
    roles = Counter(role_of(each.path) for each in files)
    parts = [f"{count} of {role}" for role, count in sorted(roles.items())]
    if code:
        parts.append(f"{sum(each.added - each.deleted for each in code):+} lines of code")
    new, renamed = sum(each.status == "A" for each in code), sum(each.status == "R" for each in files)
    parts += [f"{new} new files of code"] * bool(new) + [f"{renamed} files renamed"] * bool(renamed)
    return "files: " + ", ".join(parts)


WIDE = 0.34
"""A commit whose first scope has no larger share than this belongs to none: it is about the whole."""


def guess_scope(
    files: Sequence[CommittedFile],
    symbols: Sequence[ChangedSymbol],
    settings: CommitSettings,
    habits: Habits,
) -> Guess:
    """Return the most likely scope. habits: asked only where the table has no answer."""
    if not files:
        return Guess("", 0.0, ("nothing is changed",))
    found = _by_table(files, symbols, settings) if settings.scopes else None
    return found or _by_habit(files, habits)


def _by_table(
    files: Sequence[CommittedFile], symbols: Sequence[ChangedSymbol], settings: CommitSettings
) -> Guess | None:
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
    evidence = [f"{share:.0%} of the change", *reasons[best][:4]]
    if len(reasons[best]) > 4:
        evidence.append(f"and {len(reasons[best]) - 4} more")
    if silent:
        evidence.append(f"{silent:.0%} of the change is in no row of the table")
    return Guess(best, round(share, 2), tuple(evidence), _others(ranked, best))


def _by_symbols(symbols: Sequence[ChangedSymbol], settings: CommitSettings) -> dict[tuple[str, str], float]:
    """Return scopes that the table gives to symbols of one file, with their share of the changed lines of all its
    symbols; empty when the larger part has none."""
    whole = sum(each.lines for each in symbols)
    found: dict[tuple[str, str], float] = {}
    for each in symbols:
        row = scope_of_symbol(settings, each.name)
        if row is not None:
            key = (row[0], f"`{each.name}` is `{row[1]}`")
            found[key] = found.get(key, 0.0) + each.lines / whole
    named = sum(found.values())
    return {key: part / named for key, part in found.items()} if named >= 0.5 else {}


def _by_habit(files: Sequence[CommittedFile], habits: Habits) -> Guess:
    ranked = list(habits.likely(files).items())
    best, share = ranked[0]
    paths = sorted(shares(files), key=lambda item: -item[1])
    evidence = [f"{habits.commits} earlier commits were looked at"]
    said = f"`{best}`" if best else "no scope"
    for path, _ in paths[:3]:
        likely = habits.of_path(path)
        evidence.append(f"{path}: {said} in {likely.get(best, 0.0):.0%} of what is known about it")
    if best and share < UNSURE:
        evidence.append(f"not sure enough for `{best}` ({share:.0%}): left out")
        return Guess("", round(dict(ranked)[""], 2), tuple(evidence), _others(ranked, ""))
    return Guess(best, round(min(share, 0.95), 2), tuple(evidence), _others(ranked, best))


def _others(ranked: Sequence[tuple[str, float]], best: str) -> tuple[tuple[str, float], ...]:
    return tuple((name, round(value, 2)) for name, value in ranked if name != best and value >= 0.02)[:3]


_VERBS: Final = {"feat": "add", "fix": "correct", "perf": "speed up", "refactor": "reorganize", "revert": "take back"}
_WHAT: Final = {"A": "add", "D": "remove", "R": "rename"}
WHY: Final = "<why: what was wrong or missing, and what is different now>"


def skeleton(kind: str, scope: str, staged: Staged, settings: CommitSettings) -> str:
    """Write a message that conforms, except for the reason."""
    head = kind + (f"({scope})" if scope else "") + ("!" if removed_api(staged) else "") + ": "
    subject = textwrap.shorten(_subject(kind, staged), settings.header_length - len(head), placeholder=" ...")
    parts = [head + (subject or "<what it does>"), WHY]
    lines = _key_changes(staged, settings)
    if lines:
        parts.append("\n".join(lines))
    gone = removed_api(staged)
    if gone:
        said = f"BREAKING CHANGE: {', '.join(each.name for each in gone[:4])} removed; <what to use instead>"
        parts.append(said)
    return "\n\n".join(parts) + "\n"


def removed_api(staged: Staged) -> list[ChangedSymbol]:
    """Return public names of modules that are gone and came up nowhere else in the same commit."""
    added = {each.name.rsplit(".", 1)[-1] for each in staged.symbols if each.what == "added"}
    return [
        each
        for each in staged.symbols
        if each.what == "removed"
        and each.public
        and role_of(each.path) == "code"
        and "." not in each.name
        and each.name not in added
        and not any(part.startswith("_") for part in each.path.split("/"))
    ]


def _subject(kind: str, staged: Staged) -> str:
    """Describe the change by its symbols, else by files that come, go or move; "" where neither says anything."""
    code = [each for each in staged.symbols if role_of(each.path) == "code"] or list(staged.symbols)
    renamed = sorted((each for each in code if each.what == "renamed"), key=lambda each: (not each.public, -each.lines))
    if renamed and kind not in {"feat", "fix"}:
        return f"rename {renamed[0].before} to {renamed[0].name.rpartition('.')[2]}"
    ranked = sorted(code, key=lambda each: (each.what != "added" or kind != "feat", not each.public, -each.lines))
    # A class and its methods are one thing.
    owners = {each.name for each in ranked}
    ranked = [each for each in ranked if each.name.rpartition(".")[0] not in owners] or ranked
    named = [each for each in ranked if each.what == ("added" if kind == "feat" else each.what)][:2]
    if named:
        verb = _VERBS.get(kind, "change")
        states = {each.what for each in named}
        if states == {"removed"} or (states == {"added"} and kind != "fix"):
            verb = "remove" if states == {"removed"} else "add"
        return f"{verb} {' and '.join(each.name for each in named)}"
    statuses = {each.status for each in staged.files}
    longest = sorted(staged.files, key=lambda each: (-each.churn, each.path))
    names = list(dict.fromkeys(each.path.rsplit("/", 1)[-1] for each in longest))[:2]
    if statuses == {"R"} and len(staged.files) == 1:
        old, new = longest[0].before, longest[0].path
        same = old.rsplit("/", 1)[-1] == names[0]
        return f"move {names[0]} to {new.rpartition('/')[0] or 'the root'}" if same else f"rename {old} to {new}"
    verb = _WHAT.get(statuses.pop(), "") if len(statuses) == 1 else ""
    return f"{verb} {' and '.join(names)}" if verb else ""


def _key_changes(staged: Staged, settings: CommitSettings) -> list[str]:
    """Describe each file that says something in one line, largest first."""
    files = [each for each in staged.files if role_of(each.path) not in {"docs", "agents"}] or list(staged.files)
    if len(files) < 2:
        return []
    lines = []
    for each in sorted(files, key=lambda each: (-each.churn, each.path))[:5]:
        symbols = [symbol for symbol in staged.symbols if symbol.path == each.path]
        parts = []
        for done in ("added", "changed", "renamed", "removed"):
            names = [symbol.name for symbol in symbols if symbol.what == done and symbol.public]
            if names:
                parts.append(f"{done} {', '.join(names[:3])}")
        what = "; ".join(parts) or {"A": "new", "D": "removed", "R": f"was {each.before}"}.get(each.status, "changed")
        text = f"- {each.path}: {what}"
        lines.append(textwrap.shorten(text, settings.body_width, placeholder=" ...") if " " in text[2:] else text)
    if len(files) > len(lines):
        lines.append(f"- and {len(files) - len(lines)} more files")
    return lines
