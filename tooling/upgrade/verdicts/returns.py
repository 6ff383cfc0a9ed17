"""Judge what is done with returned values: unpacked, iterated, awaited, subscripted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, Awaited, Called, ItemOf, Iterated, spelled
from tooling.python.standard_library import python_class
from tooling.python.symbols.symbol import (
    Absent,
    Builtin,
    Container,
    Definite,
    Found,
    Instance,
    Open,
    SymbolKind,
    Values,
)
from tooling.python.symbols.targets import locate
from tooling.upgrade.findings import AuditSeverity, Evidence, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.comparison import UseProblem, evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Type
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.verdicts.case import JudgedUse


_SPECIAL = {
    (Action.SUBSCRIPT, False): ("__getitem__", "__class_getitem__"),
    (Action.ITERATE, False): ("__iter__", "__getitem__"),
    (Action.ITERATE, True): ("__aiter__",),
    (Action.AWAIT, False): ("__await__",),
    (Action.ENTER, False): ("__enter__",),
    (Action.ENTER, True): ("__aenter__",),
}
_GOES_WITH = {
    (Action.SUBSCRIPT, False): {"list", "dict", "tuple", "str", "bytes"},
    (Action.ITERATE, False): {"list", "dict", "tuple", "iterator", "str", "bytes", "set", "frozenset"},
    (Action.ITERATE, True): {"async-iterator"},
    (Action.AWAIT, False): {"awaitable"},
    (Action.ENTER, False): {"context"},
    (Action.ENTER, True): {"async-context"},
}
_KNOWN = {"list", "dict", "tuple", "iterator", "async-iterator", "awaitable", "context", "async-context"} | {
    "str",
    "bytes",
    "int",
    "float",
    "bool",
    "NoneType",
    "set",
    "frozenset",
}
_TUPLES = frozenset({(Action.SUBSCRIPT, False), (Action.ITERATE, False)})
"""What anything that can be unpacked can do: a NamedTuple has its methods from Python."""
_VERBS = {
    Action.UNPACK: "unpacked",
    Action.SUBSCRIPT: "subscripted",
    Action.ITERATE: "looped over",
    Action.AWAIT: "awaited",
    Action.ENTER: "entered with `with`",
}


def contradictions(case: JudgedUse) -> Iterator[UseProblem]:
    """The use and the new value do not go together."""
    if case.use.action is Action.UNPACK:
        target, count = case.use.target, case.use.count
        old, new = case.old.unpacked(target), case.new.unpacked(case.target_after)
        if count is None or old != count or new == count:
            return
        if new is None:
            yield from _protocol(case)
            return
        message = f"{_name(case)} gives {new} values now; {count} are unpacked here"
        names = ", ".join(f"value_{number}" for number in range(1, new + 1))
        answer = Replacement(names, "as many names as there are values; which is new is to be looked up", certain=False)
        yield _problem(case, FindingKind.RETURN_CHANGED, message, "ValueError", answer=answer)
    elif case.use.action in _VERBS:
        yield from _protocol(case)
    elif case.use.action in (Action.CALL, Action.READ) and isinstance(case.use.target, Attribute):
        yield from _lost_method(case, case.use.target.base, case.use.target.name)


def _lost_method(case: JudgedUse, holder: AccessPath, name: str) -> Iterator[UseProblem]:
    """A method of Python's own containers and texts is called on what is something else now: `f().items()`."""
    before = case.old.follow(holder)
    if not isinstance(before, Values) or not before.types or any(not _is_pythons(each, name) for each in before.types):
        return
    after = case.new.follow(case.target_after.base if isinstance(case.target_after, Attribute) else holder)
    answers = [_has(case.new, each, name) for each in after.types] if isinstance(after, Values) else []
    if not isinstance(after, Values) or False not in answers:
        return
    whole = all(answer is False for answer in answers) and not after.open and not before.open
    kinds = " or ".join(sorted({_describe(each) for each in after.types}))
    yield _problem(
        case,
        FindingKind.RETURN_CHANGED,
        f"{_name(case)} gives {kinds} now, which has no {name}",
        "AttributeError",
        whole=whole,
        inferred=before.inferred or after.inferred,
        answer=_parts(case.new, after.types),
    )


def _is_pythons(value: Type, name: str) -> bool:
    """Whether it is one of Python's own classes, and has a member of this name."""
    kind = python_class(f"builtins.{value.name}") if isinstance(value, Container | Builtin) else None
    return kind is not None and hasattr(kind, name)


def _has(upstream: Upstream, value: Type, name: str) -> bool | None:
    match value:
        case Instance(symbol):
            found = upstream.member(symbol, name)
            return True if isinstance(found, Found) else False if isinstance(found, Absent) else None
        case Container(name=kind) | Builtin(kind):
            known = python_class(f"builtins.{kind}")
            return None if known is None or kind == "NoneType" else hasattr(known, name)
    return None


