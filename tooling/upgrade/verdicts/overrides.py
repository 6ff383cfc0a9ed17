"""Methods of the repository that override a hook: the hook is called in another way, by nobody any more, or a class
has a new abstract method. The evidence is a call inside the package."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from tooling.python.access_paths import Attribute
from tooling.python.source import parse_expression
from tooling.python.symbols.calls import every_argument, fits, misfit, written_call
from tooling.python.symbols.symbol import Absent, Found, Open, Signature, SymbolKind
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.answers import adapted_override, new_method
from tooling.upgrade.verdicts.case import sure
from tooling.upgrade.verdicts.comparison import MOST_DEFINERS, evidence_of_absence, mentions, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.symbols.calls import WrittenCall
    from tooling.python.symbols.symbol import Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import ClientMethod
    from tooling.upgrade.verdicts.case import JudgedUse
    from tooling.upgrade.verdicts.comparison import UseProblem

_FREE = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__", "__post_init__"})
"""Not called through the base class: their signature is the subclass's own business."""


class CallSite(NamedTuple):
    """A call of a hook inside a release."""

    file: str
    line: int
    source: str


def drifts(case: JudgedUse) -> Iterator[UseProblem]:
    """An override that does not fit the hook of the new base class."""
    method, target = case.use.method, case.use.target
    if case.use.action is not Action.OVERRIDE or method is None or not isinstance(target, Attribute):
        return
    if not case.before.found and case.before.absent and target.name not in _FREE:
        yield from _met_by_chance(case, method, target.name)
    if not case.before.found or target.name in _FREE:
        return
    if not case.after.found:
        absences = [*case.after.absent, *case.after.beside]
        if not absences and case.after.open and not case.new.member_names().get(target.name):  # nobody defines it
            absences = [Absent(case.before.found[0].receiver, target.name)]
        for absent in absences[:1]:
            yield from _lost(case, method, target.name, absent)
    for before, after in case.pairs():
        yield from _changed(case, method, before.symbol, after.symbol)


def new_abstract_methods(case: JudgedUse) -> Iterator[UseProblem]:
    """A class that could be instantiated lacks what the new base demands."""
    if case.use.action is not Action.SUBCLASS or not case.before.found or len(case.after.found) != 1:
        return
    before, after = case.before.found[0].symbol, case.after.found[0].symbol
    extension = case.context.extension(case.use.owner)
    own = extension.names if extension is not None else frozenset()
    heirs = extension.heirs if extension is not None and not case.context.made(case.use.owner) else frozenset()
    demanded = _abstract(case.new, after)
    already = _abstract(case.old, before)
    if any(name not in own for name in already):
        return  # it stays abstract, as it was
    for name, symbol in demanded.items():
        was = case.old.member(before, name)
        is_new = isinstance(was, Absent) or (isinstance(was, Found) and not was.symbol.is_abstract)
        if name in own or name in already or name in heirs or not is_new:
            continue
        yield case.problem(
            FindingKind.OVERRIDE_DRIFT,
            AuditSeverity.BREAKING,
            f"{case.symbol}.{name} is abstract now: a class without it cannot be instantiated",
            before=before,
            after=symbol,
            whole=case.after.closed,
            symbol=f"{case.symbol}.{name}",
            weight=0.9,
            replacement=new_method(name, case.new.signature(symbol)),
        )


def _met_by_chance(case: JudgedUse, method: ClientMethod, name: str) -> Iterator[UseProblem]:
    """A member of the repository's own whose name the new base class uses for something else."""
    if len(case.after.found) != 1 or not case.after.closed:
        return
    new = case.after.found[0].symbol
    is_property = method.binding == "property"
    answer = None
    if new.kind is SymbolKind.VALUE and is_property and case.new.member_names().get(name, {}).get(new.owner) == 0:
        message = f"the base class assigns `self.{name}` now, which this property does not take unless it has a setter"
    elif new.kind is SymbolKind.FUNCTION and is_property and new.binding == "method":
        message = f"the base class has a method {name} now and may call it: this property gives a value"
        answer = new_method(name, case.new.signature(new))
    elif "property" in new.binding and method.binding == "method":
        message = f"the base class has a property {name} now and may read it: this is a method"
    else:
        return
    kind = FindingKind.OVERRIDE_DRIFT
    yield case.problem(kind, AuditSeverity.WARNING, message, after=new, weight=0.8, replacement=answer)


