"""What history says of a page without a mark: which version of each section of its source the translation can follow.

Only one thing is certain: a section that was last written before a commit cannot follow what that commit made of the
source. So a section is blamed only when the source's was changed by a commit that the author of the translation cannot
have had, and only when what changed is not there already. Everything else is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

from tooling.documentation.git import is_ancestor, positions
from tooling.documentation.markdown.numbers import missing
from tooling.documentation.verdicts import Before

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tooling.documentation.history import History, Version
    from tooling.documentation.markdown.records import Page, Section

_SAME: Final = 0.4
"""Share of equal words from which an earlier section under another heading is the same one."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The versions, newest first, in which a section says what it says now."""

    first: Version
    """The oldest of them: the commit that wrote it."""


class Inference:
    """Judges the sections of pages without marks."""

    def __init__(self, root: Path, history: History) -> None:
        self._root = root
        self._history = history
        self._positions: dict[str, int] | None = None
        self._known: dict[tuple[str, str], bool] = {}

    def before(self, source: tuple[str, Section], translation: tuple[str, Section]) -> Before | None:
        """The source's section as the translation can know it, if it says something else now; None when nothing is
        known against the translation. Both are (path, section)."""
        written = self._run(*translation)
        changed = self._run(*source)
        if written is None or changed is None:
            return None  # one of them is not committed yet: whoever works on it is not late
        if self._is_ancestor(changed.first.commit, written.first.commit):
            return None
        version = self._as_of(source[0], written.first)
        found = _counterpart(version.page, source[1]) if version is not None else None
        if version is None or found is None or found.digest == source[1].digest:
            return None
        if _has_already(found, source[1], translation[1]):
            return None
        since = self._since(source[0], source[1], found)
        return Before(found.text, version.commit, version.date, since)

    def _run(self, path: str, section: Section) -> _Run | None:
        first = None
        for version in self._history.versions(path):
            if not version.holds(section):
                break
            first = version
        return _Run(first) if first is not None else None

    def _as_of(self, path: str, moment: Version) -> Version | None:
        """The page as it was when the commit was made."""
        if self._positions is None:
            self._positions = positions(self._root)
        at = self._positions.get(moment.commit, -1)
        for version in self._history.versions(path):
            if self._positions.get(version.commit, -1) >= at and self._is_ancestor(version.commit, moment.commit):
                return version
        return None

    def _is_ancestor(self, older: str, newer: str) -> bool:
        if (older, newer) not in self._known:
            self._known[older, newer] = is_ancestor(self._root, older, newer)
        return self._known[older, newer]

    def _since(self, path: str, now: Section, then: Section) -> tuple[str, ...]:
        """Commits after which the section was another one than before, newest first, down to `then`."""
        found, last, commit = list[str](), now.digest, ""
        for version in self._history.versions(path):
            section = version.page.find(last)
            if section is None:
                found.append(commit)
                last = (_counterpart(version.page, now) or then).digest
            if version.page.find(then.digest) is not None and last == then.digest:
                break
            commit = version.commit
        return tuple(one for one in found if one)


def _counterpart(page: Page, section: Section) -> Section | None:
    """The section of an earlier version that became this one."""
    same = page.find(section.digest)
    if same is not None:
        return same
    named = [one for one in page.sections if (one.level, one.slug) == (section.level, section.slug)]
    if named:
        return named[0]
    words = section.facts.words.split()
    level = (one for one in page.sections if one.level == section.level)
    rated = [(SequenceMatcher(None, one.facts.words.split(), words, autojunk=False).ratio(), one) for one in level]
    best = max(rated, key=lambda pair: pair[0], default=None)
    return best[1] if best is not None and best[0] >= _SAME else None


def _has_already(then: Section, now: Section, translation: Section) -> bool:
    """Whether the translation has what the change brought in and not what it took away: translated first, or along with
    something else."""
    added, removed = _facts(now) - _facts(then), _facts(then) - _facts(now)
    added_numbers = missing(now.facts.words, then.facts.words)
    removed_numbers = missing(then.facts.words, now.facts.words)
    if not (added or removed or added_numbers or removed_numbers):
        return False
    ours = _facts(translation)
    lost = set(missing(now.facts.words, translation.facts.words))
    kept = set(missing(translation.facts.words, now.facts.words))
    return not (added - ours or removed & ours or lost & set(added_numbers) or kept & set(removed_numbers))


def _facts(section: Section) -> set[str]:
    facts = section.facts
    return {*_named("span", facts.spans), *_named("code", (block.content.strip() for block in facts.code))}


def _named(kind: str, values: Iterable[str]) -> set[str]:
    return {f"{kind} {value}" for value in values}
