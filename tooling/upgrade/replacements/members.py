"""Find where the members of a class and the content of a module went."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from tooling.python.symbols.symbol import Found, SymbolKind
from tooling.upgrade import advice
from tooling.upgrade.replacements import similarity
from tooling.upgrade.replacements.candidates import Candidate, Reason, best
from tooling.upgrade.replacements.evidence import import_index, votes
from tooling.upgrade.replacements.similarity import is_compatible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.symbols.symbol import Symbol
    from tooling.upgrade.releases import Upstream


_MOST = 0.6
"""Share of a module's names that another one must define now to be its new home."""


def new_module(dotted: str, old: Upstream, new: Upstream, texts: Iterable[str]) -> Candidate | None:
    """The module that took the place of one that is gone."""
    for text in texts:
        for word in advice.advised(text):
            if _is_module(word, new):
                return Candidate(word, {Reason.ADVICE})
    container, _, name = dotted.rpartition(".")
    voted = votes(import_index(old), import_index(new), name, frozenset({container}))
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


LEAST = Reason.SIMILAR_BODY.weight
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
    places = similarity.took_places(old.source_of(before.symbol), new.source_of(owner), lost, fresh) if is_same else {}
    values_lost = [each for each in lost if _is_value(before.symbol, each, old)]
    values_fresh = [each for each in fresh if _is_value(owner, each, new)]
    for other, (candidate, symbol) in found.items():
        if values_lost == [name] and values_fresh == [other]:
            candidate.reasons.add(Reason.ONLY_ONE)
        candidate.reasons.update(_reasons(gone, symbol, old, new))
        if places.get(name) == other:
            candidate.reasons.add(Reason.SUBSTITUTED)
        if gone.kind is symbol.kind and other in fresh and similarity.is_similar_name(name, other):
            candidate.reasons.add(Reason.SIMILAR_NAME)
    chosen = best((candidate for candidate, _ in found.values()), LEAST)
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
        left = similarity.tokens(old.source_of(gone), gone.name)
        right = similarity.tokens(new.source_of(symbol), symbol.name)
        if similarity.similarity(left, right) >= similarity.SIMILAR:
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
