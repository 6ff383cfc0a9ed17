"""Which new parameter an old one became, told by the signatures alone; `replacements` knows more (bodies, texts)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.symbols import Open
from tooling.upgrade.verdicts.binding import named

if TYPE_CHECKING:
    from tooling.upgrade.symbols import Parameter, Signature, Symbol, Upstream

_STARRED = ("star", "double-star")


def renamed_parameter(old: Signature, new: Signature, name: str) -> str:
    """The new name; "" if nothing speaks for one. The candidate must be new, of the same kind and type, and the only
    one that is as good."""
    gone = named(old, name)
    if gone is None:
        return ""
    fresh = [each for each in new.parameters if each.kind not in _STARRED and named(old, each.name) is None]
    lost = [each for each in old.parameters if each.kind not in _STARRED and named(new, each.name) is None]
    alike = [each for each in fresh if _alike(gone, each)]
    at_place = [each for each in alike if _index(new, each) == _index(old, gone)]
    by_words = [each for each in alike if _words(each.name) & _words(name)]
    for candidates in (
        [each for each in at_place if each in by_words],
        at_place if len(lost) == len(fresh) else [],
        by_words if len(lost) == 1 else [],
        alike if len(lost) == len(fresh) == 1 else [],
    ):
        if len(candidates) == 1:
            return candidates[0].name
    return ""


def renamed_keyword(old: Upstream, new: Upstream, before: Symbol, after: Symbol, name: str) -> str:
    """The new name of a keyword that is only read out of `**kwargs`: the one that the body reads now and did not, where
    the old one is the only one that it no longer reads. "" if it is not that clear."""
    had, has = _read_keywords(old, before), _read_keywords(new, after)
    if name in had and len(had - has) == len(has - had) == 1 and name not in has:
        return next(iter(has - had))
    return ""


def _read_keywords(upstream: Upstream, symbol: Symbol) -> frozenset[str]:
    signature = upstream.signature(symbol)
    starred = (
        [] if isinstance(signature, Open) else [each for each in signature.parameters if each.kind == "double-star"]
    )
    if not starred or not symbol.file:
        return frozenset()
    lines = upstream.release.read(symbol.file).decode("utf-8", "replace").splitlines()
    body = "\n".join(lines[symbol.line - 1 : max(symbol.end_line, symbol.line)])
    kwargs = re.escape(starred[0].name)
    reads = rf"{kwargs}(?:\.(?:pop|get|setdefault)\(|\[)\s*[\"'](\w+)[\"']|[\"'](\w+)[\"'] (?:not )?in {kwargs}\b"
    return frozenset(first or second for first, second in re.findall(reads, body))


def _alike(old: Parameter, new: Parameter) -> bool:
    """Nothing speaks against: a required one stays required, a type stays the type, a default the default."""
    if (old.default is None) != (new.default is None):
        return False
    if old.annotation and new.annotation and not _same_text(old.annotation, new.annotation):
        return False
    values = (old.folded or old.default, new.folded or new.default)
    return values[0] == values[1] or bool(_words(old.name) & _words(new.name))


def _same_text(left: str, right: str) -> bool:
    return _normalised(left) == _normalised(right)


def _normalised(annotation: str) -> frozenset[str]:
    """Names in an annotation, whatever way it is spelt: Optional[X], Union[X, None] and "X | None" are one."""
    names = set(re.findall(r"\w+", annotation))
    if "Optional" in names:
        names.add("None")
    lower = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Type": "type"}
    return frozenset(lower.get(name, name) for name in names - {"Optional", "Union", "typing", "t"})


def _index(signature: Signature, parameter: Parameter) -> int:
    return signature.parameters.index(parameter)


def _words(name: str) -> frozenset[str]:
    return frozenset(word for word in name.lower().split("_") if len(word) > 1)