def _abstract(upstream: Upstream, symbol: Symbol) -> dict[str, Symbol]:
    """Abstract methods that a class leaves to its subclasses."""
    order, _complete = upstream.bases(symbol)
    names: dict[str, Symbol] = {}
    for base in order:
        for name in upstream.body_names(base):
            found = upstream.member(symbol, name)
            if isinstance(found, Found) and found.symbol.is_abstract:
                names.setdefault(name, found.symbol)
    return names


def _lost(case: JudgedUse, method: ClientMethod, name: str, absent: Absent) -> Iterator[UseProblem]:
    never_called = not case.old.reads_name(name)
    if never_called and method.called and not case.new.member_names().get(name):
        return  # only the repository calls it, as before
    explained = case.explain(absent)
    replacement = explained[1] if explained else None
    called = _refers(case.old, case.before.found[0].receiver, name)
    still = _refers(case.new, absent.container, name) if called else never_called or case.new.reads_name(name)
    undefined = bool(case.after.beside) or not case.new.member_names().get(name)
    if not case.after.closed and not undefined:
        return  # a base class that is not known may still have it, and call it
    whom = f"; {called} used it" if called else ""
    advice = f"; it is {replacement.text} now" if replacement else ""
    yield case.problem(
        FindingKind.OVERRIDE_DRIFT,
        AuditSeverity.BREAKING,
        f"{absent.container} has no {name} any more: nobody calls this override{whom}{advice}",
        before=case.before.found[0].symbol,
        new=evidence_of_absence(absent),
        whole=not still and case.after.closed,
        replacement=replacement,
        fixable=False,
        cause=f"{absent.container}.{name}",
    )


def _changed(case: JudgedUse, method: ClientMethod, old: Symbol, new: Symbol) -> Iterator[UseProblem]:
    if old.kind is not SymbolKind.FUNCTION or new.kind is not SymbolKind.FUNCTION:
        return
    shape = _shape_change(case, method, old, new)
    if shape is not None:
        yield shape
        return
    before, after = case.old.signature(old), case.new.signature(new)
    if isinstance(before, Open) or isinstance(after, Open) or not after.exact:
        return
    own, name = method.signature, new.name
    same = before.parameters == after.parameters
    if same:  # then only what is passed may be new
        passed_then = [CallSite(*site) for site in case.old.calls_of(name)]
        if not passed_then or _unfitting(passed_then, name, own, after, own) is not None:
            return
        before = own
    sites = [CallSite(*site) for site in case.new.calls_of(name)]
    if len(case.new.member_names().get(name, ())) > MOST_DEFINERS:  # most calls of `forward` are of other classes
        near = _files(case.new, case.after.found[0].receiver)
        added = {each.name for each in after.parameters} - {each.name for each in before.parameters}
        passed = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(added)))})=")
        sites = [each for each in sites if each.file in near or (added and passed.search(each.source))]
    site = _unfitting(sites, name, own, after, before) or (None if same else _swapped(sites, name, own, before, after))
    if site is not None:
        how = f"{site.file}:{site.line} calls {shorten(site.source, 100)}"
        certain = case.after.closed and not method.decorated and _is_about(case, site, new, before)
        severity = sure(AuditSeverity.BREAKING, all_members=certain)
        head = adapted_override(name, method, after)
        message = f"this override does not fit how it is called now: {how}"
        yield _drift(case, old, new, message, severity, replacement=head)
    if site is not None or same:
        return
    why = misfit(own, after)
    # Hooks get all that they name: an override may demand what the base has a default for
    was, now = (every_argument(each, optional="by position") for each in (before, after))
    stood = not misfit(own, before) or (fits(own, was) and not fits(own, now))
    if why and stood and not method.decorated:
        # A class that hands the bound hook to somebody else, and never calls it itself, which would show how
        receiver = case.after.found[0].receiver
        called = not case.after.closed or _refers(case.new, receiver, name, r"\s*\(")
        callback = "" if called else _refers(case.new, receiver, name, r"\s*[,)]")
        how = f"; {callback} hands it on as a callback" if callback else ""
        message = f"this override does not fit the hook's signature any more: {why}{how}"
        severity = AuditSeverity.BREAKING if callback else AuditSeverity.WARNING
        yield _drift(case, old, new, message, severity, replacement=adapted_override(name, method, after))


