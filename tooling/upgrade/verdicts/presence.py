"""Judge names that are gone, moved or renamed, patches of them, and modules that nothing loads any more."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.python.access_paths import (
    Attribute,
    Awaited,
    Called,
    ClientClass,
    Either,
    Entered,
    InstanceOf,
    ItemOf,
    Iterated,
    Name,
    SuperOf,
    Unknown,
    spelled,
)
from tooling.python.conditions import describe
from tooling.python.operations import literal
from tooling.python.symbols.calls import misfit
from tooling.python.symbols.symbol import Definite, Found, Instance, Open, Provider, SymbolKind, Values
from tooling.python.symbols.targets import locate
from tooling.upgrade import advice
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.answers import advised
from tooling.upgrade.verdicts.comparison import (
    UseProblem,
    definition,
    evidence,
    evidence_of_absence,
    mentions,
    shorten,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Absent, Symbol
    from tooling.python.symbols.targets import Resolved
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.verdicts.case import JudgedUse


def lost_patches(case: JudgedUse) -> Iterator[UseProblem]:
    """The patched name is gone. On an instance the assignment may be of the repository's own making: a warning. What
    is put into `sys.modules` is a module from then on, and what the package never read is there as before."""
    target, text = case.use.target, case.use.symbol_text
    on_instance = isinstance(target, Attribute) and isinstance(target.base, Called | InstanceOf)
    owner, _, name = spelled(target).rpartition(".")
    holder = case.new.resolve(owner)
    takes_any = isinstance(holder, Found) and holder.symbol.kind in (SymbolKind.CLASS, SymbolKind.MODULE)
    lasts = case.use.action is Action.ASSIGN and not on_instance and FOR_A_WHILE.match(text) is None
    if takes_any and lasts and not case.old.reads_name(name):
        return
    for problem in absences(case) if _OF_MODULES.match(text) is None else ():
        severity = AuditSeverity.WARNING if on_instance else problem.severity
        yield replace(problem, severity=severity, fixable=False)


FOR_A_WHILE = re.compile(r"[\w.]*(patch|monkeypatch)\b")
"""Patches that end with a test, and fail for a missing name."""
_OF_MODULES = re.compile(r"(?:sys\.)?modules\b")


def misfitting_patches(case: JudgedUse) -> Iterator[UseProblem]:
    """What is put in place of a function does not take what the function takes now, and took what it took before."""
    method = case.use.method
    if method is None or len(case.before.found) != 1 or len(case.after.found) != 1 or not case.after.closed:
        return
    before, after = case.before.found[0].symbol, case.after.found[0].symbol
    if SymbolKind.FUNCTION not in (before.kind, after.kind) or before.kind is not after.kind:
        return
    old, new = case.old.signature(before), case.new.signature(after)
    if isinstance(old, Open) or isinstance(new, Open) or not old.exact or not new.exact:
        return
    own, of_class = method.signature, after.binding == "method" and case.after.found[0].unbound
    if of_class and own.parameters and own.parameters[0].name == "self":
        own = replace(own, parameters=own.parameters[1:])  # a function that becomes a method
    why = misfit(own, new)
    if not why or misfit(own, old):
        return
    message = f"what replaces {case.symbol} does not fit its signature any more: {why}"
    head = Replacement(definition(case.new, after), "as the package defines it", certain=False)
    kind, severity = FindingKind.OVERRIDE_DRIFT, AuditSeverity.WARNING
    yield case.problem(kind, severity, message, before=before, after=after, replacement=head)


SILENT = frozenset({Action.PROBE, Action.OVERRIDE, Action.UNPACK, Action.SUBSCRIPT, Action.ITERATE, Action.AWAIT}) | {
    Action.OPERATE
}
"""Uses that never fail by a missing name, or that other families speak of."""
_REFUSING = frozenset({Action.CALL, Action.DECORATE, Action.SUBCLASS})
_OF_A_CLASS = re.compile(r"[\w.]+\.(model_validate|parse_obj)\(")
"""Methods that call their class with what they are given, which is noted as a call of it."""


def absences(case: JudgedUse) -> Iterator[UseProblem]:
    """The name was there, and is not any more."""
    target = case.use.target
    # `for each in axis.names`: no other use says that the attribute is read
    is_read = isinstance(target, Attribute) and case.reads(target.name)
    if (case.use.action in SILENT and not is_read) or isinstance(target, ClientClass):
        return  # a class of the repository is there once its statement has run, which is a use of its own
    # Whether the new side lacks what the old one has; of a union: all or more members lack it than before
    lacking = len(case.after.absent) > (len(case.before.absent) if case.after.found else 0)
    is_gone = bool(case.before.found) and lacking
    if case.after.cascade or not is_gone:
        module = _module_of(case)
        yield from absences(module) if module is not None else _gone_from_here(case)
        return
    absent = case.after.absent[0]
    called = _OF_A_CLASS.match(case.use.symbol_text)
    if case.use.action is Action.CALL and called is not None and absent.name != called[1]:
        return  # the class that is asked for the method is a use of its own
    if absent.container == "None" and case.use.conditions:
        return  # `if value:` stands around it, or something like it
    if absent.container != "None" and _only_widened(case):
        return  # `-> str` that became `-> str | list[str]`: what came for these arguments still comes
    if case.context.assigned(case.use, f"{absent.container}.{absent.name}"):
        return
    kind, replacement = case.explain(absent) or (FindingKind.REMOVED, None)
    if kind in (FindingKind.PARAM_REMOVED, FindingKind.PARAM_RENAMED):  # a function has the name of the module now
        kind, replacement = FindingKind.REMOVED, None
    if _receiver_changed(case):
        kind, replacement = FindingKind.RETURN_CHANGED, None
    own = _may_be_of_an_own_class(case)
    whole = not case.after.found and case.after.closed and case.before.closed and not own
    text = replacement.text if replacement else ""
    home = absent.container
    if replacement and kind in (FindingKind.MOVED, FindingKind.RENAMED):
        how = "moved" if kind is FindingKind.MOVED else "was renamed"
        sentence = f"{case.symbol} {how if replacement.certain else 'is gone'}: {replacement.sentence}"
    elif kind is FindingKind.RETURN_CHANGED:
        sentence = f"what is returned is a {home} now, which has no {absent.name}"
    elif case.use.action is Action.ASSIGN:
        sentence = f"{case.symbol} is gone from {home}: nothing reads what is assigned here"
    else:
        later = "; this is evaluated when an exception passes" if case.use.action is Action.EXCEPT else ""
        if f"{home}.{absent.name}" == case.symbol:
            sentence = f"{case.symbol} is gone: {home} no longer has {absent.name}{later}"
        else:
            sentence = f"{case.symbol} is gone: {home} has no {absent.name}{later}"
        sentence += f" ({shorten(absent.said)})" if absent.said and absent.said != absent.name else ""
    found = case.new.resolve(text) if "." in text else None
    yield case.problem(
        kind,
        AuditSeverity.BREAKING,
        f"{sentence}; a class derived from it in this repository has one" if own else sentence,
        before=case.before.found[0].symbol,
        new=evidence(case.new, found.symbol) if isinstance(found, Found) else evidence_of_absence(absent),
        whole=whole,
        symbol=f"{absent.container}.{absent.name}" if isinstance(case.use.target, Either) else case.symbol,
        raises=exception_of(case, absent),
        replacement=replacement,
        cause=f"{absent.container}.{absent.name}",
    )


def lost_modules(case: JudgedUse) -> Iterator[UseProblem]:
    """What a module was imported for, or from, is a class or function of its package now."""
    use = case.use
    if use.action not in (Action.IMPORT, Action.STAR_IMPORT) or not isinstance(use.target, Name):
        return
    named = use.action is Action.STAR_IMPORT or use.symbol_text.partition(" ")[0] == use.target.dotted
    module = use.target.dotted if named else use.target.dotted.rpartition(".")[0]
    found = case.new.resolve(module)
    if not case.old.store.exists(module) or case.new.store.exists(module) or not isinstance(found, Found):
        return
    if found.symbol.kind in (SymbolKind.CLASS, SymbolKind.FUNCTION):
        yield case.problem(
            FindingKind.REMOVED,
            AuditSeverity.BREAKING,
            f"{module} is a {found.symbol.kind} now, and no module that can be imported",
            before=_module(case.old, module),
            after=found.symbol,
            symbol=module,
            raises="ModuleNotFoundError",
        )


_KEY = re.compile(r"\[\s*[\"'](\w+)[\"']\s*\]$")


def lost_members(case: JudgedUse) -> Iterator[UseProblem]:
    """A member of an enumeration that is looked up by its name: `Mode["FAST"]`."""
    key = _KEY.search(case.use.symbol_text)
    if case.use.action is not Action.SUBSCRIPT or key is None or not isinstance(case.use.target, Name):
        return
    owners = [met.symbol for met in case.before.found if met.symbol.kind is SymbolKind.CLASS]
    member = case.old.member(owners[0], key[1]) if len(owners) == 1 else None
    if not isinstance(member, Found) or member.symbol.kind is not SymbolKind.VALUE:
        return  # a type argument: `Box["Item"]`
    style = case.old.fields.style(owners[0])
    if style is None or style.name != "enum":
        return  # a class of another kind makes of a key what it wants
    named = replace(case.use, action=Action.READ, target=Name(f"{case.use.target.dotted}.{key[1]}"))
    for problem in absences(replace(case, use=named)):
        at_key = replace(problem.place, column=problem.place.column + key.start() + 1)  # the class itself is there
        yield replace(problem, raises="KeyError", place=at_key)


def lost_keys(case: JudgedUse) -> Iterator[UseProblem]:
    """A key that a typed dictionary or a table no longer has: `usage["total"]`, `up.DEFAULTS["lr"]`. What is in it at
    run time is not shown by that."""
    key = _KEY.search(case.use.symbol_text)
    if case.use.action is not Action.SUBSCRIPT or key is None:
        return
    if any(key[1] in describe(each) for each in case.use.conditions):
        return  # `if "lr" in up.DEFAULTS:`
    before, after = case.old.value(case.use.target), case.new.value(case.target_after)
    sides = [side.types if side is not None and not side.open else () for side in (before, after)]
    kinds = [side[0].symbol for side in sides if len(side) == 1 and isinstance(side[0], Instance)]
    named = [side.found[0].symbol for side in (case.before, case.after) if len(side.found) == 1]
    held: list[Any] = [table for each in named if isinstance(table := literal(each.value or ""), dict)]
    if len(held) == 2:
        kinds = named
    elif len(kinds) == 2:
        held = [case.old.fields.names(kinds[0]), case.new.fields.names(kinds[1])]
    had, has = held if len(held) == len(kinds) == 2 else (None, None)
    if has is not None and key[1] in (had or ()) and key[1] not in has:
        yield case.problem(
            FindingKind.REMOVED,
            AuditSeverity.WARNING,
            f"{kinds[0].dotted} has no key {key[1]!r} any more",
            before=kinds[0],
            after=kinds[1],
            symbol=f"{kinds[0].dotted}.{key[1]}",
            raises="KeyError",
        )


def lost_places(case: JudgedUse) -> Iterator[UseProblem]:
    """A class takes fewer patterns by position: `case Point(x, y)`."""
    if case.use.action is not Action.ISINSTANCE or not case.use.count:
        return
    for before, after in case.pairs():
        had, has = case.old.fields.places(before.symbol), case.new.fields.places(after.symbol)
        if had is not None and has is not None and has < case.use.count <= had:
            yield case.problem(
                FindingKind.REMOVED,
                AuditSeverity.BREAKING,
                f"{case.symbol} takes {has} patterns by position now; {case.use.count} are given here",
                before=before.symbol,
                after=after.symbol,
                raises="TypeError",
            )


def lost_holders(case: JudgedUse) -> Iterator[UseProblem]:
    """A value is gone of which something is used: `up.CACHE.clear()`, `CACHE.clear()` of one that was imported."""
    target, use = case.use.target, case.use
    imported = isinstance(target, Attribute) and isinstance(target.base, Name) and case.after.cascade
    if (case.before.found and not imported) or not (imported or isinstance(target, Name)):
        return
    holder = spelled(target).rpartition(".")[0]
    found = case.old.resolve(holder)
    if (
        isinstance(found, Found)
        and use.action in (Action.CALL, Action.READ)
        and (imported or found.symbol.kind is SymbolKind.VALUE)
    ):
        read = replace(use, action=Action.READ, target=Name(holder), arguments=None)
        yield from (replace(each, fixable=False) for each in absences(replace(case, use=read)))


def lost_values(case: JudgedUse) -> Iterator[UseProblem]:
    """A member of an enumeration that is looked up by its value: `Mode("fast")`."""
    if case.use.action is not Action.CALL:
        return
    given = case.use.arguments.given if case.use.arguments is not None else ()
    text = given[0].literal if len(given) == 1 and given[0].name in (None, "value") else None
    if text is None or len(case.before.found) != 1 or len(case.after.found) != 1:
        return
    before, after = case.before.found[0].symbol, case.after.found[0].symbol
    old, new = case.old.fields.member_values(before), case.new.fields.member_values(after)
    value = literal(text)
    if old is None or new is None or value not in old or value in new:
        return
    finder = case.new.member(after, "_missing_")
    if not isinstance(finder, Found) or not finder.symbol.file:
        message = f"no member of {case.symbol} has the value {text} any more"
        yield case.problem(
            FindingKind.REMOVED, AuditSeverity.BREAKING, message, before=before, after=after, raises="ValueError"
        )


def _may_be_of_an_own_class(case: JudgedUse) -> bool:
    """Whether the repository derives a class from the receiver's that has the attribute, and the receiver was not made
    here but is annotated, or handed out: it may be of that class."""
    target = case.use.target
    if not isinstance(target, Attribute) or isinstance(target.base, Name | SuperOf | ClientClass | Called):
        return False
    if isinstance(target.base, Entered) and isinstance(target.base.base, Called):
        return False
    if isinstance(target.base, InstanceOf) and isinstance(target.base.base, ClientClass):
        return False
    return any(met.receiver and case.context.extended(met.receiver, target.name) for met in case.before.found)


def _module_of(case: JudgedUse) -> JudgedUse | None:
    """The case of the module that a name is imported from or looked up in, if the old version has that and whether it
    has the name is not known: where the module is gone, that fails whatever it held."""
    fails = case.use.action in (Action.IMPORT, Action.CALL, Action.READ)
    if not fails or not isinstance(case.use.target, Name) or not case.before.open:
        return None
    module = case.use.target.dotted.rpartition(".")[0]
    found = case.old.resolve(module) if module else None
    is_module = isinstance(found, Found) and found.symbol.kind is SymbolKind.MODULE
    return replace(case, use=replace(case.use, target=Name(module))) if is_module else None


def _gone_from_here(case: JudgedUse) -> Iterator[UseProblem]:
    """A class or module no longer defines it; only a base of another distribution may still have it, a `__getattr__`
    give it or a star import bring it, and the old definition did not build upon one there."""
    by_name = isinstance(case.use.target, Name)
    if not by_name and not _is_of_the_class(case.use.target) and not _no_instance_has_it(case):
        return  # an instance may be of a subclass that has it
    if case.after.found or not case.after.beside or len(case.before.found) != 1:
        return
    before, absent = case.before.found[0].symbol, case.after.beside[0]
    if not before.file or mentions(case.old, before.file, rf"super\(.*?\)\.{re.escape(absent.name)}\b"):
        return
    is_data = before.kind is not SymbolKind.FUNCTION or (
        "property" in before.binding and absent.provider is Provider.ITEMS
    )
    if is_data and absent.provider in (Provider.VALUES, Provider.ITEMS):
        return  # `setattr(self, key, value)` for settings that are passed
    if by_name and before.kind is SymbolKind.VALUE and not before.value:
        return  # it was made when the module was loaded, and may be so still
    yield case.problem(
        FindingKind.REMOVED,
        AuditSeverity.WARNING,
        f"{absent.container} no longer defines {absent.name}; only {absent.provider or Provider.BASE} may have it",
        before=before,
        new=evidence_of_absence(absent),
        raises=exception_of(case, absent),
        weight=0.6,
        cause=f"{absent.container}.{absent.name}",
    )


def _no_instance_has_it(case: JudgedUse) -> bool:
    """Whether no class that derives from the receiver's has the attribute, neither in the new release nor in the
    repository, and the receiver's file does not make it from a string (`register_buffer`). A method that fewer classes
    have than before is taken to go, though some derived class still has it."""
    target = case.use.target
    if not isinstance(target, Attribute):
        return False
    receivers = {met.receiver for met in case.before.found if met.receiver}
    if any(case.context.extended(owner, target.name) for owner in receivers):
        return False
    methods = all(met.symbol.kind is SymbolKind.FUNCTION for met in case.before.found)
    before, after = case.old.member_names().get(target.name, ()), case.new.member_names().get(target.name, ())
    if methods and len(after) < len(before):
        return True
    quoted = rf"\w\(\s*(?:[\w.]+\s*,\s*)?[\"']{re.escape(target.name)}[\"']"  # `setattr(self, "name", x)`
    if any(absent.file and mentions(case.new, absent.file, quoted) for absent in case.after.beside):
        return False
    # Nothing is made of classes in modules that nobody imports, such as those that others are generated from
    loaded, imported = case.new.imported_modules(), case.context.imported
    owners = [owner.rpartition(".") for owner in after]
    having = {name for module, _, name in owners if module in loaded or imported(module)}
    return not derivation(having, case.new) & {_last(owner) for owner in receivers}


def derivation(classes: Iterable[str], upstream: Upstream) -> set[str]:
    """Last names of classes and of all that they derive from, by the text of a release."""
    bases, left, seen = upstream.base_names(), set(classes), set[str]()
    while left:
        seen |= left
        left = {base for name in left for base in bases.get(name, ())} - seen
    return seen


def _is_of_the_class(target: AccessPath) -> bool:
    """Whether it is looked up in the class itself: by its name, by `super()`, or by `self` of a class that does not
    define it either."""
    if isinstance(target, Either):
        return all(_is_of_the_class(member) for member in target.members if not isinstance(member, Unknown))
    if not isinstance(target, Attribute):
        return False
    base = target.base
    own = base.base if isinstance(base, InstanceOf | Called) else base
    return isinstance(base, SuperOf | Name) or isinstance(own, ClientClass)


def star_losses(case: JudgedUse) -> Iterator[UseProblem]:
    """The name is still there, and a star import no longer gives it: only `__all__` shrank."""
    module = case.context.starred(case.use)
    if not module or not case.before.found or not case.after.found:
        return
    name = case.symbol.rpartition(".")[2]
    before, after = _exported(case.old, module), _exported(case.new, module)
    if after is None or name in after or (before is not None and name not in before):
        return
    yield case.problem(
        FindingKind.REMOVED,
        AuditSeverity.BREAKING,
        f"`from {module} import *` no longer gives {name}; import it by name",
        before=case.before.found[0].symbol,
        after=case.after.found[0].symbol,
        raises="NameError",
        replacement=Replacement(f"{module}.{name}", "it is still there, by name", certain=True),
    )


def _exported(upstream: Upstream, module: str) -> frozenset[str] | None:
    """Names in a module's `__all__`; None where it has none that can be read."""
    table = upstream.store.module(module)
    names, complete = upstream.exports(table) if table is not None else (frozenset(), False)
    return names if complete else None


