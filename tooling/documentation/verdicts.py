"""Judges every page of the tree, and every section of it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tooling.cli.git import find_repository
from tooling.documentation.compare import Difference, Links, is_untranslated, read_glossary, structural, untranslated
from tooling.documentation.history import Before, History, MarkInference
from tooling.documentation.pages import chosen, read_tree
from tooling.documentation.pairing import Pair, by_mark, side_by_side
from tooling.documentation.settings import read_docs_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tooling.cli.git import Repository
    from tooling.documentation.compare import Glossary
    from tooling.documentation.markdown import MarkdownPage, Section
    from tooling.documentation.pages import Mark, Tree, Twin


class TranslationState(StrEnum):
    """The state of one section."""

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
class SectionVerdict:
    """One section."""

    state: TranslationState
    source: Section | None
    translation: Section | None
    also: tuple[TranslationState, ...] = ()
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
        return self.state is not TranslationState.IN_STEP


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """A page and its translation."""

    source: str
    translation: str
    basis: Basis
    sections: tuple[SectionVerdict, ...] = ()
    problem: str = ""
    """Of the page as a whole: no translation, no source, a broken mark."""
    fix: str = ""

    @property
    def lags(self) -> bool:
        """Whether something is left to do."""
        return bool(self.problem) or any(one.lags for one in self.sections)


@dataclass(frozen=True, slots=True)
class DocsVerdicts:
    """All pages that were looked at."""

    pages: tuple[PageVerdict, ...]
    untranslated: tuple[str, ...] = ()
    """Pages of the source without a translation, where they need none."""


_ORDER: Final[tuple[TranslationState, ...]] = (
    TranslationState.MISSING,
    TranslationState.EXTRA,
    TranslationState.CHANGED,
    TranslationState.UNTRANSLATED,
    TranslationState.DIFFERS,
    TranslationState.REORDERED,
)
_ANOTHER: Final = 0.25
"""Share of equal words below which a section under a new heading is another one, and not the old one renamed."""


@dataclass(slots=True)
class TranslationJudge:
    """Judges pages by their marks, by history, and by what both sides say now."""

    repository: Repository
    tree: Tree
    """Only the pages that were named; all without any."""
    glossary: Glossary
    history: History | None
    """None: git is not asked."""
    inference: MarkInference | None
    links: Links

    def all(self) -> DocsVerdicts:
        """TranslationJudge every page."""
        settings = self.tree.settings
        pages = [self.twin(twin) for twin in self.tree.twins]
        if settings.complete:
            fix = "translate it, or name it in `exclude` of [tool.areal.docs]"
            for path in self.tree.untranslated:
                place = self.tree.translation_of(path)
                pages.append(PageVerdict(path, place, Basis.STRUCTURE, (), "has no translation", fix))
        for path in self.tree.orphans:
            mark = self.tree.read(path)[1]
            followed = {row.source for row in mark.rows} if mark else set()
            moved = (
                next((one for one in self.tree.untranslated if followed & self._digests(one)), "") if followed else ""
            )
            fix = f"it follows what is now {moved}: move it to {self.tree.translation_of(moved)}" if moved else ""
            page = (self.tree.source_of(path), path, Basis.STRUCTURE, (), "its source is gone")
            pages.append(PageVerdict(*page, fix or "remove it, or move it"))
        left = () if settings.complete else self.tree.untranslated
        return DocsVerdicts(tuple(sorted(pages, key=lambda page: page.source)), left)

    def twin(self, twin: Twin) -> PageVerdict:
        """TranslationJudge one page and its translation."""
        (source, _), (translation, mark) = self.tree.read(twin.source), self.tree.read(twin.translation)
        problem, fix = "", ""
        if mark is not None and (mark.broken or not mark.rows):
            problem = "its mark is broken: it was edited, or a merge left its signs in it"
            fix = f"bring the page up to date, then `areal-docs zh-mark {twin.translation}`"
            mark = None
        elif mark is not None and mark.source != twin.source:
            problem = f"its mark says that it follows {mark.source}"
            fix = f"compare it with {twin.source}, then `areal-docs zh-mark {twin.translation}`"
        if mark is not None:
            verdicts = self._marked(twin, source, translation, mark)
            basis = Basis.MARK
        else:
            verdicts = self._unmarked(twin, source, translation)
            basis = Basis.HISTORY if self.inference is not None else Basis.STRUCTURE
        return PageVerdict(twin.source, twin.translation, basis, tuple(verdicts), problem, fix)

    def _marked(self, twin: Twin, source: MarkdownPage, translation: MarkdownPage, mark: Mark) -> list[SectionVerdict]:
        pairs = []
        for pair in by_mark(source.sections, translation.sections, mark):
            pairs += self._parted(twin, pair)

        def before(pair: Pair) -> Before | None:
            if pair.row is None or pair.source is None or pair.row.source == pair.source.digest:
                return None
            return self._recorded(twin.source, pair.row.source) or Before("")

        return [self._verdict(twin, pair, before, marked=True) for pair in pairs]

    def _unmarked(self, twin: Twin, source: MarkdownPage, translation: MarkdownPage) -> list[SectionVerdict]:
        def before(pair: Pair) -> Before | None:
            if self.inference is None or pair.source is None or pair.translation is None:
                return None
            return self.inference.before((twin.source, pair.source), (twin.translation, pair.translation))

        pairs = side_by_side(source.sections, translation.sections)
        return [self._verdict(twin, pair, before, marked=False) for pair in pairs]

    def _parted(self, twin: Twin, pair: Pair) -> list[Pair]:
        """Split a pair whose source was matched by its place only when it turns out to be another section."""
        row, section = pair.row, pair.source
        if row is None or section is None or row.source == section.digest or row.slug == section.slug:
            return [pair]
        then = self._recorded(twin.source, row.source)
        if then is None or not then.text:
            return [pair]
        words = then.text.split(), section.text.split()
        if difflib.SequenceMatcher(None, *words, autojunk=False).ratio() >= _ANOTHER:
            return [pair]
        parts = [Pair(section, None)]
        return parts if pair.translation is None else [*parts, Pair(None, pair.translation, row)]

    def _verdict(
        self, twin: Twin, pair: Pair, before: Callable[[Pair], Before | None], *, marked: bool
    ) -> SectionVerdict:
        source, translation = pair.source, pair.translation
        if translation is None:
            return SectionVerdict(TranslationState.MISSING, source, None)
        if source is None:
            once = self._recorded(twin.source, pair.row.source) if pair.row is not None else None
            note = "the source does not have it any more" if pair.row is not None else ""
            return SectionVerdict(TranslationState.EXTRA, None, translation, before=once, note=note)
        words_left = is_untranslated(source, translation)
        then = before(pair) if pair.row is not None or not words_left else None  # copied: nothing was followed yet
        edited = pair.row is not None and pair.row.translation != translation.digest
        new = marked and pair.row is None
        states = {TranslationState.CHANGED} if then is not None or new else set[TranslationState]()
        differences = list[Difference]()
        if words_left:
            states.add(TranslationState.UNTRANSLATED)
        else:
            differences = structural(source, translation, self.links, (twin.source, twin.translation))
            differences += [*untranslated(source, translation), *self.glossary.misused(source, translation)]
            states |= {TranslationState.DIFFERS} if differences else set()
        states |= {TranslationState.REORDERED} if pair.moved else set()
        found = [state for state in _ORDER if state in states] or [TranslationState.IN_STEP]
        note = _note(found[0], then, edited=edited, new=new)
        return SectionVerdict(found[0], source, translation, tuple(found[1:]), then, tuple(differences), note)

    def _recorded(self, path: str, digest: str) -> Before | None:
        """Find the section that a mark names in history, by its hash."""
        if self.history is None:
            return None
        found = self.history.section(path, digest)
        if found is None:
            return None
        section, version = found
        since = []
        for one in self.history.versions(path):
            if one.commit == version.commit:
                break
            since.append(one.commit)
        return Before(section.text, version.commit, version.date, tuple(since))

    def _digests(self, path: str) -> set[str]:
        return {section.digest for section in self.tree.read(path)[0].sections}


def _note(state: TranslationState, before: Before | None, *, edited: bool, new: bool) -> str:
    if state is TranslationState.CHANGED and new:
        return "new on both sides since the mark; mark it when it says the same"
    if state is TranslationState.CHANGED and before is not None and not before.text:
        said = "what it follows is not in the history of this clone"
        return f"{said}; the translation was edited since its mark" if edited else said
    if state is TranslationState.CHANGED and edited:
        return "the translation was edited since its mark: if it says the same now, mark it"
    return ""


def open_judge(start: Path, names: Sequence[str], *, ask_history: bool = True) -> TranslationJudge:
    """Read settings and list pages: those that are named, or all.

    Raises UsageError where there is no repository, no such page, or settings that make no sense.
    """
    repository = find_repository(start)
    root, settings = repository.root, read_docs_settings(repository.root)
    whole = read_tree(root, repository.files(), settings)
    history = History(root, settings.generated) if ask_history else None
    inference = MarkInference(root, history) if history is not None else None
    glossary = read_glossary(root, settings.glossary)
    return TranslationJudge(repository, chosen(whole, names), glossary, history, inference, Links(whole))


def source_diff(verdict: SectionVerdict, path: str) -> str:
    """Return how the source's section changed since the translation followed it; "" when that is not known."""
    if verdict.before is None or not verdict.before.text:
        return ""
    new = verdict.source.text if verdict.source is not None else ""
    commit = f" {verdict.before.commit[:12]}" if verdict.before.commit else ""
    lines = difflib.unified_diff(
        verdict.before.text.splitlines(), new.splitlines(), f"{path}{commit}", path, lineterm="", n=2
    )
    return "\n".join(lines)
