"""New homes of whole modules: where most of what they defined is now."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tooling.upgrade.replacements import advice
from tooling.upgrade.replacements.candidate import Candidate, Reason
from tooling.upgrade.replacements.imports import import_index, votes
from tooling.upgrade.symbols import Found, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.upgrade.symbols import Upstream

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
