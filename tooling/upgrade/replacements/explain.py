"""Explain what is gone: moved, renamed or removed, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.python.symbols.symbol import Found, SymbolKind
from tooling.python.symbols.targets import reach
from tooling.upgrade.findings import FindingKind, Replacement
from tooling.upgrade.replacements.candidates import Candidate, GoneSymbol, Reason, callable_of, subject_of
from tooling.upgrade.replacements.homes import Homes
from tooling.upgrade.replacements.members import best_member, new_module
from tooling.upgrade.replacements.parameters import announcements, best_parameter
from tooling.upgrade.replacements.similarity import fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.symbols.symbol import Absent, Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import Use

Explanation = tuple[FindingKind, Replacement | None]
_SURE = Reason.SAME_NAME.weight + Reason.COMPATIBLE.weight
"""Weight from which a replacement may be written without a person: a unique new home of the name that can be called
as before, or anything stronger."""


class Explainer:
    """Explains what is gone between two releases. One instance serves a whole audit: answers are kept."""

    def __init__(self, between: Sequence[Upstream] = ()) -> None:
        """between: releases after the old and before the new one that happen to be at hand; they may announce what the
        old one did not."""
        self._between = tuple(between)
        self._kept: dict[tuple[int, int, Absent, Use], Explanation | None] = {}
        self._homes: dict[tuple[int, int, GoneSymbol, tuple[str, ...]], tuple[Candidate, Symbol] | None] = {}

    def __call__(self, absent: Absent, old: Upstream, new: Upstream, use: Use) -> Explanation | None:
        """MOVED, RENAMED or PARAM_RENAMED with what to write; REMOVED with nothing; None where it is not even known
        what is gone. absent: the step at which the new release fails. For a parameter `absent.container` is the
        function or class, as the old release names it."""
        key = (id(old), id(new), absent, use)
        if key not in self._kept:
            self._kept[key] = self._explained(absent, old, new, use)
        return self._kept[key]

    def _explained(self, absent: Absent, old: Upstream, new: Upstream, use: Use) -> Explanation | None:
        function = callable_of(absent, old, use)
        if function is not None:
            return self._parameter(absent, function, old, new, use)
        subject = subject_of(absent, old, use)
        if subject is None:
            return None
        texts = [subject.deprecated, absent.said, *self._announced(subject.path)]
        if subject.symbol.owner:
            return self._member(subject, absent, old, new, use, texts)
        if subject.symbol.kind is SymbolKind.MODULE:
            module = new_module(subject.path, old, new, texts)
            if module is None:
                return FindingKind.REMOVED, None
            certain = module.weight >= _SURE
            return FindingKind.MOVED, Replacement(module.text, module.why, certain)
        home = self._home(subject, old, new, texts)
        if home is None:
            outside = (
                not subject.symbol.file and "." in subject.symbol.dotted and not old.store.owns(subject.symbol.dotted)
            )
            passed_on = Replacement(subject.symbol.dotted, "the old one only passed it on", certain=False)
            return FindingKind.REMOVED, passed_on if outside else None
        candidate, symbol = home
        # flask's importers take `request_ctx` now, where they took a stack of such
        other_value = symbol.kind is SymbolKind.VALUE and candidate.reasons <= {Reason.IMPORTERS, Reason.COMPATIBLE}
        same = symbol.kind is subject.symbol.kind and not other_value
        certain = _is_sure(candidate) and same and fits(new, symbol, use)
        return _kind(subject.path, candidate.text), Replacement(candidate.text, candidate.why, certain)

    def _home(
        self, subject: GoneSymbol, old: Upstream, new: Upstream, texts: Sequence[str]
    ) -> tuple[Candidate, Symbol] | None:
        """Look for the new home of a symbol once, however many places use it."""
        key = (id(old), id(new), subject, tuple(texts))
        if key not in self._homes:
            self._homes[key] = Homes(subject, old, new, texts).best()
        return self._homes[key]

    def _member(
        self, subject: GoneSymbol, absent: Absent, old: Upstream, new: Upstream, use: Use, texts: Sequence[str]
    ) -> Explanation:
        owner = new.resolve(absent.container)
        if isinstance(owner, Found) and owner.symbol.kind is SymbolKind.CLASS and absent.name == subject.name:
            found = best_member(subject.symbol, subject.name, owner.symbol, old, new, texts)
            if found is None:
                return FindingKind.REMOVED, None
            candidate, symbol = found
            same = symbol.kind is subject.symbol.kind and symbol.binding == subject.symbol.binding
            certain = _is_sure(candidate) and same and fits(new, symbol, use)
            return FindingKind.RENAMED, Replacement(candidate.text, candidate.why, certain)
        return self._member_of_moved(subject, old, new, use)

    def _member_of_moved(self, subject: GoneSymbol, old: Upstream, new: Upstream, use: Use) -> Explanation:
        """A member of a class that itself went: where the class is now, if that still has it."""
        path, _, name = subject.path.rpartition(".")
        found = old.resolve(path)
        if not isinstance(found, Found) or found.symbol.kind is not SymbolKind.CLASS:
            return FindingKind.REMOVED, None
        owner = GoneSymbol(path, found.symbol, found.symbol.deprecated or found.deprecated)
        home = self._home(owner, old, new, [owner.deprecated, *self._announced(path)])
        if home is None:
            return FindingKind.REMOVED, None
        candidate, symbol = home
        member = new.member(symbol, name)
        if not isinstance(member, Found):
            return FindingKind.REMOVED, None
        certain = _is_sure(candidate) and fits(new, member.symbol, use)
        text = f"{candidate.text}.{name}"
        return _kind(subject.path, candidate.text, container=True), Replacement(text, candidate.why, certain)

    def _parameter(self, absent: Absent, before: Symbol, old: Upstream, new: Upstream, use: Use) -> Explanation:
        # What the call reaches now: it may be defined elsewhere, behind the same name
        reached = [each.symbol for each in reach(new, use.target).callables]
        after = next((each for each in reached if each.dotted == absent.container), None)
        if after is None and len(reached) == 1:
            after = reached[0]
        if after is None:
            found = new.resolve(absent.container)
            after = found.symbol if isinstance(found, Found) else None
        if after is None or after.kind not in (SymbolKind.FUNCTION, SymbolKind.CLASS):
            return FindingKind.PARAM_REMOVED, None
        texts = [before.deprecated, *self._announced(before.dotted, absent.name)]
        best = best_parameter(absent.name, before, after, old, new, texts)
        if best is None:
            return FindingKind.PARAM_REMOVED, None
        certain = not best.is_doubtful and best.weight >= _SURE and fits(new, after, use, (absent.name, best.text))
        return FindingKind.PARAM_RENAMED, Replacement(best.text, best.why, certain)

    def _announced(self, path: str, parameter: str = "") -> list[str]:
        """What releases in between say about it, or about a parameter of it."""
        told = []
        for upstream in self._between:
            found = upstream.resolve(path)
            if isinstance(found, Found):
                told += [text for text in (found.deprecated, found.symbol.deprecated) if text]
                told += announcements(upstream, found.symbol, parameter) if parameter else []
        return told


def _is_sure(candidate: Candidate) -> bool:
    """Whether a definition may be taken without a person: what is only advised, or only looks alike, must be callable
    as the old one was."""
    if candidate.is_doubtful or candidate.weight < _SURE:
        return False
    return Reason.COMPATIBLE in candidate.reasons or not candidate.reasons <= {Reason.ADVICE, Reason.SIMILAR_BODY}


def _kind(old: str, new: str, *, container: bool = False) -> FindingKind:
    """MOVED keeps the last name (of a member's container: that of its class)."""
    before = old.rpartition(".")[0] if container else old
    return FindingKind.MOVED if before.rpartition(".")[2] == new.rpartition(".")[2] else FindingKind.RENAMED
