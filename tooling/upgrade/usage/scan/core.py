"""State of the walk over one file: the table of values, scopes, and under which conditions the walk stands."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tooling.python.source import Lines, children, decode, span_of
from tooling.upgrade.usage.facts import NONE, UNKNOWN, FileFacts, Node
from tooling.upgrade.usage.scan.frames import ElementOf, Frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BUILTINS = frozenset(dir(builtins))
_STANDARD = frozenset(sys.stdlib_module_names)
_PROBES = re.compile(r"(?:hasattr|getattr|dir|signature|fields|getfullargspec)$")
_TEXT_LIMIT = 400
"""Characters of a condition's source that are kept; longer ones are not about versions."""
_ALWAYS_HOT = frozenset(
    {"relative", "global", "own", "star", "super", "arg", "kwargs", "stars", "some", "keys", "options"}
)
"""Kinds of values that other files may have to tell more of."""
_UNTYPED = frozenset({"arg", "kwargs", "stars", "some", "keys", "options"})
"""Kinds of values whose elements and forms are of no interest."""
_STEPS = frozenset({"attr", "await", "call", "enter", "item", "iter", "view"})
"""Kinds of values that come out of another one, which stands behind the kind."""
_OF_FORM = frozenset({"await", "enter", "iterate", "operate", "subscript", "unpack"})
"""Uses that say how a value is used, and name nothing of it."""


class Visitor(Protocol):
    """What the parts of the walk ask of those that stand above them."""

    def expression(self, node: Any, read: bool = True) -> int:
        """Value of an expression, its uses noted. `read` is false if the caller notes what is done with it."""
        ...

    def call(self, node: ast.Call) -> int:
        """Value of a call that is passed on."""
        ...

    def used_call(self, node: ast.Call) -> int:
        """Value of a call whose value is used at once, or thrown away."""
        ...

    def awaited_call(self, node: ast.Call) -> int:
        """Value of `await f()`."""
        ...

    def quiet_value(self, node: ast.expr) -> int:
        """Value of something that was visited already: no use is noted twice."""
        ...

    def assign(self, target: ast.expr, value: int, origin: ast.expr | None = None) -> None:
        """Bind a target."""

    def definition(self, node: Any) -> None:
        """Note a function or class."""

    def keys_of(self, node: ast.Dict, held: int) -> int:
        """Value of a dict display whose keys are written out; `held` where they are not."""
        ...

    def target_called(self, node: ast.Dict) -> None:
        """Note the call that `{"_target_": "a.B", "key": 1}` stands for."""

    def keys_in(self, name: str) -> int:
        """Value of a local dict as far as it is known; UNKNOWN if it is not."""
        ...

    def strings(self, node: ast.expr) -> list[ast.Constant]:
        """The constants of a list of strings, written out or bound to a name; [] for anything else."""
        ...

    def skip_condition(self, node: ast.expr) -> tuple[int, ...]:
        """The condition that a decorator or mark puts on what it stands over."""
        ...


