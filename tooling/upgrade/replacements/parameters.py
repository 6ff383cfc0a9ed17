"""New names of parameters: among those that a callable has now and had not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.python.operations import UNKNOWN, literal
from tooling.python.symbols.annotations import type_names
from tooling.python.symbols.symbol import Open
from tooling.upgrade import advice
from tooling.upgrade.replacements import similarity
from tooling.upgrade.replacements.candidates import Candidate, Reason, best

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.python.symbols.symbol import Parameter, Signature, Symbol
    from tooling.upgrade.releases import Upstream

LEAST = Reason.SAME_PLACE.weight + Reason.SHARED_WORDS.weight
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
    places = similarity.took_places(*bodies_of, [each.name for each in lost], [each.name for each in fresh])
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
            is_carried = only and similarity.carries_on(*bodies_of, name, each.name)
            found[each.name].is_doubtful = not _is_proven(gone, each, reasons, is_carried=is_carried, only=only)
    found.pop(name, None)
    return best(found.values(), LEAST)


def announcements(upstream: Upstream, symbol: Symbol, name: str) -> list[str]:
    """What the body of a function or constructor says about the end of a parameter."""
    return list(advice.texts_about(_body(upstream, symbol), name))


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
    if similarity.is_similar_name(gone.name, other.name):
        found += [Reason.SIMILAR_NAME, Reason.COMPATIBLE] if same_default else [Reason.SIMILAR_NAME]
    if _words(gone.name) & _words(other.name):
        found.append(Reason.SHARED_WORDS)
        found += [Reason.COMPATIBLE] if only and same_default else []
    return found


def _body(upstream: Upstream, symbol: Symbol) -> str:
    """The text of a callable: of a class that of its constructor, or all of it where that is made from fields."""
    return upstream.source_of(upstream.function_of(symbol) or symbol)


def _flat(annotation: str) -> str:
    return "".join(annotation.split())


def _words(name: str) -> frozenset[str]:
    return frozenset(word for word in name.lower().split("_") if len(word) > 2)