def refusals(case: JudgedUse) -> Iterator[UseProblem]:
    """The name is there, and what it does is to raise: a function that is called, a property that is read."""
    for before, after in case.pairs() if case.before.found else ():
        is_read = "property" in after.symbol.binding and case.reads(after.symbol.name)
        if case.use.action not in _REFUSING and not is_read:
            continue
        message = _refusal(case, case.new, after)
        if not message or _refusal(case, case.old, before):
            continue
        instead = advised(case.new, after.symbol, case.symbol, advice.advised(message))
        yield case.problem(
            FindingKind.REMOVED,
            AuditSeverity.BREAKING,
            f"{case.symbol} only raises now: {message}",
            before=before.symbol,
            after=after.symbol,
            whole=len(case.after.found) == 1 and case.after.closed,
            raises="Exception",
            replacement=Replacement(instead[0], "what it says to use", certain=False) if instead else None,
        )


def exception_of(case: JudgedUse, absent: Absent) -> str:
    """What a use of a name that is gone raises; "" if nothing."""
    use = case.use
    if use.action in (Action.IMPORT, Action.STAR_IMPORT):
        # `from a import b` fails as ImportError; `import a.b`, and all from a module that is gone, as its subclass.
        last = isinstance(use.target, Name) and use.target.dotted == f"{absent.container}.{absent.name}"
        from_module = last and use.action is Action.IMPORT and "." not in use.symbol_text
        return "ImportError" if from_module else "ModuleNotFoundError"
    if use.action is Action.STRING:
        module = any(met.symbol.kind is SymbolKind.MODULE for met in case.before.found)
        return "ModuleNotFoundError" if module else "AttributeError"
    return "" if use.action in (Action.ASSIGN, Action.PROBE) else "AttributeError"


