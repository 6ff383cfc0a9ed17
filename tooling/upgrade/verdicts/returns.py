"""Judge what is done with returned values: unpacked, iterated, awaited, subscripted."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.python.access_paths import (
    Attribute,
    Awaited,
    Called,
    ClientClass,
    InstanceOf,
    ItemOf,
    Iterated,
    Name,
    spelled,
)
from tooling.python.operations import literal
from tooling.python.source import parse_expression
from tooling.python.symbols.operators import alternatives, combined, partners, refuses
from tooling.python.symbols.symbol import Builtin, Container, Definite, Instance, Open, SymbolKind
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


_OPERATIONS = {
    (Action.SUBSCRIPT, False): "__getitem__",
    (Action.ITERATE, False): "__iter__",
    (Action.UNPACK, False): "__iter__",
    (Action.ITERATE, True): "__aiter__",
    (Action.AWAIT, False): "__await__",
    (Action.ENTER, False): "__enter__",
    (Action.ENTER, True): "__aenter__",
    (Action.CALL, False): "__call__",
}
"""The special method that each use stands on."""
_COUNTERPARTS = {
    "__aenter__": "__enter__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__enter__": "__aenter__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}
_VERBS = {
    "__aenter__": "entered with `async with`",
    "__aiter__": "looped over asynchronously",
    "__await__": "awaited",
    "__call__": "called",
    "__contains__": "asked with `in`",
    "__delitem__": "deleted from by key",
    "__enter__": "entered with `with`",
    "__getitem__": "subscripted",
    "__iter__": "looped over",
    "__len__": "asked for its length",
    "__next__": "asked for its next element",
    "__setitem__": "assigned to by key",
    "keys": "unpacked with `**`",
}


def contradictions(case: JudgedUse) -> Iterator[UseProblem]:
    """The use and the new value do not go together."""
    if case.use.action is Action.UNPACK:
        target, count = case.use.target, case.use.count
        old, new = case.old.unpacked(target), case.new.unpacked(case.target_after)
        told = new is not None and _only_new_tells(case, target)
        if count is None or old not in (None, count) or new == count:
            return
        if new is None:
            yield from _protocol(case)
        if new is None or (old is None and not told):
            return
        message = f"{_name(case)} gives {new} values now; {count} are unpacked here"
        names = ", ".join(f"value_{number}" for number in range(1, new + 1))
        answer = Replacement(names, "as many names as there are values; which is new is to be looked up", certain=False)
        yield _problem(case, FindingKind.RETURN_CHANGED, message, "ValueError", whole=not told, answer=answer)
    else:
        yield from _lacking(case)
        yield from _other_text(case)
        yield from _none_now(case)
        yield from _protocol(case)


def _only_new_tells(case: JudgedUse, target: AccessPath) -> bool:
    """Whether the old version says nothing of a value, and an annotation of the new one does: what the repository does
    with it went with the old one."""
    old, new = case.old.value(target), case.new.value(target)
    known = new is not None and len(new.types) == 1 and not new.open and not new.inferred
    return known and (old is None or not old.types or (old.inferred and old.open))


def _lacking(case: JudgedUse) -> Iterator[UseProblem]:
    """`jwt.encode(...).decode()`: what is returned is a text now, by its annotation."""
    target, absent = case.use.target, case.after.absent
    if not isinstance(target, Attribute) or case.use.action not in (Action.READ, Action.CALL) or not absent:
        return
    if case.before.found or case.before.absent or case.after.found:
        return
    if absent[0].file or absent[0].container == "None" or not _only_new_tells(case, target.base):
        return
    message = f"what is returned is a {absent[0].container} by its annotation, which has no {target.name}"
    yield _problem(case, FindingKind.RETURN_CHANGED, message, "AttributeError", whole=False)


def _other_text(case: JudgedUse) -> Iterator[UseProblem]:
    """`cache.get(key).split(",")`: what is returned is of bytes now, whose method takes no text."""
    target, later, arguments = case.use.target, case.target_after, case.use.arguments
    if not isinstance(target, Attribute) or not isinstance(later, Attribute) or arguments is None:
        return
    given = [type(literal(each.literal or "")).__name__ for each in arguments.given if each.name is None]
    before, after = case.old.value(target.base), case.new.value(later.base)
    if before is None or after is None or not after.types or arguments.has_star:
        return
    met = [{refuses(each, target.name, given) for each in side.types} for side in (before, after)]
    if met == [{False}, {True}]:
        kinds = " or ".join(sorted(_describe(each) for each in after.types))
        source = _source(target.base)
        message = (
            f"{spelled(source) or case.use.symbol_text} gives {kinds} now, whose {target.name} takes other arguments"
        )
        whole = not before.open and not after.open
        yield _problem(case, FindingKind.RETURN_CHANGED, message, "TypeError", whole=whole, inferred=after.inferred)


def _none_now(case: JudgedUse) -> Iterator[UseProblem]:
    """`index.nearest(query).score`: by the annotations of both versions, what is called may give None now."""
    use, target = case.use, case.use.target
    if not isinstance(target, Attribute) or not isinstance(target.base, Called | Awaited):
        return
    before, after = case.old.value(target.base), case.new.value(target.base)
    if before is None or after is None or any(each.open or each.inferred for each in (before, after)):
        return
    may_be = Builtin("NoneType") in after.types and len(after.types) > 1 and Builtin("NoneType") not in before.types
    text = parse_expression(use.symbol_text)
    # What stands in a variable may have been compared with None first: then a condition or an attempt is around.
    told = text.func if isinstance(text, ast.Call) else text
    held = (ast.Call, ast.Await) if use.conditions or use.attempts else (ast.Call, ast.Await, ast.Name)
    if before.types and may_be and isinstance(told, ast.Attribute) and isinstance(told.value, held):
        source = _source(target.base)
        message = f"{spelled(source) or use.symbol_text} may give None now, which has no {target.name}"
        yield _problem(case, FindingKind.RETURN_CHANGED, message, "AttributeError", whole=False)


def _protocol(case: JudgedUse) -> Iterator[UseProblem]:
    """What is done needs a method that the new value does not have."""
    use, action = case.use, case.use.action
    asynchronous = bool(use.awaited) and action in (Action.ITERATE, Action.ENTER)
    operation = use.operation or _OPERATIONS.get((action, asynchronous), "")
    before, after = (case.old.value(use.target), case.new.value(case.target_after)) if operation else (None, None)
    if before is None or after is None or not before.types or not after.types:
        return
    by_call = action is Action.CALL or (action is Action.OPERATE and operation == "__await__")
    if by_call and not all(isinstance(each, Instance) for each in before.types):
        return  # functions and classes are judged by what they take, and by whether they are asynchronous
    by_name = isinstance(use.target, Name | Attribute)
    if by_name and any(isinstance(each, Definite) and each.symbol.kind is SymbolKind.FUNCTION for each in after.types):
        return  # that a function has the name now is said of its reading
    names = alternatives(operation, reflected=use.other == "same")
    was, now = (
        [side.as_python(each, names[0]) for each in values.types]
        for side, values in ((case.old, before), (case.new, after))
    )
    beside = [combined(each, operation, use.other) for each in now]
    by_place = use.other == "int" and action is Action.SUBSCRIPT and all(map(_is_sequence, was))
    mapped = [by_place and getattr(each, "name", "") == "dict" for each in now]
    by_left, vague = use.other == "left", use.other in ("left", "open")
    # `total + x` of a list that became a text: there is no `x` that both take
    shared = frozenset[str]().union(*(partners(each, operation) or () for each in was if vague))
    for index, each in enumerate(now):
        others = partners(each, operation) if shared else None
        if mapped[index] or (others is not None and shared.isdisjoint(others)):
            beside[index] = False
    answers = [
        (by_left or case.new.goes(each, names)) if met is None else met
        for each, met in zip(after.types, beside, strict=True)
    ]
    had = [
        (by_left or case.old.goes(each, names)) if (met := combined(kind, operation, use.other)) is None else met
        for each, kind in zip(before.types, was, strict=True)
    ]
    loose = [answer is None and isinstance(each, Container) for each, answer in zip(before.types, had, strict=True)]
    if False not in answers or not all(map(any, zip(had, loose, strict=True))):
        return
    failing = [each for each, answer in zip(after.types, answers, strict=True) if answer is False]
    classes = [each.symbol.dotted for each in failing if isinstance(each, Instance)]
    extended = any(case.context.extended(owner, name) for owner in classes for name in names)
    if extended and isinstance(use.target, InstanceOf | Called) and isinstance(use.target.base, ClientClass):
        return  # it is the repository's class that has it
    sure = len(failing) == len(answers) and not after.open and not before.open and not extended
    sure = sure and not vague and True not in mapped
    of = f" {'by' if use.action is Action.SUBSCRIPT else 'of'} a literal of type {use.other}"
    verb = _VERBS.get(operation, f"used with {operation}") + (of if False in beside and not vague else "")
    verb = "unpacked" if action is Action.UNPACK else verb
    other = _COUNTERPARTS.get(operation, "")
    turned = other and any(case.new.goes(each, alternatives(other)) for each in after.types)
    if turned or _async_kinds(before.types) != _async_kinds(after.types):
        kind = FindingKind.ASYNC_CHANGED
    elif {_describe(each) for each in failing} <= {_describe(each) for each in before.types}:
        kind = FindingKind.REMOVED
    else:
        kind = FindingKind.RETURN_CHANGED
    kinds = " or ".join(sorted({_describe(each) for each in after.types}))
    message = f"{_name(case)} gives {kinds} now, which cannot be {verb}"
    if kind is FindingKind.REMOVED:
        message = f"{kinds} cannot be {verb} any more: it has no {operation}"
    looping = operation == "__iter__" and kind is not FindingKind.ASYNC_CHANGED
    answer = _parts(case.new, after.types) if action is Action.SUBSCRIPT or looping else None
    if kind is FindingKind.ASYNC_CHANGED and turned and operation in _TURNED:
        text = _TURNED[operation].format(_name(case))
        answer = Replacement(text, "what it gives has the other protocol", certain=True)
    inferred = before.inferred or after.inferred
    yield _problem(case, kind, message, "TypeError", whole=sure, inferred=inferred, answer=answer)


_TURNED = {
    "__iter__": "async for ... in {}",
    "__aiter__": "for ... in {}",
    "__enter__": "async with {}",
    "__aenter__": "with {}",
    "__next__": "await anext(...)",
    "__anext__": "next(...)",
}
"""The statement for what is asynchronous now, or no longer."""


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


def _is_sequence(value: Type) -> bool:
    """Whether its keys are places."""
    return isinstance(value, Builtin | Container) and value.name in ("bytes", "list", "str", "tuple")


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
            name = getattr(value, "exact", "") or name
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