def _protocol(case: JudgedUse) -> Iterator[UseProblem]:
    """What is done needs a method that the new value does not have."""
    action = Action.ITERATE if case.use.action is Action.UNPACK else case.use.action
    key = action, bool(case.use.awaited) and action is not Action.AWAIT
    before, after = case.old.follow(case.use.target), case.new.follow(case.target_after)
    if not isinstance(before, Values) or not isinstance(after, Values) or not after.types or not before.types:
        return
    if key in _TUPLES and case.new.unpacked(case.target_after) is not None:
        return
    answers = [_goes(case.new, each, key) for each in after.types]
    if False not in answers or not all(_goes(case.old, each, key) for each in before.types):
        return
    whole = all(answer is False for answer in answers) and not after.open and not before.open
    kinds = " or ".join(sorted({_describe(each) for each in after.types}))
    other = action, not key[1]
    asynchronous = _async_kinds(before.types) != _async_kinds(after.types) or (
        other in _SPECIAL and any(_goes(case.new, each, other) for each in after.types)
    )
    kind = FindingKind.ASYNC_CHANGED if asynchronous else FindingKind.RETURN_CHANGED
    how = " asynchronously" if key[1] else ""
    message = f"{_name(case)} gives {kinds} now, which cannot be {_VERBS[case.use.action]}{how}"
    inferred = before.inferred or after.inferred
    answer = _parts(case.new, after.types) if action in (Action.SUBSCRIPT, Action.UNPACK) else None
    if action is Action.ITERATE and not asynchronous and len(after.types) == 1:
        answer = _parts(case.new, after.types)
    yield _problem(case, kind, message, "TypeError", whole=whole, inferred=inferred, answer=answer)


def _parts(new: Upstream, types: Sequence[Type]) -> Replacement | None:
    """The attributes of the object that is returned instead of a container."""
    (first, *others) = types
    if others or not isinstance(first, Instance):
        return None
    signature = new.signature(first.symbol)
    names = [] if isinstance(signature, Open) else [each.name for each in signature.parameters]
    read = [f".{name}" for name in (*names, *new.body_names(first.symbol)) if not name.startswith("_")]
    words = ", ".join(dict.fromkeys(read))
    return Replacement(words, f"what a {first.symbol.dotted} has", certain=False) if words else None


def _goes(upstream: Upstream, value: Type, key: tuple[Action, bool]) -> bool | None:
    match value:
        case Instance(symbol):
            answers = [upstream.member(value.symbol, name) for name in _SPECIAL[key]]
            if any(isinstance(answer, Found) for answer in answers):
                return True
            return False if symbol.dotted and all(isinstance(answer, Absent) for answer in answers) else None
        case Container(name=name) | Builtin(name):
            return name in _GOES_WITH[key] if name in _KNOWN else None
        case Definite(symbol) if symbol.kind is SymbolKind.FUNCTION:
            return False
    return None


def _async_kinds(types: tuple[Type, ...]) -> set[str]:
    """What there is to await or to loop over asynchronously."""
    names = {each.name for each in types if isinstance(each, Container)}
    return names & {"awaitable", "async-iterator", "async-context"}


def _describe(value: Type) -> str:
    match value:
        case Instance(symbol):
            return f"a {symbol.dotted.rpartition('.')[2]}"
        case Definite(symbol):
            return f"the {symbol.kind} {symbol.dotted}"
        case Container(name, items) if name == "tuple":
            return f"a tuple of {len(items)}"
        case Container(name=name) | Builtin(name):
            return {"NoneType": "None"}.get(name, f"a value of type {name}")


def _source(access_path: AccessPath) -> AccessPath:
    """The callable or attribute that gave the value."""
    match access_path:
        case Called(base) | Awaited(base) | Iterated(base) | ItemOf(base):
            return _source(base)
    return access_path


def _name(case: JudgedUse) -> str:
    source = _source(case.use.target)
    found = locate(case.old, source).found
    return spelled(source) or (found[0].symbol.dotted if found else case.use.symbol_text)


def _side(upstream: Upstream, target: AccessPath) -> Evidence:
    found = locate(upstream, _source(target)).found
    return evidence(upstream, found[0].symbol) if found else Evidence()


def _problem(
    case: JudgedUse,
    kind: FindingKind,
    message: str,
    raises: str,
    *,
    whole: bool = True,
    inferred: bool = False,
    answer: Replacement | None = None,
) -> UseProblem:
    return case.problem(
        kind,
        AuditSeverity.BREAKING,
        message,
        whole=whole,
        symbol=_name(case),
        raises=raises,
        confidence=0.7 if inferred else 0.9,
        old=_side(case.old, case.use.target),
        new=_side(case.new, case.target_after),
        replacement=answer,
    )