def _receiver_changed(case: JudgedUse) -> bool:
    """Whether the name is gone because a function returns something else, not because a class lost it."""
    target = case.use.target
    if not isinstance(target, Attribute) or not _is_returned(target.base, case.old):
        return False
    had = {_last(met.receiver) for met in case.before.found}
    return all(_last(absent.container) not in had for absent in case.after.absent)


def _only_widened(case: JudgedUse) -> bool:
    """Whether all that the value could be it still can be, and what lacks the name could not come before."""
    had = {_last(met.receiver) for met in case.before.found}
    still = {_last(met.receiver) for met in case.after.found}
    return had <= still and all(_last(absent.container) not in had for absent in case.after.absent)


def _is_returned(access_path: AccessPath, upstream: Upstream) -> bool:
    match access_path:
        case Awaited(base) | Iterated(base) | ItemOf(base) | Entered(base):
            return _is_returned(base, upstream)
        case Called(base):
            found = locate(upstream, base).found
            if isinstance(base, Attribute) and found and not any(met.symbol.file for met in found):
                return _is_returned(base.base, upstream)  # a method of Python: `f().values()`
            return bool(found) and all(met.symbol.kind is not SymbolKind.CLASS for met in found)
        case Attribute():
            outcome = upstream.follow(access_path)
            # A property gives it, or it is an instance already: no definition of its own
            return isinstance(outcome, Values) and all(
                not isinstance(each, Definite) or "property" in each.symbol.binding for each in outcome.types
            )
    return False


