"""Judge uses of values that nothing types, by the attributes used on them. Never more than a warning.

    def prompt(tokenizer, chat):                         # which class has apply_chat_template? in transformers
        return tokenizer.apply_chat_template(chat)       # PreTrainedTokenizerBase and ProcessorMixin do

A class is a candidate if the old release has in it whatever is used on the value, and a call fits it. Something is
said only if it holds for all candidates.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import (
    Attribute,
    Awaited,
    Called,
    Duck,
    Either,
    Entered,
    InstanceOf,
    ItemOf,
    Iterated,
    Name,
    Unknown,
    is_distinctive,
)
from tooling.python.symbols.calls import bind
from tooling.python.symbols.symbol import Absent, Builtin, Found, Instance, SymbolKind, Values
from tooling.upgrade.findings import AuditFinding, AuditSeverity
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.case import JudgedUse
from tooling.upgrade.verdicts.comparison import MOST_DEFINERS
from tooling.upgrade.verdicts.judge import judge
from tooling.upgrade.verdicts.presence import derivation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.access_paths import AccessPath
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import PassedArguments, Use
    from tooling.upgrade.verdicts.comparison import JudgeContext, ReleasePair

_MOST_CANDIDATES = 8
"""Different definitions that a use may mean."""
_SURE = 0.5


def is_untyped(use: Use) -> bool:
    """Whether only the attributes that are used say what the value is."""
    return isinstance(use.target, Attribute) and isinstance(use.target.base, Duck)


def as_untyped(case: JudgedUse, *, unresolved: bool) -> Use | None:
    """The use as one of a value that nothing types: its annotation lacks the name (`tokenizer: AutoTokenizer`), or the
    release does not say what its call returns (`AutoTokenizer.from_pretrained(...)`)."""
    use, target = case.use, case.use.target
    ways = (
        [each for each in target.members if not isinstance(each, Unknown)] if isinstance(target, Either) else [target]
    )
    target = ways[0]
    if not isinstance(target, Attribute) or use.action not in (Action.CALL, Action.READ):
        return None
    if any(not isinstance(each, Attribute) or each.name != target.name for each in ways):
        return None  # of several values the same is asked
    opened = isinstance(target.base, Called) and bool(case.before.open) and not case.before.found
    if not is_distinctive(target.name) or not (opened or (unresolved and isinstance(target.base, InstanceOf))):
        return None
    if opened and case.old.member_names().get(target.name) == case.new.member_names().get(target.name):
        return None
    value = Duck(frozenset({target.name}), use.symbol_text.partition(f".{target.name}")[0])
    return replace(use, target=Attribute(value, target.name))


def as_annotated(case: JudgedUse) -> JudgedUse:
    """The case with what only the new version says of a value, if it says anything: `create_engine(...)` gives an
    Engine. The old one, which has that class, is taken to have given it, too."""
    target = case.use.target
    if not isinstance(target, Attribute) or case.before.found or not case.before.open:
        return case
    base = _told(case, target.base)
    if base is None:
        return case
    why = f"{case.new.source.origin.version} says what the value is, the old version does not"
    use = replace(case.use, target=Attribute(base, target.name), evidence=case.use.evidence or why)
    return replace(case, use=use)


def _told(case: JudgedUse, path: AccessPath) -> AccessPath | None:
    """The path with the first call in it that the old version says nothing of as what the new version says it gives."""
    if not isinstance(path, Attribute | Called | Awaited | Iterated | Entered | ItemOf):
        return None
    inner = _told(case, path.base)
    if inner is not None:
        return replace(path, base=inner)
    before = case.old.value(path) if isinstance(path, Called) else None
    # Some of what its `return`s may give does not say all
    told = before is not None and before.types and not (before.inferred and before.open)
    if not isinstance(path, Called) or told:
        return None
    after = case.new.follow(path)
    if not isinstance(after, Values) or after.inferred:
        return None
    given = [each for each in after.types if each != Builtin("NoneType")]
    if len(given) != 1 or not isinstance(given[0], Instance):
        return None
    same = case.old.resolve(given[0].symbol.dotted)
    is_class = isinstance(same, Found) and same.symbol.kind is SymbolKind.CLASS
    return InstanceOf(Name(given[0].symbol.dotted)) if is_class else None


def changed_members(pairs: Sequence[ReleasePair]) -> frozenset[str]:
    """Attributes of classes that an old release has and the new one has not, or writes in another way; and parameters
    that no function of the new one has, as `name=`. What many classes have counts on `self` only, as `self.name`."""
    found: set[str] = set()
    for pair in pairs:
        new, taken = pair.new.member_names(), pair.new.parameter_names()
        found.update(f"{name}=" for name in pair.old.parameter_names() if name not in taken)
        for name, definers in pair.old.member_names().items():
            if name.startswith("__") and name.endswith("__"):
                continue
            now = {(owner.rpartition(".")[2], shape) for owner, shape in new.get(name, {}).items()}
            if any((owner.rpartition(".")[2], shape) not in now for owner, shape in definers.items()):
                found.add(name if len(definers) <= MOST_DEFINERS else f"self.{name}")
    return frozenset(found)


def judge_untyped(use: Use, pair: ReleasePair, context: JudgeContext) -> list[AuditFinding]:
    """What becomes of a use whichever class is meant."""
    assert isinstance(use.target, Attribute)
    assert isinstance(use.target.base, Duck)
    if _takes_a_keyword(use.target.base, use.target.name, use.arguments, pair.old):
        by_keyword = judge(JudgedUse(replace(use, target=Unknown()), pair.old, pair.new, context))
        if by_keyword:
            return [replace(each, confidence=min(each.confidence, _SURE)) for each in by_keyword]
    if use.target.base.label.startswith(":"):
        return []  # it is of a class of another package
    cases = [
        JudgedUse(replace(use, target=Attribute(InstanceOf(Name(owner)), use.target.name)), pair.old, pair.new, context)
        for owner in candidates(pair.old, use.target.base, use.target.name, context.names_in(use.place.path))
    ]
    arguments = use.arguments
    if use.action is Action.CALL and arguments is not None:  # the old version took the call
        bound = [[bind(e.signature, arguments, e.accepts) for e in case.called_before.callables] for case in cases]
        fits = [any(each.fits(len(arguments.given)) for each in found) for found in bound]
        cases = [case for case, fit in zip(cases, fits, strict=True) if fit]
    # A class that is gone altogether tells nothing of its members
    cases = [case for case in cases if not case.after.cascade]
    if not cases or len(cases) > _MOST_CANDIDATES:
        return []
    found = [{(each.kind, each.parameter): each for each in judge(case)} for case in cases]
    owners = sorted({case.before.found[0].symbol.owner for case in cases if case.before.found})
    shown = " or ".join(owners[:2]) + (" or others" if len(owners) > 2 else "")
    return [
        replace(
            each,
            severity=AuditSeverity.WARNING,
            confidence=min(each.confidence, _SURE),
            message=f"{each.message} (nothing types the value: by what is used on it, it is of {shown})",
        )
        for key, each in found[0].items()
        if each.severity is not AuditSeverity.INFO and all(key in other for other in found)
    ]


def _takes_a_keyword(value: Duck, method: str, arguments: PassedArguments | None, old: Upstream) -> bool:
    """Whether a method of that name has one of the keywords in the old release. A value that is annotated with a class
    of another package is meant if a class with the method derives from one of that name."""
    named = [each.name for each in arguments.given] if arguments is not None else []
    if not any(each and method in old.parameter_names().get(each, ()) for each in named):
        return False
    kind = value.label.removeprefix(":")
    owners = {owner.rpartition(".")[2] for owner in old.member_names().get(method, ())}
    return kind == value.label or kind in derivation(owners, old)


def candidates(old: Upstream, value: Duck, judged_name: str, near: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Dotted paths of classes that have all the names, one for each definition of the judged one. Those called like
    the value go first, and general ones before those of single models, which lie deeper in the package.

    near: what the file imports. Outside of classes, `self` is of a class in one of those modules."""
    definers = old.member_names()
    used = {name for name in value.names if not hasattr(object, name)}
    names = sorted(used | {judged_name}, key=lambda name: (len(definers.get(name, ())), name))
    asked = [name for name in names if definers.get(name)]
    unknown = [name for name in names if not definers.get(name)]
    if not asked or judged_name in unknown or len(unknown) >= len(asked):
        return ()  # the package knows nothing of the names: it is another value
    starts = {name for name in (asked[0], judged_name) if len(definers.get(name, ())) <= MOST_DEFINERS}
    owners = {owner for name in starts for owner in definers[name]}
    if value.label == "self":
        modules = near | {each.rpartition(".")[0] for each in near}
        owners = {owner for owner in definers[judged_name] if owner.rpartition(".")[0] in modules}
    found: dict[str, str] = {}
    for owner in sorted(owners):
        definition = _definition(old, owner, asked, unknown, judged_name)
        if definition:
            found.setdefault(definition, owner)
    word = re.split(r"\W|_", value.label.lower())[-1]  # "self.target_tokenizer": a tokenizer
    alike = [owner for owner in found.values() if len(word) > 3 and word in owner.rpartition(".")[2].lower()]
    kept = alike or list(found.values())
    depth = min((owner.count(".") for owner in kept), default=0)
    return tuple(owner for owner in kept if owner.count(".") <= depth + 1)


def _definition(old: Upstream, owner: str, names: Sequence[str], unknown: Sequence[str], judged_name: str) -> str:
    """Where a class has the judged name from; "" if it lacks one of the names. A name that no class defines may be made
    while it runs: the file of the class must have it as a string then."""
    found = old.resolve(owner)
    if not isinstance(found, Found) or found.symbol.kind is not SymbolKind.CLASS:
        return ""
    if any(isinstance(old.member(found.symbol, name), Absent) for name in names):
        return ""
    if unknown:
        text = old.source.read(found.symbol.file)
        if any(not re.search(rb"[\"']" + re.escape(name.encode()) + rb"[\"']", text) for name in unknown):
            return ""
    met = old.member(found.symbol, judged_name)
    return met.symbol.dotted if isinstance(met, Found) else ""
