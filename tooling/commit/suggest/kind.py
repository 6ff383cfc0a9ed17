"""The type of a commit, from what kinds of files it changes and how.

Only one kind of file: that decides. Otherwise code that moves or gives way to as much other code is a refactoring, new
public symbols or much new code are a feature, and the rest is a fix. Whether a change repairs something or improves it
cannot be seen in a diff: the confidence says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.commit.files import role_of
from tooling.commit.suggest.guess import Guess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.commit.files import Role
    from tooling.commit.git import ChangedFile
    from tooling.commit.staged import Symbol

_OF_ROLE: Final[dict[Role, str]] = {
    "agents": "chore",
    "build": "build",
    "ci": "ci",
    "code": "fix",
    "docs": "docs",
    "example": "feat",
    "test": "test",
}
_CODE: Final[frozenset[Role]] = frozenset({"code", "example"})


@dataclass(frozen=True, slots=True)
class _Facts:
    """Sums over the files of a commit."""

    files: int
    roles: dict[Role, int]
    """Changed lines per kind of file (at least 1 per file)."""
    added: int
    """Lines of code."""
    deleted: int
    new: int
    """New files of code."""
    renamed: int
    api: tuple[str, ...]
    """New public symbols."""
    known: bool
    """Whether symbols could be looked at."""

    @property
    def whole(self) -> int:
        return sum(self.roles.values())


def guess_type(files: Sequence[ChangedFile], symbols: Sequence[Symbol] = (), types: Sequence[str] = ()) -> Guess:
    """The most likely type. types: those the project has; empty: all."""
    facts = _facts(files, symbols)
    found = [each for each in _guesses(facts) if not types or each.value in types]
    if not found:
        return Guess(types[0] if types else "chore", 0.1, ("nothing is known about these files",))
    best, rest = found[0], {each.value: each.confidence for each in reversed(found[1:])}
    rest.pop(best.value, None)
    others = sorted(rest.items(), key=lambda item: -item[1])
    return Guess(best.value, best.confidence, best.evidence, tuple(others[:3]))


def _facts(files: Sequence[ChangedFile], symbols: Sequence[Symbol]) -> _Facts:
    roles: dict[Role, int] = {}
    for each in files:
        role = role_of(each.path)
        roles[role] = roles.get(role, 0) + max(1, each.churn)
    code = [each for each in files if role_of(each.path) in _CODE]
    api = tuple(each.name for each in symbols if each.what == "added" and each.public and role_of(each.path) == "code")
    return _Facts(
        files=len(files),
        roles=roles,
        added=sum(each.added for each in code),
        deleted=sum(each.deleted for each in code),
        new=sum(each.status == "A" for each in code),
        renamed=sum(each.status == "R" for each in files),
        api=api,
        known=bool(symbols),
    )


def _guesses(facts: _Facts) -> Iterator[Guess]:
    """Best first; later ones are what else it could be."""
    if not _CODE & facts.roles.keys():
        yield from _without_code(facts)
        return
    if facts.roles.get("docs", 0) > 0.6 * facts.whole and facts.added + facts.deleted < 60:
        yield Guess("docs", 0.6, (f"{facts.roles['docs']} of {facts.whole} changed lines are documents",))
    if facts.renamed > 3 and facts.renamed > 0.3 * facts.files:
        yield Guess("refactor", 0.7, (f"{facts.renamed} of {facts.files} files were renamed",))
    if _rebuilt(facts):
        said = f"{facts.deleted} lines of code gave way to {facts.added}"
        yield Guess("refactor", 0.55, (said,))
    yield from _growth(facts)


def _without_code(facts: _Facts) -> Iterator[Guess]:
    shares = sorted(facts.roles.items(), key=lambda item: -item[1])
    for role, lines in shares:
        said = "every file is of that kind" if len(shares) == 1 else f"{lines} of {facts.whole} changed lines"
        yield Guess(_OF_ROLE[role], 0.85 * lines / facts.whole, (f"{role}: {said}; no code",))
    yield Guess("fix", 0.1, ())
    yield Guess("chore", 0.1, ())


def _rebuilt(facts: _Facts) -> bool:
    many = facts.files >= 25 and facts.deleted > 0.5 * facts.added
    replaced = facts.added > 80 and facts.deleted >= 0.55 * facts.added
    removed = facts.deleted > 30 and facts.deleted > 2 * facts.added
    return many or replaced or removed


def _growth(facts: _Facts) -> Iterator[Guess]:
    """A feature or a fix: new files, new public names, more lines than before."""
    net = facts.added - facts.deleted
    evidence = [f"{net:+} lines of code"]
    if facts.new:
        evidence.append(f"{facts.new} new files of code")
    if facts.api:
        evidence.append(f"new public names: {', '.join(facts.api[:4])}")
    grown = bool(facts.new) or net > 45 or (len(facts.api) > 1 and net > 20)
    order = ("feat", "fix") if grown else ("fix", "feat")
    sure = 0.65 if facts.new or abs(net) > 150 or not grown else 0.5
    yield Guess(order[0], sure, tuple(evidence))
    yield Guess(order[1], round(0.9 - sure, 2), ())
    yield Guess("refactor", 0.1, ())