def _shape_change(case: JudgedUse, method: ClientMethod, old: Symbol, new: Symbol) -> UseProblem | None:
    """Property against method, and asynchronous against not."""
    was, now = "property" in old.binding, "property" in new.binding
    if was != now and (method.binding == "property") == was:
        kind = "property" if now else "method"
        head = Replacement(f"{'@property ' if now else ''}def {new.name}(self)", "as the base has it", certain=False)
        message = f"{case.symbol} is a {kind} now"
        return _drift(case, old, new, message, AuditSeverity.BREAKING, FindingKind.KIND_CHANGED, head)
    open_ended = method.decorated or method.passes_on
    if old.is_async != new.is_async and method.is_async == old.is_async and not open_ended:
        how = "asynchronous" if new.is_async else "not asynchronous"
        message = f"{case.symbol} is {how} now, and so its callers treat it"
        style = "async " if new.is_async else ""
        head = Replacement(f"{style}def {new.name}(...)", "as the base has it", certain=False)
        return _drift(case, old, new, message, AuditSeverity.BREAKING, FindingKind.ASYNC_CHANGED, head)
    return None


def _drift(
    case: JudgedUse,
    old: Symbol,
    new: Symbol,
    message: str,
    severity: AuditSeverity,
    kind: FindingKind = FindingKind.OVERRIDE_DRIFT,
    replacement: Replacement | None = None,
) -> UseProblem:
    return case.problem(kind, severity, message, before=old, after=new, replacement=replacement)


def call_arguments(source: str, name: str) -> WrittenCall | None:
    """Arguments of a call `x.name(...)` given as text; None if it is something else or hides some of them."""
    node = parse_expression(source.strip())
    while isinstance(node, ast.Await):
        node = node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != name:
        return None
    found = written_call(node)
    return None if found.has_star or found.has_double_star else found


def receiver_is_self(source: str, name: str) -> bool:
    """Whether it is a call `self.name(...)` or `cls.name(...)`."""
    text = source.strip().removeprefix("await ").lstrip("( ")
    return text.startswith((f"self.{name}(", f"cls.{name}("))


def _unfitting(
    sites: Sequence[CallSite], name: str, own: Signature, hook: Signature, before: Signature
) -> CallSite | None:
    """A call that fits the new hook and neither the override nor the hook as it was. `self.` calls speak first."""
    for site in sorted(sites, key=lambda site: not receiver_is_self(site.source, name)):
        arguments = call_arguments(site.source, name)
        if arguments is not None and fits(hook, arguments) and not fits(own, arguments) and not fits(before, arguments):
            return site
    return None


def _is_about(case: JudgedUse, site: CallSite, hook: Symbol, before: Signature) -> bool:
    """Whether a call is of this hook and not of another method of that name: it is in a file of the class or of
    its bases, or it passes a keyword that the hook did not have."""
    name = hook.name
    if receiver_is_self(site.source, name):
        return site.file in _files(case.new, case.after.found[0].receiver) | {hook.file}
    arguments = call_arguments(site.source, name)
    had = {each.name for each in before.parameters}
    return arguments is not None and any(each.name and each.name not in had for each in arguments.given)


def _files(upstream: Upstream, dotted: str) -> set[str]:
    """Files of a class and of its bases."""
    found = upstream.resolve(dotted)
    return {base.file for base in upstream.bases(found.symbol)[0]} if isinstance(found, Found) else set()


def _refers(upstream: Upstream, dotted: str, name: str, followed: str = r"(?!\s*=[^=])") -> str:
    """Where a class or one of its bases mentions `self.<name>` ("file:line"), calls and bound methods alike."""
    pattern = rf"\b(?:self|cls)\.{re.escape(name)}\b{followed}"
    for file in sorted(_files(upstream, dotted)):
        line = mentions(upstream, file, pattern) if file else 0
        if line:
            return f"{file}:{line}"
    return ""


def _swapped(
    sites: Sequence[CallSite], name: str, own: Signature, before: Signature, after: Signature
) -> CallSite | None:
    """A call by position whose arguments land on other parameters of the override than the hook means."""
    own_names, old_names, new_names = _positions(own), _positions(before), _positions(after)
    moved = [
        index
        for index, (mine, old, new) in enumerate(zip(own_names, old_names, new_names, strict=False))
        if mine == old and new != old and old in new_names
    ]
    if not moved:
        return None
    for site in sites:
        arguments = call_arguments(site.source, name)
        if arguments is None or not fits(after, arguments) or not receiver_is_self(site.source, name):
            continue
        if sum(each.name is None for each in arguments.given) > moved[0]:
            return site
    return None


def _positions(signature: Signature) -> list[str]:
    return [each.name for each in signature.parameters if each.kind in ("positional", "positional-only")]
