"""Explain what is gone: moved, renamed or removed, and what to write instead."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from tooling.python.once import once
from tooling.python.operations import UNKNOWN, literal
from tooling.python.symbols.annotations import type_names
from tooling.python.symbols.symbol import Found, Open, SymbolKind
from tooling.python.symbols.targets import reach
from tooling.upgrade import advice
from tooling.upgrade.findings import FindingKind, Replacement
from tooling.upgrade.replacements.candidates import (
    SIMILAR,
    Candidate,
    GoneSymbol,
    Reason,
    best,
    callable_of,
    carries_on,
    fits,
    is_compatible,
    is_similar_name,
    similarity,
    subject_of,
    tokens,
    took_places,
    words_of,
)
from tooling.upgrade.replacements.homes import Homes, votes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tooling.python.symbols.symbol import Absent, Parameter, Signature, Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import Use


_LEAST_PARAMETER = Reason.SAME_PLACE.weight + Reason.SHARED_WORDS.weight
_STARRED = ("star", "double-star")
_BUILTIN = re.compile(r"\b(?:bool|int|float|str|bytes|list|dict|tuple|set|List|Dict|Tuple|Set|Sequence|Mapping)\b")


def best_parameter(
    name: str, before: Symbol, after: Symbol, old: Upstream, new: Upstream, texts: Iterable[str]
) -> Candidate | None:
    """What a parameter of a function or class is called now; None if nothing speaks for one name, or for two alike."""
    left, right = old.signature(before), new.signature(after)
    if isinstance(left, Open) or isinstance(right, Open):
        return None
    gone = next((each for each in left.parameters if each.name == name), None)
    had = {each.name for each in left.parameters}
    has = {each.name for each in right.parameters}
    fresh = [each for each in right.parameters if each.name not in had and each.kind not in _STARRED]
    lost = [each for each in left.parameters if each.name not in has and each.kind not in _STARRED]
    bodies_of = _body(old, before), _body(new, after)
    # Names that a release tells to use instead, in texts about this parameter: also the new one, where it raises
    word = re.compile(rf"\b{re.escape(name)}\b")
    about = [text for text in texts if word.search(text)]
    about += [text for body in bodies_of for text in advice.texts_about(body, name)]
    if gone is not None and gone.deprecated:
        about.append(gone.deprecated)
    told = {word.rpartition(".")[2] for text in about for word in advice.advised(text)}
    places = took_places(*bodies_of, [each.name for each in lost], [each.name for each in fresh])
    found = {each.name: Candidate(each.name) for each in right.parameters if each in fresh or each.name in told}
    for each in right.parameters:
        if each.name not in found or each.name == name:
            continue
        reasons = found[each.name].reasons
        if each.name in told or name in each.aliases:
            reasons.add(Reason.ADVICE)
        if each not in fresh:
            found[each.name].is_doubtful = gone is not None and _clash(gone, each)
            continue
        if places.get(name) == each.name:
            reasons.add(Reason.SUBSTITUTED)
        if gone is not None:
            only = len(lost) == len(fresh) == 1
            reasons.update(_likeness(gone, left, each, right, only=only))
            # One that became several, or went with others, is seldom just renamed; and that one went where another
            # came says nothing about what they are for.
            is_carried = only and carries_on(*bodies_of, name, each.name)
            found[each.name].is_doubtful = not _is_proven(gone, each, reasons, is_carried=is_carried, only=only)
    found.pop(name, None)
    return best(found.values(), _LEAST_PARAMETER)


def _is_proven(gone: Parameter, other: Parameter, reasons: set[Reason], *, is_carried: bool, only: bool) -> bool:
    """Whether more than place and default speaks for a name, so that it may be written without a person: the release
    says it, its body does with the new one what it did with the old one, or type and name are almost the same."""
    if _clash(gone, other):
        return False
    if Reason.ADVICE in reasons or is_carried:
        return True
    same_type = bool(gone.annotation) and _flat(gone.annotation) == _flat(other.annotation)
    return only and same_type and Reason.SIMILAR_NAME in reasons


def _clash(gone: Parameter, other: Parameter) -> bool:
    """Whether one takes what the other cannot mean: a flag that became a name, a list that became a number."""
    types = [frozenset(_BUILTIN.findall(each.annotation or "")) for each in (gone, other)]
    if types[0] and types[1]:
        return not types[0] & types[1]
    kinds = [_kind_of_default(each) for each in (gone, other)]
    return bool(kinds[0] and kinds[1] and kinds[0] != kinds[1])


def _kind_of_default(parameter: Parameter) -> str:
    """Name of the type of a constant default; "" where there is none, or it is None."""
    value = literal(parameter.folded or parameter.default or "None")
    return (
        "" if value is None or value is UNKNOWN else "number" if type(value) in (int, float) else type(value).__name__
    )


def _likeness(gone: Parameter, left: Signature, other: Parameter, right: Signature, *, only: bool) -> list[Reason]:
    same_default = (gone.folded or gone.default) == (other.folded or other.default)
    same_type = bool(gone.annotation) and type_names(gone.annotation) == type_names(other.annotation)
    if (gone.default is None) != (other.default is None) or (gone.annotation and other.annotation and not same_type):
        return []
    found = []
    if left.parameters.index(gone) == right.parameters.index(other) and same_default:
        # Nothing but a default of None at an equal place says little: half of all parameters have one.
        found += [Reason.SAME_PLACE] if same_type or only or gone.default not in (None, "None") else []
    if only and same_default:
        found.append(Reason.ONLY_ONE)
    if is_similar_name(gone.name, other.name):
        found += [Reason.SIMILAR_NAME, Reason.COMPATIBLE] if same_default else [Reason.SIMILAR_NAME]
    if words_of(gone.name) & words_of(other.name):
        found.append(Reason.SHARED_WORDS)
        found += [Reason.COMPATIBLE] if only and same_default else []
    return found


def _body(upstream: Upstream, symbol: Symbol) -> str:
    """The text of a callable: of a class that of its constructor, or all of it where that is made from fields."""
    return upstream.source_of(upstream.function_of(symbol) or symbol)


def _flat(annotation: str) -> str:
    return "".join(annotation.split())


_MOST = 0.6
"""Share of a module's names that another one must define now to be its new home."""


