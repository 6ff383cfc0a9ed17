"""Branches: under which conditions statements are reached, and what names hold after branches meet again."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tooling.upgrade.usage.facts import NONE, UNKNOWN
from tooling.upgrade.usage.scan.frames import KnownDict
from tooling.upgrade.usage.scan.wrappers import SpecialCalls

if TYPE_CHECKING:
    from collections.abc import Sequence


State = tuple[dict[str, int], "dict[str, KnownDict]"]
Exits = bool
"""Whether a statement never goes on to the next one."""

_EXITS = frozenset({"sys.exit", "os._exit", "os.abort", "pytest.skip", "pytest.fail", "pytest.exit"})
_NEVER = frozenset({"exit", "quit"})


class Branches(SpecialCalls):
    """Statements that choose."""

    def block(self, body: Sequence[ast.stmt]) -> Exits:
        """Statements one after the other. What stands after `if test: return` stands under `not test`."""
        conditions, attempts = self.conditions, self.attempts
        try:
            return any(self.statement(statement) for statement in body)  # what follows an exit is never run
        finally:
            self.conditions, self.attempts = conditions, attempts

    def statement(self, node: ast.stmt) -> Exits:
        """One statement."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------------------- if

    def if_(self, node: ast.If) -> Exits:
        """`if`, with `elif` and `else`."""
        self.value_used(node.test)
        if is_type_checking(node.test):
            with self.unevaluated():
                self.block(node.body)
            typed = self.frame.copy_values()
            exits = self.block(node.orelse)
            for name, value in typed[0].items():
                if self.frame.values.get(name, UNKNOWN) == UNKNOWN:
                    self.frame.values[name] = value
            return exits if node.orelse else False
        test = self.test(node.test) + 1
        before = self.frame.copy_values()
        then = self._branch(node.body, test, node.test, True)
        after = self.frame.copy_values()
        self.frame.values, self.frame.dicts = before
        other = self._branch(node.orelse, -test, node.test, False)
        self._join([(then, after, test), (other, self.frame.copy_values(), -test)], before_names=before[0])
        if then != other:
            self.conditions = (*self.conditions, -test if then else test)
            self.narrow(node.test, holds=other)  # after `if not isinstance(x, C): return`, x is a C
        return then and other

    def _branch(self, body: Sequence[ast.stmt], condition: int, test: ast.expr, holds: bool) -> Exits:
        outer, self.assigned = self.assigned, set()
        with self.under(condition), self.narrowing():
            self.narrow(test, holds=holds)
            exits = self.block(body)
            for name in self.assigned:
                self.narrowings.pop(name, None)  # the branch gave it another value: that one stays
        self.assigned |= outer
        return exits

    def _join(self, ends: list[tuple[Exits, State, int]], *, before_names: dict[str, int]) -> None:
        """What names hold after branches: of those that go on, each value under its branch's condition."""
        going = [(state, condition) for exits, state, condition in ends if not exits]
        if not going:
            return
        if len(going) == 1:
            self.frame.values, self.frame.dicts = going[0][0]
            return
        values: dict[str, int] = {}
        for name in dict.fromkeys(name for state, _ in going for name in state[0]):
            held = [(state[0].get(name, NONE if name not in before_names else UNKNOWN), one) for state, one in going]
            first = held[0][0]
            if all(value == first for value, _ in held):
                values[name] = first
            else:
                values[name] = self.either(self._reached(value, condition) for value, condition in held)
        self.frame.values = values
        self.frame.dicts = _joined_dicts([state[1] for state, _ in going])

    def _reached(self, value: int, condition: int) -> int:
        with self.under(condition):
            return self.guarded(value)

    # -------------------------------------------------------------------------------------------------------- try

    def try_(self, node: Any) -> Exits:
        """`try` with its handlers."""
        number, self.tries = self.tries, self.tries + 1
        attempts = self.attempts
        handlers = [self._caught(handler) for handler in node.handlers]
        body = self._attempt(number, "body", tuple(dict.fromkeys(one for names in handlers for one in names)), -1, node)
        before = self.frame.copy_values()
        self.attempts = (*attempts, body) if node.handlers else attempts
        switches, self.switches = self.switches, (*self.switches, *switched_off(node.handlers))
        exits = self.block(node.body)
        self.attempts, self.switches = attempts, switches
        ends: list[tuple[Exits, State, int]] = []
        if not exits:
            exits = self.block(node.orelse)
        ends.append((exits, self.frame.copy_values(), body))
        for index, handler in enumerate(node.handlers):
            self.frame.values, self.frame.dicts = dict(before[0]), {key: one.copy() for key, one in before[1].items()}
            row = self._attempt(number, "handler", handlers[index], index, node)
            self.attempts = (*attempts, row)
            if handler.name:
                self.bind(handler.name, UNKNOWN)
            ended = self.block(handler.body)
            self.attempts = attempts
            ends.append((ended, self.frame.copy_values(), row))
        self._join_attempts(ends)
        # After `try: ...; return a` / `except: pass` the rest of the block is what the handler falls back to
        going = [attempt for exits, _, attempt in ends if not exits]
        if ends[0][0] and going:
            self.attempts = (*self.attempts, going[0])
        return self.block(node.finalbody) or all(end for end, _, _ in ends)

    def _caught(self, handler: ast.ExceptHandler) -> tuple[Any, ...]:
        """What a handler catches: names of builtins, or values. Uses of packages in it are noted."""
        if handler.type is None:
            return ("*",)
        entries = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        caught: list[Any] = []
        for entry in entries:
            if isinstance(entry, ast.Name) and self.is_builtin(entry.id):
                caught.append(entry.id)
                continue
            value = self.expression(entry, read=False)
            self.emit("except", entry, value)
            caught.append(value)
        return tuple(caught)

    def _attempt(self, number: int, part: str, caught: tuple[Any, ...], handler: int, node: Any) -> int:
        reraises = bool(node.handlers) and all(
            any(isinstance(statement, ast.Raise) for statement in one.body)
            for one in node.handlers
            if _catches_lookup(one)
        )
        self.facts.attempts.append((number, part, caught, handler, reraises))
        return len(self.facts.attempts) - 1

    def _join_attempts(self, ends: list[tuple[Exits, State, int]]) -> None:
        going = [(state, attempt) for exits, state, attempt in ends if not exits]
        if not going:
            return
        values: dict[str, int] = {}
        attempts = self.attempts
        for name in dict.fromkeys(name for state, _ in going for name in state[0]):
            held = [(state[0].get(name, NONE), attempt) for state, attempt in going]
            if all(value == held[0][0] for value, _ in held):
                values[name] = held[0][0]
                continue
            members = []
            for value, attempt in held:
                self.attempts = (*attempts, attempt)
                members.append(self.guarded(value))
            values[name] = self.either(members)
        self.attempts = attempts
        self.frame.values = values
        self.frame.dicts = _joined_dicts([state[1] for state, _ in going])

    # -------------------------------------------------------------------------------------------------- match, with

    def match_(self, node: ast.Match) -> Exits:
        """`match`: each case stands under its own pattern, and under the failure of those before."""
        subject = self.value_used(node.subject)
        shown = self.text(node.subject)
        before = self.frame.copy_values()
        failed: list[int] = []
        ends: list[tuple[Exits, State, int]] = []
        for case in node.cases:
            self.frame.values, self.frame.dicts = dict(before[0]), {key: one.copy() for key, one in before[1].items()}
            condition = self._pattern(case.pattern, node.subject, shown, subject)
            with self.under(*failed, condition):
                if case.guard is not None:
                    self.value_used(case.guard)
                    with self.under(self.test(case.guard) + 1):
                        exits = self.block(case.body)
                else:
                    exits = self.block(case.body)
            ends.append((exits, self.frame.copy_values(), condition))
            if condition and case.guard is None:
                failed.append(-condition)
        self._join(ends, before_names=before[0])
        return False

    def _pattern(self, pattern: ast.pattern, subject: ast.expr, shown: str, value: int) -> int:
        """Note the uses in a pattern and bind its names; the condition it stands for, 0 if it says nothing."""
        for inner in ast.walk(pattern):
            if isinstance(inner, ast.MatchAs | ast.MatchStar) and inner.name:
                self.bind(inner.name, UNKNOWN)
            elif isinstance(inner, ast.MatchClass):
                self.emit("isinstance", inner.cls, self.expression(inner.cls, read=False))
            elif isinstance(inner, ast.MatchValue):
                self.expression(inner.value)
        if isinstance(pattern, ast.MatchValue):
            return self.test_text(f"({shown}) == {self.text(pattern.value)}", subject) + 1
        bare = pattern.pattern if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None else pattern
        if isinstance(bare, ast.MatchClass):
            held = self.step("instance", self.chain(bare.cls))
            for name in (getattr(pattern, "name", None), subject.id if isinstance(subject, ast.Name) else None):
                if name and held:
                    self.frame.values[name] = held
        return 0


