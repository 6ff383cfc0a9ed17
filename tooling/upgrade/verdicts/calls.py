"""Judge calls: arguments that no longer bind, parameters that moved, defaults that changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute
from tooling.python.operations import literal
from tooling.python.symbols.annotations import type_names
from tooling.python.symbols.calls import STAR, STARS, BoundCall, bind, named, takes
from tooling.python.symbols.symbol import Absent, Keyword, SymbolKind
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action, Argument, PassedArguments
from tooling.upgrade.verdicts.answers import by_position, inside_of_another, left_out, old_default
from tooling.upgrade.verdicts.comparison import UseProblem, mentions
from tooling.upgrade.verdicts.weight import effective_default, is_former_name, reads, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.symbols.symbol import Parameter
    from tooling.python.symbols.targets import Callable_
    from tooling.upgrade.uses import SourcePlace
    from tooling.upgrade.verdicts.case import JudgedUse


_STARRED = ("star", "double-star")
_MARKER = re.compile(
    r"^[A-Za-z_]*(unset|undefined|missing|sentinel|nothing|no_?default|not_?(given|set|passed))_*$", re.IGNORECASE
)
"""Defaults that stand for an argument that is not passed: `_Unset`, `PydanticUndefined`, `NOT_GIVEN`."""
_NOTHING = re.compile(
    r"None|\{\}|\[\]|\(\)|(dict|list|tuple|set|frozenset)\(\)|<?([\w.]+\.)?_?EMPTY_(DICT|LIST|TUPLE|SET)>?"
)
"""Defaults that hold nothing."""


def changed(case: JudgedUse) -> Iterator[UseProblem]:
    """A parameter that the call leaves out has another default now."""
    arguments = arguments_of(case)
    before, after = case.called_before.callables, case.called_after.callables
    if arguments is None or arguments.partial or case.use.action is Action.DECORATE:
        return  # arguments of a partial may still come
    if len({each.symbol for each in before}) != 1 or len({each.symbol for each in after}) != 1:
        return  # of a union nobody knows which default is meant
    old = bind(before[0].signature, arguments, before[0].accepts)
    new = bind(after[0].signature, arguments, after[0].accepts)
    for parameter in after[0].signature.parameters:
        was = named(before[0].signature, parameter.name)
        if was is None or parameter.name not in new.omitted or was.name not in old.omitted:
            continue
        if was.folded is None or parameter.folded is None or was.folded == parameter.folded:
            continue
        if any(_MARKER.search((each.default or "").rpartition(".")[2]) for each in (was, parameter)):
            continue  # None became a marker of "not passed", or was one
        if _NOTHING.fullmatch(was.folded) and _NOTHING.fullmatch(parameter.folded):
            continue  # `options or {}` is how one becomes the other
        before_call = effective_default(before[0], was.name, was.folded)
        now = effective_default(after[0], parameter.name, parameter.folded)
        if before_call == now or not reads(after[0], parameter.name, new, arguments):
            continue
        yield case.problem(
            FindingKind.DEFAULT_CHANGED,
            AuditSeverity.WARNING,
            f"{case.symbol}: `{parameter.name}` is {parameter.default} by default now; it was {was.default}",
            before=before[0].symbol,
            after=after[0].symbol,
            parameter=parameter.name,
            replacement=old_default(was, parameter, arguments),
        )


@dataclass(frozen=True, slots=True)
class CallChange:
    """One argument or parameter that no longer fits."""

    kind: FindingKind
    parameter: str
    place: SourcePlace
    message: str
    severity: AuditSeverity = AuditSeverity.BREAKING
    raises: str = "TypeError"
    replacement: Replacement | None = None


def arguments_of(case: JudgedUse) -> PassedArguments | None:
    """What is passed; a decorator is called with what it decorates, a base class with the keywords of the statement."""
    use = case.use
    if use.action is Action.DECORATE and use.arguments is None:
        return PassedArguments(given=(Argument(place=use.place, name=None, position=0),))
    if use.action is Action.SUBCLASS:
        given = use.arguments.given if use.arguments is not None else ()
        return None if any(each.name == "metaclass" for each in given) else use.arguments
    return use.arguments if use.action in (Action.CALL, Action.DECORATE) else None


def mismatches(case: JudgedUse) -> Iterator[UseProblem]:
    """What no longer fits, for each thing that the call may reach; on a union breaking only if on all of it."""
    arguments = arguments_of(case)
    if arguments is None:
        return
    if not case.called_before.callables:
        yield from _forgotten_keywords(case, arguments)
        return
    reached = case.called_after.callables
    changes: dict[tuple[FindingKind, str], list[tuple[CallChange, Callable_, Callable_]]] = {}
    for after in reached:
        same = [each for each in case.called_before.callables if each.symbol.dotted == after.symbol.dotted]
        alike = [
            each
            for each in case.called_before.callables
            if each.symbol.dotted.split(".")[-2:] == after.symbol.dotted.split(".")[-2:]
        ]
        if not same and not alike and len(reached) > len(case.called_before.callables):
            continue  # it came into a table of functions: `KERNELS.get(name, plain_kernel)`
        before = (same or alike or list(case.called_before.callables))[0]
        for change in compare(case, before, after, arguments) if before.met.unbound == after.met.unbound else ():
            changes.setdefault((change.kind, change.parameter), []).append((change, before, after))
    for found in changes.values():
        yield _problem(case, found, whole=len(found) == len(reached) and not case.called_after.open)


def _forgotten_keywords(case: JudgedUse, arguments: PassedArguments) -> Iterator[UseProblem]:
    """Of a call that may reach anything: `model(ids, head_mask=None)`, where a `forward` had it."""
    target = case.use.target
    called = {target.name} if isinstance(target, Attribute) else {"forward", "call", "__call__", "__init__"}
    for argument in arguments.given:
        name = argument.name or ""
        if called & set(case.old.parameter_names().get(name, ())) and is_forgotten(case, name):
            yield case.problem(
                FindingKind.PARAM_REMOVED,
                AuditSeverity.WARNING,
                f"nothing in {case.context.distribution} {case.new.source.origin.version} speaks of `{name}` any more",
                place=argument.place,
                parameter=name,
                raises="",
                weight=0.6,
                replacement=left_out(name, None, argument, is_idle=False),
            )


def is_forgotten(case: JudgedUse, name: str) -> bool:
    """Whether functions of the old release had a parameter of this name, and nothing in the new one speaks of it, not
    even a module that was compiled since."""
    if name not in case.old.parameter_names() or case.new.speaks_of(name):
        return False
    was, now = case.old.store.sources, case.new.store
    unread = [was[module] for module in now.native if module in was and module not in now.sources]
    return not any(name.encode() in case.old.source.read(path) for path in unread)


def compare(case: JudgedUse, before: Callable_, after: Callable_, arguments: PassedArguments) -> list[CallChange]:
    """What fits the old signature and not the new one."""
    if not after.signature.exact:
        return list(_left_to_others(case, before, after, arguments))
    old = bind(before.signature, arguments, before.accepts)
    new = bind(after.signature, arguments, after.accepts)
    comparison = _Comparison(case, before, after, arguments, old, new)
    given = range(len(arguments.given))
    if (
        not before.signature.exact
    ):  # a decorator is not understood: a keyword that was named arrived, and no longer does
        named_then = [
            each
            for each in given
            if named(before.signature, arguments.given[each].name or "") or comparison.was_taken(arguments.given[each])
        ]
        return [change for each in named_then if (change := comparison.argument(each) or comparison.refused(each))]
    changes = [change for each in given if (change := comparison.argument(each) or comparison.refused(each))]
    return changes + comparison.missing(changes)


_IN_CODE = r"(?m)\.{0}\b|[\"']{0}[\"']|^\s*{0}\s*[:=]|[(,]\s*{0}="
"""A name as an attribute, a string, a field or a keyword; docstrings may speak of anything."""


def _left_to_others(
    case: JudgedUse, before: Callable_, after: Callable_, arguments: PassedArguments
) -> Iterator[CallChange]:
    """Keywords that a function or class no longer names, and only something outside may take: a decorator that is not
    understood, or the base of a configuration that derives from `transformers.TrainingArguments`. The code in the file
    of a class no longer has the name either."""
    kinds = {before.symbol.kind, after.symbol.kind}
    of_class = kinds == {SymbolKind.CLASS}
    if of_class and (case.new.bases(after.symbol)[1] or case.old.bases(before.symbol)[1]):
        return  # a decorator made it inexact
    if not of_class and (kinds != {SymbolKind.FUNCTION} or takes(after.signature, "double-star")):
        return
    taker = "a base of another distribution" if of_class else "a decorator"
    for argument in arguments.given:
        name = argument.name or ""
        if not name or named(before.signature, name) is None or named(after.signature, name) is not None:
            continue
        if after.accepts(name) is Keyword.READ:
            continue
        if of_class and mentions(case.new, after.symbol.file, _IN_CODE.format(re.escape(name))):
            continue
        other = renamed(case, before, after, name)
        yield CallChange(
            FindingKind.PARAM_RENAMED if other else FindingKind.PARAM_REMOVED,
            name,
            argument.place,
            f"`{name}` is not a {'field' if of_class else 'parameter'} any more; only {taker} may take it",
            AuditSeverity.WARNING,
            raises="",
            replacement=replace(other, certain=False) if other else None,
        )


def renamed(case: JudgedUse, before: Callable_, after: Callable_, name: str) -> Replacement | None:
    """What a parameter is called now; None if nothing speaks for one name."""
    explained = case.explain(Absent(before.symbol.dotted, name, after.symbol.file))
    if explained is not None and explained[1] is not None:
        return explained[1]
    had, has = set(case.old.keyword_reads(before.symbol)), set(case.new.keyword_reads(after.symbol))
    if name in had and len(had - has) == len(has - had) == 1 and name not in has:
        return Replacement(next(iter(has - had)), "read from the keywords instead", certain=False)
    return None


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One call bound twice."""

    case: JudgedUse
    before: Callable_
    after: Callable_
    arguments: PassedArguments
    old: BoundCall
    new: BoundCall

    def was_taken(self, argument: Argument) -> bool:
        """Whether something in front of the old function read a keyword: `@deprecate_kwarg("damped", "trend")`."""
        return argument.name is not None and self.before.accepts(argument.name) is Keyword.READ

    def argument(self, index: int) -> CallChange | None:
        argument = self.arguments.given[index]
        if index not in self.old.slots and not self.was_taken(argument):
            return None
        if argument.name is not None:
            return self._keyword(index, argument, argument.name)
        # Positions behind a `*x` are not known; those before it come first in the list
        if self.arguments.has_star and (self.arguments.given[index].position < 0):
            return None
        was, now = self.old.slots[index], self.new.slots.get(index, "")
        if now == was or (was == STAR and now):
            return None
        parameter = named(self.after.signature, was) if was != STAR else None
        if parameter is not None and parameter.kind == "keyword-only":
            by_name = Replacement(was, "the parameter kept its name", certain=not self.arguments.has_star)
            message = f"`{was}` must be passed by keyword now"
            return self._change(FindingKind.PARAM_KWONLY, was, argument, message, replacement=by_name)
        if parameter is None:
            return self._without_home(was, now, argument)
        slots = (self.old.slots.get(each) for each in range(index) if self.arguments.given[each].name is None)
        gone = any(slot and slot != STAR and named(self.after.signature, slot) is None for slot in slots)
        if gone or is_former_name(self.after, was, now) or self._is_of_another_kind(was, argument):
            return None
        lands = f"lands on `{now}`" if now and now != STAR else "has no place"
        by_name = Replacement(was, "the parameter kept its name", certain=not self.arguments.has_star)
        message = f"the argument for `{was}` {lands} now"
        raises = "" if self.new.fits(len(self.arguments.given)) else "TypeError"
        return self._change(FindingKind.PARAM_REORDERED, was, argument, message, raises=raises, replacement=by_name)

    def refused(self, index: int) -> CallChange | None:
        """A parameter that is there to tell that it is gone: whoever passes it gets an exception."""
        argument = self.arguments.given[index]
        was, now = self.old.slots.get(index, ""), self.new.slots.get(index, "")
        name = argument.name if now == STARS else now
        if not was or not name or name == STAR:
            return None
        raises, sure = refusal(self.after, name, argument.literal)
        if not raises or refusal(self.before, argument.name or was, argument.literal)[0]:
            return None
        always = refusal(self.after, name, None)[0]
        how = "" if always else f" as {argument.literal}"
        message = f"`{name}` is refused{how}: it raises {raises}" + ("" if sure else " unless it is None")
        other = renamed(self.case, self.before, self.after, name) if always else None
        kind = FindingKind.PARAM_RENAMED if other is not None else FindingKind.PARAM_REMOVED
        severity = AuditSeverity.BREAKING if sure else AuditSeverity.WARNING
        raised = raises if sure else ""
        return self._change(kind, name, argument, message, severity=severity, raises=raised, replacement=other)

    def _keyword(self, index: int, argument: Argument, name: str) -> CallChange | None:
        if self.new.slots.get(index, STARS) != STARS:
            return None
        if index in self.new.by_keyword_only:
            place = by_position(self.after.signature, self.arguments, name)
            message = f"`{name}` must be passed by position now"
            return self._change(FindingKind.PARAM_POSONLY, name, argument, message, replacement=place)
        fate = self.new.keywords.get(index, Keyword.OPEN)
        was = self.old.keywords.get(index, Keyword.NAMED)
        if fate is Keyword.REFUSED and self.after.accepts(name) is Keyword.READ:
            return None  # a decorator takes it
        if fate is Keyword.REFUSED:
            return self._gone(name, argument, AuditSeverity.BREAKING)
        forgotten = was is Keyword.OPEN and fate is not Keyword.NAMED and is_forgotten(self.case, name)
        if forgotten or (fate in (Keyword.OPEN, Keyword.IGNORED) and was in (Keyword.NAMED, Keyword.READ)):
            return self._gone(name, argument, AuditSeverity.WARNING, fate)
        return None

    def _without_home(self, was: str, now: str, argument: Argument) -> CallChange | None:
        """The old parameter is gone, and its argument lands elsewhere or nowhere."""
        if now in ("", STAR):
            if was != STAR and not now:
                return self._gone(was, argument, AuditSeverity.BREAKING)
            return (
                self._change(FindingKind.PARAM_REMOVED, "args", argument, "takes no further positional arguments now")
                if was == STAR
                else None
            )
        if named(self.before.signature, now) is not None:
            return self._gone(was, argument, AuditSeverity.BREAKING)
        other = renamed(self.case, self.before, self.after, was)
        if self._took_the_place(was, now) if other is None else other.text == now:
            return None
        message = f"what was `{was}` lands on `{now}` now"
        return self._change(
            FindingKind.PARAM_REORDERED, was, argument, message, severity=AuditSeverity.WARNING, raises=""
        )

    def _is_of_another_kind(self, was: str, argument: Argument) -> bool:
        """Whether a literal can hardly be meant for an old parameter, whose default is of another kind."""
        old = named(self.before.signature, was)
        was, now = (literal(text or "") for text in (old.default if old is not None else "", argument.literal))
        number = int | float
        return (isinstance(was, str) and isinstance(now, number)) or (isinstance(was, number) and isinstance(now, str))

    def _took_the_place(self, was: str, now: str) -> bool:
        """Whether a new parameter may be an old one by another name: `f(a, b=1)` became `f(x, y=1)`. It stands where
        that stood, as many went as came of those that must be passed, or need not, or one name is the other with a word
        more (`a_min`, `min`), and nothing that is written of the two differs."""
        left, right = self.before.signature.parameters, self.after.signature.parameters
        old, new = named(self.before.signature, was), named(self.after.signature, now)
        if old is None or new is None or left.index(old) != right.index(new):
            return False
        lost, fresh = (
            {
                each.name
                for each in side
                if each.kind not in _STARRED and (each.default is None) is (old.default is None)
            }
            for side in (left, right)
        )
        words = [set(name.split("_")) for name in (was, now)]
        alike = words[0] <= words[1] or words[1] <= words[0]
        if not alike and len(lost - fresh) != len(fresh - lost):
            return False
        if (old.folded or old.default) != (new.folded or new.default):
            return False
        return not (old.annotation and new.annotation and type_names(old.annotation) != type_names(new.annotation))

    def _gone(
        self, name: str, argument: Argument, severity: AuditSeverity, fate: Keyword = Keyword.REFUSED
    ) -> CallChange:
        replacement = renamed(self.case, self.before, self.after, name)
        kind = FindingKind.PARAM_RENAMED if replacement is not None else FindingKind.PARAM_REMOVED
        advice = f"; {replacement.sentence}" if replacement else ""
        if replacement is None:
            was = named(self.before.signature, name)
            replacement = left_out(name, was, argument, is_idle=fate is Keyword.IGNORED) or inside_of_another(
                self.case.new, self.after.symbol, self.before.signature, self.after.signature, name
            )
        message = {
            Keyword.REFUSED: f"`{name}` is not a parameter any more{advice}",
            Keyword.OPEN: f"`{name}` is not named any more: whether `**kwargs` still takes it is not known{advice}",
            Keyword.IGNORED: f"`{name}` is accepted and has no effect any more{advice}",
        }[fate]
        raises = "TypeError" if severity is AuditSeverity.BREAKING else ""
        if self.after.signature.extra == "forbid":
            raises = "ValueError"
        return self._change(kind, name, argument, message, severity=severity, raises=raises, replacement=replacement)

    def missing(self, changes: list[CallChange]) -> list[CallChange]:
        """New parameters that must be passed. Where arguments land elsewhere, that is the cause of what is missing."""
        breaking = (change.kind for change in changes if change.severity is AuditSeverity.BREAKING)
        if FindingKind.PARAM_REORDERED in breaking:
            return []
        before = {each.name for each in self.old.missing}
        landed = set(self.old.slots.values())
        renamed = {change.replacement.text for change in changes if change.replacement}
        lost = any(change.kind in (FindingKind.PARAM_REMOVED, FindingKind.PARAM_RENAMED) for change in changes)
        found = []
        for parameter in self.new.missing:
            if parameter.name in before or parameter.name in landed or parameter.name in renamed:
                continue
            had = named(self.before.signature, parameter.name) is not None
            if had and lost:
                continue  # it was optional beside what is gone: what is gone is the cause
            message = f"`{parameter.name}` must be passed now" + ("; it had a default" if had else "")
            found.append(
                CallChange(
                    FindingKind.PARAM_REQUIRED,
                    parameter.name,
                    self.case.use.place,
                    message,
                    replacement=_to_be_passed(parameter),
                )
            )
        return found + self._perhaps_missing()

    def _perhaps_missing(self) -> list[CallChange]:
        """New required parameters at a call with `**x`: what was written for the old version holds them hardly."""
        if not self.arguments.has_double_star or self.arguments.partial:
            return []
        filled = set(self.new.slots.values())
        kinds = ("keyword-only",) if self.arguments.has_star else ("keyword-only", "positional")
        return [
            CallChange(
                FindingKind.PARAM_REQUIRED,
                each.name,
                self.case.use.place,
                f"`{each.name}` must be passed now, and is not unless what is unpacked here holds it",
                AuditSeverity.WARNING,
                raises="",
                replacement=_to_be_passed(each),
            )
            for each in self.after.signature.parameters
            if each.default is None and each.kind in kinds and each.name not in filled
            if named(self.before.signature, each.name) is None and not takes(self.before.signature, "double-star")
        ]

    def _change(
        self,
        kind: FindingKind,
        parameter: str,
        argument: Argument,
        message: str,
        *,
        severity: AuditSeverity = AuditSeverity.BREAKING,
        raises: str = "TypeError",
        replacement: Replacement | None = None,
    ) -> CallChange:
        other_file = argument.place.path not in ("", self.case.use.place.path)
        if replacement is not None and argument.from_mapping and (other_file or argument.name is None):
            replacement = replace(replacement, certain=False)  # what is unpacked there may be used elsewhere too
        return CallChange(kind, parameter, argument.place, message, severity, raises, replacement)


def _to_be_passed(parameter: Parameter) -> Replacement:
    annotated = f": {parameter.annotation}" if parameter.annotation else ""
    return Replacement(f"{parameter.name}=", f"the new parameter{annotated}", certain=False)


def _problem(case: JudgedUse, found: list[tuple[CallChange, Callable_, Callable_]], *, whole: bool) -> UseProblem:
    change, before, after = found[0]
    symbol = case.symbol if len(case.called_before.callables) == 1 else before.symbol.dotted
    return case.problem(
        change.kind,
        change.severity,
        f"{symbol}: {change.message}",
        before=before.symbol,
        after=after.symbol,
        whole=whole,
        place=change.place,
        symbol=symbol,
        raises=change.raises,
        parameter=change.parameter,
        replacement=change.replacement,
        fixable=whole,
    )