def new_module(dotted: str, old: Upstream, new: Upstream, texts: Iterable[str]) -> Candidate | None:
    """The module that took the place of one that is gone."""
    for text in texts:
        for word in advice.advised(text):
            if _is_module(word, new):
                return Candidate(word, {Reason.ADVICE})
    container, _, name = dotted.rpartition(".")
    voted = votes(old, new, name, frozenset({container}))
    for (module, other), _ in voted.most_common(1):
        if _is_module(f"{module}.{other}", new):
            return Candidate(f"{module}.{other}", {Reason.IMPORTERS})
    table, before = new.names().by_name, old.names().by_name
    own = [name for name, rows in before.items() if any(row.module == dotted and row.kind != "value" for row in rows)]
    counted: Counter[str] = Counter()
    for name in own:
        was = {row.module for row in before[name]}
        counted.update({row.module for row in table.get(name, ()) if row.module not in was})
    ranked = counted.most_common(2)
    if not ranked or ranked[0][1] < max(1, _MOST * len(own)) or (len(ranked) > 1 and ranked[1][1] == ranked[0][1]):
        return None
    reasons = {Reason.SAME_NAME} | ({Reason.SIMILAR_BODY} if ranked[0][1] > 1 else set())
    return Candidate(ranked[0][0], reasons)


def _is_module(dotted: str, upstream: Upstream) -> bool:
    found = upstream.resolve(dotted) if "." in dotted else None
    return isinstance(found, Found) and found.symbol.kind is SymbolKind.MODULE


_LEAST_MEMBER = Reason.SIMILAR_BODY.weight
_MOST_CLASSES = 12
_ON_SELF = re.compile(r"^\s*self\.(\w+)\s*(?::[^=\n]*)?=(?!=)", re.MULTILINE)

_COMMON = frozenset(["None", "True", "False", "0", "1", "''", '""', "[]", "{}", "()", "...", "auto()", "enum.auto()"])
"""Values that half of all fields have."""


def best_member(
    gone: Symbol, name: str, owner: Symbol, old: Upstream, new: Upstream, texts: Iterable[str]
) -> tuple[Candidate, Symbol] | None:
    """What a member of a class is called now; None if nothing speaks for one name, or for two alike.

    gone: the member in the old release, `name` what it is called there; owner: the class in the new one; texts: what
    old releases say about its end."""
    before = old.resolve(gone.owner)
    if not isinstance(before, Found):
        return None
    told = [word.rpartition(".")[2] for text in texts for word in advice.advised(text)]
    had, has = _names(before.symbol, old), _names(owner, new)
    found: dict[str, tuple[Candidate, Symbol]] = {}
    fresh = [each for each in has if each not in had]
    for other in dict.fromkeys([*told, *fresh]):
        resolution = new.member(owner, other)
        if other != name and isinstance(resolution, Found):
            candidate = Candidate(f"{owner.dotted}.{other}", is_doubtful=other.startswith("_"))
            found[other] = candidate, resolution.symbol
            if other in told:
                candidate.reasons.add(Reason.ADVICE)
    lost = [each for each in had if each not in has]
    is_same = before.symbol.name == owner.name  # lines of two classes stand in no relation to each other
    places = took_places(old.source_of(before.symbol), new.source_of(owner), lost, fresh) if is_same else {}
    values_lost = [each for each in lost if _is_value(before.symbol, each, old)]
    values_fresh = [each for each in fresh if _is_value(owner, each, new)]
    for other, (candidate, symbol) in found.items():
        if values_lost == [name] and values_fresh == [other]:
            candidate.reasons.add(Reason.ONLY_ONE)
        candidate.reasons.update(_reasons(gone, symbol, old, new))
        if places.get(name) == other:
            candidate.reasons.add(Reason.SUBSTITUTED)
        if gone.kind is symbol.kind and other in fresh and is_similar_name(name, other):
            candidate.reasons.add(Reason.SIMILAR_NAME)
    chosen = best((candidate for candidate, _ in found.values()), _LEAST_MEMBER)
    return next((pair for pair in found.values() if pair[0] is chosen), None)


