"""What is said of a section, of a page, and of all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.documentation.markdown.records import Section


class State(StrEnum):
    """Of one section."""

    IN_STEP = "in step"
    CHANGED = "source changed"
    """The source says something else than what the translation follows."""
    MISSING = "missing"
    """The source has the section, the translation has not."""
    EXTRA = "extra"
    """The translation has it, the source has not, or not any more."""
    REORDERED = "reordered"
    """It stands elsewhere among its neighbours than in the source."""
    UNTRANSLATED = "untranslated"
    """It is still in the source's words."""
    DIFFERS = "structure differs"
    """Something differs that does not depend on the language."""


class Basis(StrEnum):
    """What a page's verdict rests on."""

    MARK = "mark"
    HISTORY = "history"
    """The page has no mark: what git knows of when its sections were last changed."""
    STRUCTURE = "structure"
    """Neither mark nor history: only what both pages say now."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a translation has to keep and has not."""

    kind: str
    """code, inline-code, links, numbers, images, tables, lists, words, glossary."""
    message: str
    line: int
    """1-based, in the translation."""


@dataclass(frozen=True, slots=True)
class Before:
    """The section of the source that the translation follows."""

    text: str
    """"" when it is not in the history of this clone."""
    commit: str = ""
    """The newest commit that has it."""
    date: str = ""
    since: tuple[str, ...] = ()
    """Commits that changed it since, newest first; as far as they are known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One section."""

    state: State
    source: Section | None
    translation: Section | None
    also: tuple[State, ...] = ()
    """Further states: a section can be moved and out of date at once."""
    before: Before | None = None
    """Only for CHANGED, and for EXTRA where the source had it once."""
    differences: tuple[Difference, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """For people."""
        section = self.source or self.translation
        return section.name if section is not None else ""

    @property
    def lags(self) -> bool:
        """Whether something is left to do."""
        return self.state is not State.IN_STEP


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """A page and its translation."""

    source: str
    translation: str
    basis: Basis
    sections: tuple[Verdict, ...] = ()
    problem: str = ""
    """Of the page as a whole: no translation, no source, a broken mark."""
    fix: str = ""

    @property
    def lags(self) -> bool:
        """Whether something is left to do."""
        return bool(self.problem) or any(one.lags for one in self.sections)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All pages that were looked at."""

    pages: tuple[PageVerdict, ...]
    untranslated: tuple[str, ...] = ()
    """Pages of the source without a translation, where they need none."""