class WalkState:
    """Numbers for values, and the place the walk is at."""

    visit: Visitor
    """The whole walk: set by `scan` when all its parts are made."""

    def __init__(self, source: bytes) -> None:
        self.facts = FileFacts()
        self.lines = Lines(decode(source))
        self.numbers: dict[Node, int] = {node: index for index, node in enumerate(self.facts.nodes)}
        self.hot: list[bool] = [False, False]
        """Per value: whether it can lead to a package outside the standard library."""
        self.context_numbers: dict[Any, int] = {}
        self.test_numbers: dict[tuple[int, int, int], int] = {}
        self.displays: dict[ast.Dict, int] = {}
        """Values of dict displays that were visited."""
        self.has_walrus = b":=" in source
        self.has_getters = any(each in source for each in (b"attrgetter", b"itemgetter", b"methodcaller"))
        self.filled: set[str] = set()
        """Names of containers that something was put into so far."""
        self.conditions: tuple[int, ...] = ()
        self.attempts: tuple[int, ...] = ()
        self.switches: tuple[str, ...] = ()
        self.evaluated = True
        self.narrowings: dict[str, int | None] = {}
        """Names whose type a condition gave, with what they held before."""
        self.assigned: set[str] = set()
        """Names and "self.x" that the walk has assigned so far."""
        self.self_origins: dict[tuple[str, str], ast.expr | None] = {}
        """By class and attribute of `self`: the one expression it is assigned; None if there are several."""
        self.never_back: frozenset[str] = frozenset()
        """Functions of the module that only raise."""
        self.tries = 0
        self.future_annotations = False
        self.frame = Frame("module", "", None)
        self.module = self.frame

    # ------------------------------------------------------------------------------------------------------ values

    def node(self, *row: Any) -> int:
        """Number of a value."""
        number = self.numbers.get(row)
        if number is None:
            number = len(self.facts.nodes)
            self.numbers[row] = number
            self.facts.nodes.append(row)
            self.hot.append(self._leads_out(row))
        return number

    def _leads_out(self, row: Node) -> bool:
        kind = row[0]
        if kind in ("import", "name"):
            return row[1].partition(".")[0] not in _STANDARD
        if kind == "lambda":
            return self.hot[row[2]]
        if kind in _ALWAYS_HOT:
            return True
        if kind in ("either", "tuple"):
            return any(self.hot[member] for member in row[1])
        if kind == "dict" and len(row) > 2:
            return self.hot[row[1]] or self.hot[row[2]]
        if kind == "param":
            return any(self.hot[member] for member in row[2])
        return self.hot[row[1]]

    def step(self, kind: str, base: int, *rest: Any) -> int:
        """A value derived from another; nothing comes of what is not known."""
        return self.node(kind, base, *rest) if base > NONE and self.hot[base] else UNKNOWN

    def either(self, members: Iterable[int]) -> int:
        """One of several. None is left out: nothing can be done with it that works."""
        flat: dict[int, None] = {}
        for member in members:
            inner = self.facts.nodes[member]
            flat.update(dict.fromkeys(inner[1] if inner[0] == "either" else (member,)))
        flat.pop(NONE, None)
        if len(flat) > 1 and not any(self.hot[member] for member in flat):
            return UNKNOWN
        if len(flat) <= 1:
            return next(iter(flat), NONE)
        return self.node("either", tuple(flat)) if len(flat) <= 8 else UNKNOWN

    def dotted(self, value: int) -> str:
        """The dotted path of something imported; "" for other values."""
        row = self.facts.nodes[value]
        if row[0] in ("import", "name"):
            return str(row[1])
        if row[0] == "global":
            history = self.module.history.get(row[1], ())
            return self.dotted(history[0]) if len(history) == 1 and history[0] != value else ""
        if row[0] == "attr":
            base = self.dotted(row[1])
            return f"{base}.{row[2]}" if base else ""
        return ""

    def attribute(self, base: int, name: str) -> int:
        """`base.name`."""
        row = self.facts.nodes[base]
        if name == "__dict__":
            return self.step("fields", base)
        if name == "__class__" and row[0] in ("instance", "call"):
            return int(row[1])
        if row[0] == "import":
            return self.node("import", f"{row[1]}.{name}")
        if row[0] == "name" and not self.hot[base]:
            return self.node("name", f"{row[1]}.{name}")  # the standard library: only its path matters
        if row[0] == "remote":
            return self.step("attr", self.step("call", row[1]), name)
        return self.step("attr", base, name)

    def iterated(self, base: int, asynchronous: bool = False) -> int:
        """An element, as a loop gives it."""
        row = self.facts.nodes[base]
        if row[0] == "list" and not asynchronous:
            return int(row[1])
        if row[0] == "tuple" and not asynchronous:
            return self.either(row[1])
        if row[0] == "dict":
            return int(row[2]) if len(row) > 2 else UNKNOWN
        return self.step("iter", base, asynchronous)

    def item(self, base: int, key: str | int | None) -> int:
        """`base[key]`."""
        row = self.facts.nodes[base]
        if row[0] == "tuple" and isinstance(key, int) and -len(row[1]) <= key < len(row[1]):
            return int(row[1][key])
        if row[0] in ("list", "dict"):
            return int(row[1])
        if row[0] == "keys" and row[3] > NONE:
            chosen = [value for name, _, _, value, _ in row[1] if name == key and not row[4]]
            return self.either(chosen) if chosen else int(row[3])
        return self.step("item", base, key)

    # -------------------------------------------------------------------------------------------------------- names

    def lookup(self, name: str) -> int:
        """What a name holds here."""
        frame: Frame | None = self.frame
        inner = True
        while frame is not None and frame.kind != "module":
            if name in frame.outer:
                return self.global_name(name)
            if name in frame.bound and (inner or frame.kind == "function"):
                if inner and name in frame.values:
                    return frame.values[name]
                if frame.kind == "function":
                    return UNKNOWN if inner else self.either(frame.history.get(name, (UNKNOWN,)))
            inner = inner and frame.inline
            frame = frame.parent
        if inner and name in self.module.values:
            value, origin = self.module.values[name], self.module.origins.get(name)
            is_filled = value == UNKNOWN and isinstance(origin, ast.Dict | ast.List) and not any(children(origin))
            return self.global_name(name) if is_filled else value
        if name in self.module.bound:
            return UNKNOWN if inner else self.global_name(name)
        if name in _BUILTINS or not self.facts.stars:
            return UNKNOWN
        return self.node("star", name)

    def global_name(self, name: str) -> int:
        """A module-level name as a function sees it: bound once and unconditionally, it is what it was bound to."""
        rows = self.facts.bindings.get(name, [])
        held = {(value, context) for value, context, _ in rows}  # `import a.b` and `import a.c` bind `a`
        if len(held) == 1 and rows[0][1] == 0 and self.facts.nodes[rows[0][0]][0] in ("import", "name"):
            return rows[0][0]
        return self.node("global", name)

    def holding(self, name: str) -> Frame:
        """The scope that a name in a lambda or comprehension belongs to, if it is not its own."""
        frame = self.frame
        while frame.inline and name not in frame.bound and frame.parent is not None:
            frame = frame.parent
        return frame

    def is_builtin(self, name: str) -> bool:
        """Whether the name is the builtin here, not something of the file."""
        frame: Frame | None = self.frame
        while frame is not None:
            if name in frame.bound:
                return False
            frame = frame.parent
        return name in _BUILTINS

    def bind(self, name: str, value: int, origin: ast.expr | None = None) -> None:
        """Give a name of the current scope a value."""
        frame = self.holding(name)
        if name in frame.outer:
            self._bind_global(name, value, origin)
            return
        if name in frame.nonlocals:
            outer = frame.parent
            while outer is not None and name not in outer.bound:
                outer = outer.parent
            if outer is not None:
                outer.history.setdefault(name, []).append(value)
            return
        frame.values[name] = value
        if name in self.filled:
            for key in [each for each in frame.values if each.startswith((f"{name}[", f"{name}{{"))]:
                del frame.values[key]  # what was put into the container before
        frame.dicts.pop(name, None)
        frame.origins[name] = None if name in frame.origins else origin
        if frame.kind == "module":
            self._bind_global(name, value, origin)
        frame.history.setdefault(name, []).append(value)

    def _bind_global(self, name: str, value: int, origin: ast.expr | None) -> None:
        span: tuple[int, ...] | None = span_of(origin) if origin is not None else None
        if span is not None and isinstance(origin, ElementOf):
            span = (*span, origin.index)
        self.facts.bindings.setdefault(name, []).append((value, self.context(), span))

    # ----------------------------------------------------------------------------------------------------- contexts

    def context(self) -> int:
        """Number of where the walk stands."""
        row = (self.conditions, self.attempts, self.switches, self.frame.qualname, self.evaluated)
        number = self.context_numbers.get(row)
        if number is None:
            number = self.context_numbers[row] = len(self.facts.contexts)
            self.facts.contexts.append(row)
        return number

    @contextmanager
    def under(self, *conditions: int) -> Iterator[None]:
        """Walk under further conditions."""
        before = self.conditions
        self.conditions = (*before, *(condition for condition in conditions if condition))
        try:
            yield
        finally:
            self.conditions = before

    @contextmanager
    def attempted(self, *attempts: int) -> Iterator[None]:
        """Walk inside of further parts of `try` statements."""
        before = self.attempts
        self.attempts = (*before, *attempts)
        try:
            yield
        finally:
            self.attempts = before

    def attempt(
        self, number: int, part: str, caught: tuple[Any, ...], handler: int = -1, reraises: bool = False
    ) -> int:
        """Note a part of the `try` statement of this number; its own number, for `attempted`."""
        self.facts.attempts.append((number, part, caught, handler, reraises))
        return len(self.facts.attempts) - 1

    def next_try(self) -> int:
        """Number of a `try` statement, or of what does the same."""
        self.tries += 1
        return self.tries - 1

    @contextmanager
    def unevaluated(self, never: bool = True) -> Iterator[None]:
        """Walk what is never run."""
        before = self.evaluated
        self.evaluated = before and not never
        try:
            yield
        finally:
            self.evaluated = before

    def test(self, expression: ast.expr) -> int:
        """Number of a condition, to be given to `under`; negated where it must fail."""
        key = (expression.lineno, expression.col_offset, expression.end_col_offset or 0)
        number = self.test_numbers.get(key)
        if number is None:
            number = self.test_text(self.text(expression), expression)
            self.test_numbers[key] = number
        return number

    def test_text(self, text: str, *expressions: ast.expr) -> int:
        """A condition that is not written so in the file: `text`, made of the expressions."""
        names = tuple(row for expression in expressions for row in self._names_in(expression, 3))
        self.facts.tests.append((text[:_TEXT_LIMIT], names, span_of(expressions[0])))
        return len(self.facts.tests) - 1

    def _names_in(self, expression: ast.expr, depth: int) -> list[tuple[Any, ...]]:
        """Local names in a condition, with what they were bound to. Others are the module's."""
        rows = []
        for node in _walked(expression):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and self.is_local(node.id):
                origin = self.frame.origins.get(node.id) if depth else None
                text = "" if origin is None else self.text(origin)[:_TEXT_LIMIT]
                inner = () if origin is None else tuple(self._names_in(origin, depth - 1))
                rows.append((node.id, self.lookup(node.id), text, inner))
            elif (
                isinstance(node, ast.Call)
                and isinstance(next(iter(node.args), None), ast.Attribute | ast.Call)
                and _PROBES.search(self.text(node.func))
            ):  # by source: `hasattr(self.llm, "x")`
                rows.append((ast.unparse(node.args[0]), self.visit.quiet_value(node.args[0]), "", ()))
        return rows

    def is_local(self, name: str) -> bool:
        """Whether a name is bound by a function or class around, not by the module."""
        frame: Frame | None = self.frame
        while frame is not None and frame.kind != "module":
            if name in frame.outer:
                return False
            if name in frame.bound:
                return True
            frame = frame.parent
        return False

    # --------------------------------------------------------------------------------------------------------- uses

    def emit(self, action: str, node: Any, target: int, **details: Any) -> None:
        """Note a use, if it can be of anything."""
        if target > NONE and self.hot[target] and not (action in _OF_FORM and self.is_untyped(target)):
            self.facts.uses.append((action, span_of(node), target, self.context(), tuple(details.items())))

    def is_untyped(self, value: int) -> bool:
        """Whether nothing here says what a value is: a parameter, a mapping, what a stranger gave."""
        return value == UNKNOWN or self.facts.nodes[value][0] in _UNTYPED

    def is_of_stranger(self, value: int) -> bool:
        """Whether a value is untyped, or comes out of something that is."""
        row = self.facts.nodes[value]
        if row[0] == "attr" and self.facts.nodes[row[1]][0] == "instance":
            kind = self.facts.nodes[self.facts.nodes[row[1]][1]]
            owner = self.facts.classes.get(kind[1]) if kind[0] == "own" else None
            kept = owner.attributes.get(row[2], ()) if owner is not None else ()
            return bool(kept) and all(map(self.is_untyped, kept))
        return self.is_untyped(value) or (row[0] in _STEPS and self.is_of_stranger(row[1]))

    def text(self, node: Any) -> str:
        """Source of a node."""
        text = self.lines.of(node)
        return f"({text})[{node.index}]" if isinstance(node, ElementOf) else text


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below; faster than `ast.walk`, which counts: each condition of a file comes through here."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(children(node))
