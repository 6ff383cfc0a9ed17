"""Functions that are passed to the package and called by it in another way now.

    def run(self):                      def run(self):
        self.on_step(1)                     self.on_step(1, loss)       # Loop(lambda step: ...) no longer fits

The evidence is a call inside the package.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.python.source import parse_expression
from tooling.python.symbols.calls import STAR, STARS, bind, fits, written_call
from tooling.python.symbols.symbol import SymbolKind
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.comparison import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.symbols.calls import WrittenCall
    from tooling.python.symbols.targets import Callable_
    from tooling.upgrade.verdicts.case import JudgedUse
    from tooling.upgrade.verdicts.comparison import UseProblem


@dataclass(frozen=True, slots=True)
class Callback:
    """A call of what was passed."""

    arguments: WrittenCall
    text: str
    awaited: bool


def misfits(case: JudgedUse) -> Iterator[UseProblem]:
    """What is passed fits each call that the old release makes of it, and not those of the new one."""
    arguments = case.use.arguments if case.use.action is Action.CALL else None
    before, after = case.called_before.callables, case.called_after.callables
    if arguments is None or not any(each.function for each in arguments.given) or len(before) != 1 or len(after) != 1:
        return
    old = bind(before[0].signature, arguments, before[0].accepts)
    new = bind(after[0].signature, arguments, after[0].accepts)
    for index, argument in enumerate(arguments.given):
        own, was, now = argument.function, old.slots.get(index, ""), new.slots.get(index, "")
        if own is None or own.decorated or {was, now} & {"", STAR, STARS}:
            continue
        earlier, later = _calls(before[0], was), _calls(after[0], now)
        if not earlier or not later or not all(fits(own.signature, each.arguments) for each in earlier):
            continue
        bad = next((each for each in later if not fits(own.signature, each.arguments)), None)
        kind, how = FindingKind.OVERRIDE_DRIFT, f"is called as `{shorten(bad.text, 80)}` now" if bad else ""
        awaited, was_awaited = ({each.awaited for each in side} for side in (later, earlier))
        if bad is None and len(awaited) == 1 and awaited.isdisjoint(was_awaited) and own.is_async not in awaited:
            kind, how = FindingKind.ASYNC_CHANGED, "is awaited now" if True in awaited else "is not awaited now"
        if how:
            answer = f"def ...({', '.join(_names(bad))})" if bad else f"{'async ' if True in awaited else ''}def ..."
            message = f"what is passed for `{now}` {how}, which this function does not fit"
            yield case.problem(
                kind,
                AuditSeverity.WARNING,
                message,
                before=before[0].symbol,
                after=after[0].symbol,
                place=argument.place,
                parameter=now,
                replacement=Replacement(answer, "how it is called now", certain=False),
            )


def _names(call: Callback) -> Iterator[str]:
    """Names for the parameters that take what a call passes: `hook(batch, self.step, 1, logs={})` passes batch, step,
    argument_3 and logs."""
    node = parse_expression(call.text)
    assert isinstance(node, ast.Call), "the text of a call"
    for number, argument in enumerate(node.args, 1):
        yield getattr(argument, "id", getattr(argument, "attr", "")) or f"argument_{number}"
    for keyword in node.keywords:
        yield keyword.arg or "**options"


def _calls(side: Callable_, name: str) -> list[Callback]:
    """Calls of a parameter in the function that it is passed to, or by methods of the class that keeps it; [] where
    that is not all that becomes of it."""
    function = side.tree.function_of(side.symbol)
    node = side.tree.tree_of(function) if function is not None else None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    names, kept = {name}, set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load):
            return []  # it is something else from there on
        if isinstance(each, ast.Assign) and ast.unparse(each.value) in names and len(each.targets) == 1:
            target = each.targets[0]
            if isinstance(target, ast.Name):
                names.add(target.id)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                kept.add(f"self.{target.attr}")
    found = list(_of(node, names))
    if kept and side.symbol.kind is SymbolKind.CLASS:
        for base in side.tree.bases(side.symbol)[0]:
            tree = side.tree.tree_of(base) if base.file else None
            found += _of(tree, kept) if tree is not None else []
    hidden = any(each.arguments.has_star or each.arguments.has_double_star for each in found)
    return [] if hidden else found


def _of(tree: ast.AST, called: set[str]) -> Iterator[Callback]:
    awaited = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Await)}
    for each in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
        if isinstance(each.func, ast.Name | ast.Attribute) and ast.unparse(each.func) in called:
            yield Callback(written_call(each), ast.unparse(each), id(each) in awaited)