# ------------------------------------------------------------------------------------------------------------- helpers


def is_type_checking(test: ast.expr) -> bool:
    """`TYPE_CHECKING`, by itself."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def switched_off(handlers: Sequence[ast.ExceptHandler]) -> list[str]:
    """Names that a handler sets to None or False."""
    names: list[str] = []
    for handler in handlers:
        for statement in handler.body:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Assign) and isinstance(value, ast.Constant) and value.value in (None, False):
                names.extend(target.id for target in statement.targets if isinstance(target, ast.Name))
    return names


def _joined_dicts(states: Sequence[dict[str, KnownDict]]) -> dict[str, KnownDict]:
    """Known dicts after branches: keys of one branch carry its conditions already."""
    joined: dict[str, KnownDict] = {}
    for name in dict.fromkeys(name for state in states for name in state):
        known = KnownDict(more=any(name not in state for state in states))
        for state in states:
            if name not in state:
                continue
            known.more |= state[name].more
            for key, entries in state[name].entries.items():
                have = known.entries.setdefault(key, [])
                have.extend(entry for entry in entries if entry not in have)
        joined[name] = known
    return joined


def _catches_lookup(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    entries = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    wide = {"ImportError", "ModuleNotFoundError", "AttributeError", "TypeError", "Exception", "BaseException"}
    return any(isinstance(entry, ast.Name) and entry.id in wide for entry in entries)


def leaves(node: ast.Call, dotted: str) -> bool:
    """Whether a call never comes back."""
    return dotted in _EXITS or (isinstance(node.func, ast.Name) and node.func.id in _NEVER)