def _reasons(gone: Symbol, symbol: Symbol, old: Upstream, new: Upstream) -> Iterator[Reason]:
    if gone.kind is not symbol.kind:
        return
    if gone.kind is SymbolKind.VALUE:
        if gone.value and gone.value == symbol.value and gone.value not in _COMMON:
            yield Reason.SAME_VALUE
        return
    if gone.digest and gone.digest == symbol.digest:
        yield Reason.SAME_BODY
    else:
        left = tokens(old.source_of(gone), gone.name)
        right = tokens(new.source_of(symbol), symbol.name)
        if similarity(left, right) >= SIMILAR:
            yield Reason.SIMILAR_BODY
    if gone.binding == symbol.binding and is_compatible(old, gone, new, symbol):
        yield Reason.COMPATIBLE


def _is_value(owner: Symbol, name: str, upstream: Upstream) -> bool:
    found = upstream.member(owner, name)
    return isinstance(found, Found) and found.symbol.kind is SymbolKind.VALUE


def _names(symbol: Symbol, upstream: Upstream) -> list[str]:
    """Names bound in a class and its bases, and on `self` in their methods."""
    classes, _ = upstream.bases(symbol)
    found: list[str] = []
    for each in classes[:_MOST_CLASSES]:
        found += upstream.body_names(each)
        found += _ON_SELF.findall(upstream.source_of(each))
    return list(dict.fromkeys(found))


Explanation = tuple[FindingKind, Replacement | None]
_SURE = Reason.SAME_NAME.weight + Reason.COMPATIBLE.weight
"""Weight from which a replacement may be written without a person: a unique new home of the name that can be called
as before, or anything stronger."""


class Explainer:
    """Explains what is gone between two releases. One instance serves a whole audit: answers are kept."""

    def __init__(self, between: Callable[[str], Sequence[Upstream]] = lambda _: ()) -> None:
        """between: gives the releases of a distribution after the old and before the new one that happen to be at hand;
        they may announce what the old one did not. It is asked only when something is gone at all."""
        self._between = cache(between)

    @once()
    def __call__(self, absent: Absent, old: Upstream, new: Upstream, use: Use) -> Explanation | None:
        """MOVED, RENAMED or PARAM_RENAMED with what to write; REMOVED with nothing; None where it is not even known
        what is gone. absent: the step at which the new release fails. For a parameter `absent.container` is the
        function or class, as the old release names it."""
        function = callable_of(absent, old, use)
        if function is not None:
            return self._parameter(absent, function, old, new, use)
        subject = subject_of(absent, old, use)
        if subject is None:
            return None
        texts = (subject.deprecated, absent.said, *self._announced(old, subject.path))
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

    @once()
    def _home(
        self, subject: GoneSymbol, old: Upstream, new: Upstream, texts: tuple[str, ...]
    ) -> tuple[Candidate, Symbol] | None:
        """Look for the new home of a symbol once, however many places use it."""
        return Homes(subject, old, new, texts).best()

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
        home = self._home(owner, old, new, (owner.deprecated, *self._announced(old, path)))
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
        texts = [before.deprecated, *self._announced(old, before.dotted, absent.name)]
        best = best_parameter(absent.name, before, after, old, new, texts)
        if best is None:
            return FindingKind.PARAM_REMOVED, None
        certain = not best.is_doubtful and best.weight >= _SURE and fits(new, after, use, (absent.name, best.text))
        return FindingKind.PARAM_RENAMED, Replacement(best.text, best.why, certain)

    def _announced(self, old: Upstream, path: str, parameter: str = "") -> list[str]:
        """What releases in between say about it, or about a parameter of it."""
        told = []
        for upstream in self._between(old.source.origin.distribution):
            found = upstream.resolve(path)
            if isinstance(found, Found):
                told += [text for text in (found.deprecated, found.symbol.deprecated) if text]
                told += advice.texts_about(_body(upstream, found.symbol), parameter) if parameter else []
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
