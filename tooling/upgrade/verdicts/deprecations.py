"""What works and is announced to go, and what is private: nothing breaks here, yet."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, Name
from tooling.python.symbols.calls import bind, fits, named
from tooling.python.symbols.symbol import Found, Open, SymbolKind
from tooling.python.versions import version_or_none
from tooling.upgrade import advice
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.answers import advised
from tooling.upgrade.verdicts.calls import arguments_of
from tooling.upgrade.verdicts.comparison import UseProblem, mentions, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.symbols.symbol import Parameter, Signature, Symbol
    from tooling.python.symbols.targets import Resolved
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import SourcePlace, Use
    from tooling.upgrade.verdicts.case import JudgedUse

_RUNS_IT = frozenset({Action.CALL, Action.DECORATE, Action.SUBCLASS})
_NAMES_IT = frozenset({Action.IMPORT, Action.READ, Action.STRING, Action.ISINSTANCE, Action.EXCEPT})
_WHOLE_PATH = frozenset({Action.IMPORT, Action.STRING})


def announced(case: JudgedUse) -> Iterator[UseProblem]:
    """The new version says that it will go. What the old version said already is not news: INFO."""
    if not case.before.found or case.after.absent or not case.after.closed:
        return
    for before, after in case.pairs():
        text = _text(case, after)
        if text:
            known = bool(_text(case, before))
            answer = _instead(case, after, text)
            yield _problem(case, after, before, text, known=known, place=case.use.place, answer=answer)
    yield from _parameters(case)


def touched_privately(case: JudgedUse) -> Iterator[UseProblem]:
    """A private name that still exists."""
    use = case.use
    if not use.private or not case.before.found or not case.after.found or not case.after.closed:
        return
    if not _names_private(use, case.symbol):
        return
    message = f"{case.symbol} is private: it may change or go without notice"
    before, after = case.before.found[0].symbol, case.after.found[0].symbol
    yield case.problem(FindingKind.PRIVATE, AuditSeverity.INFO, message, before=before, after=after)


def _names_private(use: Use, symbol: str) -> bool:
    """Whether this very place spells the private part; a use of an imported name does not, its import did."""
    if use.action in _WHOLE_PATH:
        return any(_is_private(part) for part in symbol.split("."))
    match use.target:
        case Attribute(_, name):
            return _is_private(name)
        case Name(dotted):
            return "." in use.symbol_text.partition("(")[0] and _is_private(dotted.rpartition(".")[2])
    return False


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def _text(case: JudgedUse, met: Resolved) -> str:
    """What is announced, at the place where it shows: the way at an import, the thing where it is run or read."""
    if case.use.action is Action.IMPORT and (text := _of_module(case, met)):
        return text
    if met.deprecated and case.use.action in _NAMES_IT | _RUNS_IT:
        return met.deprecated if case.use.action is Action.IMPORT or "." in case.use.symbol_text else ""
    if case.use.action in _RUNS_IT:
        return met.symbol.deprecated or _text_inside(case, met.symbol)
    quiet = met.symbol.kind in (SymbolKind.VALUE, SymbolKind.MODULE) or "property" in met.symbol.binding
    return met.symbol.deprecated if quiet and case.use.action in _NAMES_IT else ""


def _of_module(case: JudgedUse, met: Resolved) -> str:
    """What importing the module that an import names warns of."""
    upstream = case.new if met in case.after.found else case.old
    dotted = case.use.target.dotted if isinstance(case.use.target, Name) else ""
    is_module = met.symbol.kind is SymbolKind.MODULE
    table = upstream.store.module(dotted if is_module else dotted.rpartition(".")[0]) if dotted else None
    return table.deprecated if table is not None else ""


def _text_inside(case: JudgedUse, symbol: Symbol) -> str:
    """What a function announces because the first thing that it does in any case is to use something that is announced:

    def causal_mask(shape):
        converter = MaskConverter(is_causal=True)     # warns
    """
    if symbol.kind is not SymbolKind.FUNCTION or symbol.owner:
        return ""
    upstream = case.new if symbol in [met.symbol for met in case.after.found] else case.old
    key = ("called first", symbol.dotted, symbol.file, str(symbol.line))
    for name in upstream.store.answer(key, lambda: _called_first(upstream, symbol)):
        used = upstream.resolve(f"{symbol.dotted.rpartition('.')[0]}.{name}")
        if isinstance(used, Found) and used.symbol.file == symbol.file and used.symbol.deprecated:
            return used.symbol.deprecated
    return ""


def _called_first(upstream: Upstream, symbol: Symbol) -> list[str]:
    """Names of the module that a function calls in any case, in order, if its file announces anything."""
    function = upstream.tree_of(symbol) if mentions(upstream, symbol.file, "eprecat|Warning") else None
    if function is None:
        return []
    local = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    local |= {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    names = []
    for statement in function.body:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id not in local:
            names.append(value.func.id)
        if not isinstance(statement, ast.Assign | ast.AnnAssign) and not isinstance(value, ast.Constant):
            break  # what follows may not run
    return names


def _parameters(case: JudgedUse) -> Iterator[UseProblem]:
    arguments = arguments_of(case)
    if arguments is None or len(case.called_after.callables) != 1 or not case.called_before.callables:
        return
    after, before = case.called_after.callables[0], case.called_before.callables[0]
    bound = bind(after.signature, arguments, after.accepts)
    for index, slot in bound.slots.items():
        parameter = named(after.signature, slot)
        if parameter is None:
            continue
        argument = arguments.given[index]
        name = argument.name or slot
        text = parameter.deprecated or _old_name(after.signature, parameter, name)
        if text:
            was = named(before.signature, name)
            known = was is not None and bool(was.deprecated or _old_name(before.signature, was, name))
            answer = _other_name(after.signature, parameter, name, text, written=argument.name is not None)
            place = argument.place
            yield _problem(case, after.met, before.met, text, known=known, place=place, parameter=name, answer=answer)


def _instead(case: JudgedUse, after: Resolved, text: str) -> Replacement | None:
    """What the announcement says to use; certain where this use of the old one fits it."""
    found = advised(case.new, after.symbol, case.symbol, advice.advised(text))
    if found is None:
        return None
    path, symbol = found
    if symbol.owner:  # from where this code names the old one
        path = f"{case.symbol.rpartition('.')[0]}.{symbol.dotted.rpartition('.')[2]}"
    arguments, signature = arguments_of(case), case.new.signature(symbol)
    fitting = arguments is None or (not isinstance(signature, Open) and fits(signature, arguments))
    certain = symbol == after.symbol or (symbol.kind is after.symbol.kind and fitting)
    return Replacement(path, "the new version says to use it", certain=certain)


def _other_name(
    signature: Signature, parameter: Parameter, name: str, text: str, *, written: bool
) -> Replacement | None:
    if name != parameter.name:
        return Replacement(parameter.name, "the name it has now", certain=written)
    names = [word for word in advice.advised(text) if word != name and named(signature, word) is not None]
    return Replacement(names[0], "the new version says to use it", certain=False) if names else None


def _old_name(signature: Signature, parameter: Parameter, name: str) -> str:
    """Passed under another name that is still taken. Aliases of pydantic fields are what one should write."""
    return f"it is `{parameter.name}` now" if name != parameter.name and not signature.extra else ""


def _problem(
    case: JudgedUse,
    after: Resolved,
    before: Resolved,
    text: str,
    *,
    known: bool,
    place: SourcePlace,
    parameter: str = "",
    answer: Replacement | None = None,
) -> UseProblem:
    subject = f"`{parameter}` of {case.symbol}" if parameter else case.symbol
    end, now = version_or_none(after.symbol.removed_in), version_or_none(case.new.source.origin.version)
    overdue = end is not None and now is not None and end <= now  # not to be trusted to the letter
    until = f" (to be removed in {after.symbol.removed_in})" if after.symbol.removed_in else ""
    return case.problem(
        FindingKind.DEPRECATED,
        AuditSeverity.INFO if known else AuditSeverity.WARNING,
        f"{subject} is deprecated{until}: {shorten(text)}",
        before=before.symbol,
        after=after.symbol,
        place=place,
        parameter=parameter,
        weight=0.7 if overdue else 1.0,
        replacement=answer,
        fixable=not known,
    )