def _last(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _refusal(case: JudgedUse, upstream: Upstream, met: Resolved) -> str:
    derives = case.use.action is Action.SUBCLASS  # which makes no instance
    if met.symbol.refuses and not derives:
        return met.symbol.refuses
    if met.symbol.kind is not SymbolKind.CLASS:
        return _raised_first(upstream, met.symbol)
    if upstream.members.constructor_hook(met.symbol):
        return ""  # the metaclass may call neither
    for name in ("__init_subclass__",) if derives else ("__init__", "__new__"):
        method = upstream.member(met.symbol, name)
        if isinstance(method, Found) and (message := _raised_first(upstream, method.symbol)):
            return message
    return ""


_MOST_HANDS = 3


def _raised_first(upstream: Upstream, function: Symbol, hands: int = _MOST_HANDS) -> str:
    """Return what a function raises at once, itself or by what it calls first; "" if it may do something else.

    def addPage(self, page):
        gone("addPage", "add_page")         # def gone(old, new): raise GoneError(MESSAGE.format(old, new))
        return self.add_page(page)
    """
    node = None if function.refuses or not hands else upstream.tree_of(function)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return function.refuses
    documented = ast.get_docstring(node, clean=False) is not None
    first = node.body[documented] if len(node.body) > documented else None
    if not isinstance(first, ast.Expr) or not isinstance(call := first.value, ast.Call):
        return ""
    called = upstream.keywords.callee(function, ast.unparse(call.func))
    reached = upstream.function_of(called) if called is not None else None
    facts = upstream.keywords.model.definitions.facts(reached) if reached is not None else None
    hook = function.owner and facts is not None and facts.refusal_type == "NotImplementedError"
    if reached is None or reached.is_async or reached.is_generator or hook:
        return ""
    texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    # `gone("addPage", "add_page", "3.0")`: the old name, the new one, and the version
    told = f"use `{texts[1]}`" if len(texts) > 1 and texts[1].isidentifier() else " ".join(texts)
    message = _raised_first(upstream, reached, hands - 1)
    return f"{message}: {told}".removesuffix(": ") if message else ""


# ---------------------------------------------------------------------------------------- modules that nobody imports

_LAZY = re.compile(rb"__getattr__|[Ll]azy|import_module|__path__|globals\(\)|setattr")
"""In a package that may load its modules when they are asked for."""


def unloaded(case: JudgedUse) -> Iterator[UseProblem]:
    """A submodule that an import inside of the package loaded, and nothing loads any more.

    import up
    up.io.load()        # worked because up/__init__.py said `from up import io`, which the new version does not
    """
    target = case.use.target
    if case.use.action not in (Action.READ, Action.CALL) or not isinstance(target, Name):
        return
    parts = target.dotted.split(".")
    for end in range(2, len(parts)):
        module = ".".join(parts[:end])
        before, after = _module(case.old, module), _module(case.new, module)
        if before is None or after is None:
            return
        if f".{parts[end - 1]}" not in case.use.symbol_text or case.context.imported(module):
            continue
        if not _is_loaded(case.new, module) and _is_loaded(case.old, module):
            yield case.problem(
                FindingKind.REMOVED,
                AuditSeverity.BREAKING,
                f"importing {parts[0]} no longer loads {module}: import it by name",
                before=before,
                after=after,
                symbol=module,
                raises="AttributeError",
                weight=0.9,
                replacement=Replacement(f"import {module}", "the module is still there", certain=True),
            )
            return


def _module(upstream: Upstream, dotted: str) -> Symbol | None:
    found = upstream.resolve(dotted)
    return found.symbol if isinstance(found, Found) and found.symbol.kind is SymbolKind.MODULE else None


def _is_loaded(upstream: Upstream, module: str) -> bool:
    """Whether importing the packages above may load a module: by any import that starts there, or lazily."""
    parts = module.split(".")
    waiting = [".".join(parts[:end]) for end in range(1, len(parts))]
    imports = upstream.imports()
    seen: set[str] = set()
    plain = re.compile(rb"^[ \t]*import[ \t]+" + re.escape(module.encode()) + rb"\b", re.MULTILINE)
    while waiting:
        current = waiting.pop()
        symbol = None if current in seen else _module(upstream, current)
        seen.add(current)
        if symbol is None:
            continue
        text = upstream.source.read(symbol.file) if symbol.file else b""
        if plain.search(text) or (module.startswith(f"{current}.") and _LAZY.search(text)):
            return True
        for source, names in imports.get(current, {}).items():
            reached = [source, *(f"{source}.{name}" for name in names)]
            if any(each == module or each.startswith(f"{module}.") for each in reached):
                return True
            waiting.extend(each for each in reached if each not in seen and upstream.owns(each))
    return False
