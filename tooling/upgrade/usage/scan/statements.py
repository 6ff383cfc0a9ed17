"""Statements: imports, assignments, loops, `with`; under which conditions each is reached, and what names hold after
branches meet again."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.python.condition_reader import RETURNS
from tooling.python.function_bodies import skips
from tooling.python.module import last_name
from tooling.python.source import dotted_name, span_of
from tooling.upgrade.usage.facts import NONE, UNKNOWN
from tooling.upgrade.usage.scan.containers import put
from tooling.upgrade.usage.scan.expressions import OPERATORS, constant_key, literal_type
from tooling.upgrade.usage.scan.frames import DictEntry, ElementOf, KnownDict
from tooling.upgrade.usage.scan.mocks import created
from tooling.upgrade.usage.scan.patterns import PatternReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tooling.upgrade.usage.scan.annotations import AnnotationWalk
    from tooling.upgrade.usage.scan.arguments import ArgumentReader
    from tooling.upgrade.usage.scan.calls import CallReader
    from tooling.upgrade.usage.scan.core import WalkState
    from tooling.upgrade.usage.scan.expressions import ExpressionReader
    from tooling.upgrade.usage.scan.frames import FrameState


Exits = bool
"""Whether a statement never goes on to the next one."""

_EXITS = frozenset({"sys.exit", "os._exit", "os.abort", "pytest.skip", "pytest.fail", "pytest.exit"})
_NO_FIELD = re.compile(r"\b(?:ClassVar|InitVar|KW_ONLY)\b")
_OF_VERSIONS = re.compile(r"version|VERSION|hasattr|find_spec|signature")
_REFUSING = re.compile(r"(?:require|check|ensure|assert|verify|validate|need)\w*version")
_REFUSAL = re.compile(r"\b(?:raise|assert|exit|skip)\b")
"""In functions that may refuse a version, and in their names where they are not at hand."""
_STRANGERS = (ast.Call, ast.Await, ast.Attribute, ast.Subscript)
"""Expressions that may give something of a package although nobody here says so."""
_LOOKUPS = frozenset(
    {"ImportError", "ModuleNotFoundError", "AttributeError", "KeyError", "LookupError", "TypeError"}
    | {"Exception", "BaseException", "*"}
)
"""What handlers catch that wait for something to be missing."""
_NEVER = frozenset({"exit", "quit"})


class StatementReader:
    """Statements of a scope; definitions are in `definitions`."""

    def __init__(
        self,
        walk: WalkState,
        annotations: AnnotationWalk,
        expressions: ExpressionReader,
        arguments: ArgumentReader,
        calls: CallReader,
    ) -> None:
        self.walk = walk
        self.annotations = annotations
        self.expressions = expressions
        self.arguments = arguments
        self.calls = calls
        self.patterns = PatternReader(walk, annotations, expressions)
        self._breaks: list[tuple[int, ...]] = []
        """Conditions of the places where the innermost loop is left."""

    def statement(self, node: ast.stmt) -> Exits:
        """One statement; whether it never goes on."""
        return bool(_STATEMENTS[type(node)](self, node)) if type(node) in _STATEMENTS else False

    # ------------------------------------------------------------------------------------------ import statements

    def import_(self, node: ast.Import) -> None:
        """`import a.b`, `import a.b as x`."""
        for alias in node.names:
            value = self.walk.node("import", alias.name)
            self.walk.emit("import", alias, value)
            if alias.asname:
                self.walk.bind(alias.asname, value)
            else:
                self.walk.bind(alias.name.partition(".")[0], self.walk.node("import", alias.name.partition(".")[0]))

    def import_from(self, node: ast.ImportFrom) -> None:
        """`from a import b`."""
        module = node.module or ""
        if module == "__future__":
            return
        for alias in node.names:
            if alias.name == "*":
                value = self._imported(node.level, module)
                self.walk.emit("star-import", alias, value)
                self.walk.facts.stars.append(value)
                continue
            value = self._imported(node.level, f"{module}.{alias.name}" if module else alias.name)
            self.walk.emit("import", alias, value)
            self.walk.bind(alias.asname or alias.name, value)

    def _imported(self, level: int, dotted: str) -> int:
        return self.walk.node("relative", level, dotted) if level else self.walk.node("name", dotted)

    # ------------------------------------------------------------------------------------------------- assignments

    def assign_statement(self, node: ast.Assign) -> None:
        """`a = b = value`."""
        value = self.expressions.expression(node.value)
        if node.type_comment:
            value = self.annotations.documented(node.type_comment, "a comment says so") or value
        for target in node.targets:
            self.assign(target, value, node.value)

    def annotated(self, node: ast.AnnAssign) -> None:
        """`x: T = value`. Annotations of locals are never run."""
        inside = self.walk.frame.kind == "function"
        kind = self.annotations.annotation(node.annotation, evaluated=not inside)
        value = self.expressions.expression(node.value) if node.value is not None else UNKNOWN
        made = self.walk.facts.nodes[value]
        is_own = made[0] == "call" and self.walk.facts.nodes[made[1]][0] == "own" and self.walk.frame.kind != "class"
        held = kind if kind > NONE and not is_own else value  # `fake: Frame = Fake()` is a Fake
        if self.walk.frame.kind == "class" and isinstance(node.target, ast.Name):
            self.class_annotation(node.target, held)
            if _NO_FIELD.search(self.walk.text(node.annotation)):
                del self.walk.facts.classes[self.walk.frame.qualname].spans[node.target.id]
        if node.value is not None or (kind > NONE and isinstance(node.target, ast.Name)):
            self.assign(node.target, held, node.value)

    def class_annotation(self, target: ast.Name, value: int) -> None:
        """A field of the class whose body this is."""
        facts = self.walk.facts.classes[self.walk.frame.qualname]
        facts.annotations[target.id] = value
        facts.spans[target.id] = span_of(target)

    def assign(self, target: ast.expr, value: int, origin: ast.expr | None = None) -> None:
        """Bind a target."""
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value, origin)
        elif isinstance(target, ast.Attribute):
            base = self.expressions.base(target.value)
            held = self.walk.facts.nodes[base]
            if held[0] == "own" and held[1] in self.walk.facts.classes:  # `Mine.old = function`
                self.walk.facts.classes[held[1]].attributes.setdefault(target.attr, []).append(value)
            if isinstance(target.value, ast.Name):
                key = f"{target.value.id}.{target.attr}"
                self.walk.assigned.add(key)
                self.walk.frame.values[key] = value
                if target.value.id == self.walk.frame.receiver and self.walk.frame.owner:
                    self.assign_of_self(target, value, origin)
            self.walk.emit("assign", target, self.walk.attribute(base, target.attr), value=value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._assign_elements(target, value, origin)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value, origin)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, UNKNOWN)

    def assign_of_self(self, target: ast.Attribute, value: int, origin: ast.expr | None) -> None:
        """`self.x = value`; what the class does not define itself may be a property of a base."""
        owner, name = self.walk.frame.owner, target.attr
        once = (owner, name) not in self.walk.self_origins
        self.walk.self_origins[owner, name] = origin if once else None
        facts = self.walk.facts.classes[owner]
        if once and name not in {*facts.attributes, *facts.methods, *facts.annotations}:
            inherited = self.walk.attribute(self.walk.node("super", owner), name)
            self.walk.emit("assign", target, inherited, value=value)
        facts.attributes.setdefault(name, []).append(self.expressions.guarded(value) if self.walk.attempts else value)

    def _assign_elements(self, target: ast.Tuple | ast.List, value: int, origin: ast.expr | None) -> None:
        """`a, *b = value`."""
        kind, *inner = self.walk.facts.nodes[value]
        if kind == "columns":  # `a, b = zip(*rows)`: as many as a row has
            value = int(inner[0])
        starred = any(isinstance(element, ast.Starred) for element in target.elts)
        if not starred and self.walk.facts.nodes[value][0] not in ("tuple", "list"):
            self.walk.emit("unpack", target if origin is None else origin, value, count=len(target.elts))
        elif self.walk.facts.nodes[value][0] not in ("tuple", "list"):
            self.walk.emit("iterate", target if origin is None else origin, value, awaited=False)
        for index, element in enumerate(target.elts):
            if isinstance(element, ast.Starred):
                self.assign(element.value, self.walk.step("list", self.walk.iterated(value)))
                value, origin = UNKNOWN, None  # positions after it are not known
            else:
                part = ElementOf(origin, index) if origin is not None else None
                item = self.walk.item(value, index)
                self.assign(element, item if kind != "columns" else self.walk.step("list", item), part)

    def _assign_name(self, name: str, value: int, origin: ast.expr | None) -> None:
        self.walk.assigned.add(name)
        known = self.arguments.known_dict(origin) if origin is not None else None
        if known is None and self.walk.facts.nodes[value][0] == "fields":
            known = KnownDict(more=True, rests=(value,))  # from here on keys may be taken out
        is_made = isinstance(origin, ast.Call) and dotted_name(origin.func).rpartition(".")[2][:1].isupper()
        # `client = redis.Redis()` is of that class, whatever is used on it
        stranger = isinstance(origin, _STRANGERS) and not isinstance(origin, ElementOf)
        if value == UNKNOWN and stranger and not is_made and self.walk.frame.kind == "function":
            value = self.walk.node("some", self.walk.frame.qualname, name)
        self.walk.bind(name, value, origin)
        self.walk.frame.strings.pop(name, None)
        if origin is not None and (names := self.arguments.strings(origin)):
            self.walk.frame.strings[name] = names
        if known is not None and self.walk.frame.kind != "class":
            self.walk.frame.dicts[name] = known
            self.walk.frame.dict_made[name] = self.walk.conditions
        if origin is not None and name == "__all__" and self.walk.frame.kind == "module":
            self._exports(origin, add=False)
        if origin is not None and name == "pytestmark":
            for mark in origin.elts if isinstance(origin, ast.List | ast.Tuple) else [origin]:
                self.walk.frame.marks = (*self.walk.frame.marks, *self.walk.visit.skip_condition(mark))

    def _assign_item(self, target: ast.Subscript, value: int, origin: ast.expr | None) -> None:
        name = target.value.id if isinstance(target.value, ast.Name) else ""
        self.expressions.operate(target, self.expressions.value_used(target.value), "__setitem__")
        key = constant_key(target.slice)
        each = self.walk.frame.strings.get(target.slice.id, []) if isinstance(target.slice, ast.Name) else []
        if name and (isinstance(key, str) or each):
            self.arguments.dict_begun(name)
        if name in self.walk.frame.dicts:
            if isinstance(key, str) and origin is not None:
                self.arguments.dict_changed(name, [(target.slice, key, origin)])
            elif each and origin is not None:
                self.arguments.dict_changed(name, [(one, str(one.value), origin) for one in each])
            else:
                self.walk.frame.dicts[name].more = True
        kept = target.value if isinstance(target.value, ast.Attribute) and isinstance(key, str) else None
        if kept is not None and origin is not None and isinstance(kept.value, ast.Name) and self.walk.frame.owner:
            # `self.options["key"] = value` of what began as a mapping that is written out
            made = self.walk.self_origins.get((self.walk.frame.owner, kept.attr))
            if kept.value.id == self.walk.frame.receiver and isinstance(made, ast.Dict | ast.Call):
                entry = DictEntry(target.slice, str(key), value, self.arguments.literal(origin), self.walk.conditions)
                added = KnownDict({str(key): [entry]}, more=True)
                if isinstance(made, ast.Dict) or dotted_name(made.func) == "dict":
                    facts = self.walk.facts.classes[self.walk.frame.owner]
                    facts.attributes.setdefault(kept.attr, []).append(self.arguments.keys(added))
        if not isinstance(key, str) and not isinstance(target.slice, ast.Slice):
            put(self.walk, target.value, "{}", value)
        if self.walk.dotted(self.annotations.chain(target.value)) != "sys.modules":
            self.expressions.expression(target.slice)
        elif isinstance(key, str):
            self.walk.emit("assign", target, self.walk.node("import", key))

    def augmented(self, node: ast.AugAssign) -> None:
        """`x += value`."""
        other = literal_type(node.value)
        operation = f"__i{OPERATORS[type(node.op)][2:]}"
        value = self.expressions.expression(node.value)
        if isinstance(node.op, ast.Add) and self.walk.facts.nodes[value][0] == "list":
            put(self.walk, node.target, "[]", self.walk.iterated(value))
        if isinstance(node.target, ast.Name):
            self.expressions.operate(node, self.walk.lookup(node.target.id), operation, other)
            known = self.walk.frame.dicts.get(node.target.id)
            added = self.arguments.known_dict(node.value)
            self.walk.bind(node.target.id, self.walk.lookup(node.target.id))
            if node.target.id == "__all__" and self.walk.frame.kind == "module":
                self._exports(node.value, add=True)
            if known is not None:
                known.more |= added is None or added.more
                known.entries.update(added.entries if added is not None else {})
                self.walk.frame.dicts[node.target.id] = known
        elif isinstance(node.target, ast.Attribute):
            value = self.expressions.attribute_value(node.target)
            held = self.walk.attribute(self.arguments.quiet_value(node.target.value), node.target.attr)
            self.walk.emit("assign", node.target, held)
            self.expressions.operate(node, value, operation, other)
        else:
            self.expressions.expression(node.target)

    def _exports(self, value: ast.expr, *, add: bool) -> None:
        names: list[str] | None = None
        if isinstance(value, ast.List | ast.Tuple):
            names = [one.value for one in value.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        before = self.walk.facts.exports if add else []
        self.walk.facts.exports = None if names is None or before is None else [*before, *names]

    def delete(self, node: ast.Delete) -> None:
        """`del x`."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.walk.frame.values[target.id] = UNKNOWN
                self.walk.frame.dicts.pop(target.id, None)
            elif isinstance(target, ast.Attribute):
                self.walk.emit("delete", target, self.expressions.attribute_value(target))
            elif isinstance(target, ast.Subscript):
                name = target.value.id if isinstance(target.value, ast.Name) else ""
                known = self.walk.frame.dicts.get(name)
                if known is not None:
                    known.drop(str(constant_key(target.slice)))
                self.expressions.operate(target, self.expressions.value_used(target.value), "__delitem__")

    # ------------------------------------------------------------------------------------------------ control flow

    def loop(self, node: Any) -> None:
        """`for`, `async for`."""
        elements = self.expressions.loop_elements(node.iter, isinstance(node, ast.AsyncFor))
        before = self.walk.frame.state()
        self.assign(node.target, elements)
        if isinstance(node.target, ast.Name) and (names := self.arguments.strings(node.iter)):
            self.walk.frame.strings[node.target.id] = names
            if any(isinstance(statement, ast.Try) for statement in node.body):
                # Places that are tried one after the other: none of them has to be there
                tried = {span_of(one) for one in names}
                uses = self.walk.facts.uses
                uses[:] = [row for row in uses if row[0] != "string" or row[1] not in tried]
        breaks, self._breaks = self._breaks, []
        self.block(node.body)
        if isinstance(node.target, ast.Name):
            self.walk.frame.strings.pop(node.target.id, None)
        self._merge_back(before[0])
        depth = len(self.walk.conditions) + 1
        with self.walk.under(*(-each[-1] for each in self._breaks if len(each) == depth)):
            self.block(node.orelse)
        self._breaks = breaks

    def _merge_back(self, before: dict[str, int]) -> None:
        """After a body that may not have run."""
        for name, value in before.items():
            held = self.walk.frame.values.get(name, UNKNOWN)
            if held != value:
                self.walk.frame.values[name] = self.walk.either([value, held])

    def while_(self, node: ast.While) -> None:
        """`while`."""
        self.expressions.value_used(node.test)
        before = self.walk.frame.state()
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        test = 0 if endless else self.walk.test(node.test) + 1
        with self.walk.under(test), self.expressions.narrowing():
            self.expressions.narrow(node.test, holds=True)
            self.block(node.body)
        self._merge_back(before[0])
        self.block(node.orelse)

    def with_(self, node: Any) -> Exits:
        """`with`, `async with`; `contextlib.suppress` and `pytest.raises` are attempts."""
        attempts = self.walk.attempts
        asynchronous = isinstance(node, ast.AsyncWith)
        made = {name: self.walk.frame.values.get(name) for item in node.items for name in created(item.context_expr)}
        self.walk.frame.values.update(dict.fromkeys(made, UNKNOWN))
        for item in node.items:
            value = self.expressions.expression(item.context_expr)
            suppressed = self._suppressed(item.context_expr)
            if suppressed:
                self.walk.attempts = (
                    *self.walk.attempts,
                    self.walk.attempt(self.walk.next_try(), "body", suppressed),
                )
                continue
            self.walk.emit("enter", item.context_expr, value, awaited=asynchronous)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, self.walk.step("enter", value, asynchronous))
        exits = self.block(node.body)
        for name, held in made.items():
            self.walk.frame.values.pop(name, None)
            self.walk.frame.values.update({} if held is None else {name: held})
        suppresses = self.walk.attempts != attempts
        self.walk.attempts = attempts
        return exits and not suppresses

    def _suppressed(self, node: ast.expr) -> tuple[Any, ...]:
        if not isinstance(node, ast.Call):
            return ()
        if self.walk.dotted(self.annotations.chain(node.func)) not in ("contextlib.suppress", "pytest.raises"):
            return ()
        given = node.args[:1] if isinstance(node.func, ast.Attribute) and node.func.attr == "raises" else node.args
        entries = [entry for argument in given for entry in self._exceptions(argument)]
        return tuple(
            entry.id
            if isinstance(entry, ast.Name) and self.walk.is_builtin(entry.id)
            else self.annotations.chain(entry)
            for entry in entries
        )

    def _exceptions(self, node: ast.expr) -> Sequence[ast.expr]:
        """Exceptions that are caught, also where a name holds several."""
        if isinstance(node, ast.Name):
            frame = self.walk.frame if self.walk.is_local(node.id) else self.walk.module
            origin = frame.origins.get(node.id)
            return origin.elts if isinstance(origin, ast.Tuple) else [node]
        return node.elts if isinstance(node, ast.Tuple) else [node]

    def assert_(self, node: ast.Assert) -> None:
        """`assert test`: the rest of the block stands under it."""
        self.expressions.value_used(node.test)
        if node.msg is not None:
            self.expressions.expression(node.msg)
        self.walk.conditions = (*self.walk.conditions, self.walk.test(node.test) + 1)
        self.expressions.narrow(node.test, holds=True)

    def expression_statement(self, node: ast.Expr) -> Exits:
        """A bare expression; a docstring is none."""
        value = node.value
        if isinstance(value, ast.Constant):
            return False
        if not isinstance(value, ast.Call):
            self.expressions.expression(value)
            return False
        self.calls.used_call(value)
        name = dotted_name(value.func)
        if self._may_refuse(name):
            number = self.walk.test_text(f"{RETURNS}({self.walk.text(value)})", value)
            self.walk.conditions = (*self.walk.conditions, number + 1)
        if name in self.walk.never_back and not self.walk.is_local(name):
            return True
        return skips(node) or leaves(value, self.walk.dotted(self.annotations.chain(value.func)))

    def _may_refuse(self, name: str) -> bool:
        """Whether a function of this name may look at versions, and not come back."""
        own = self.walk.facts.functions.get(name)
        if own is None:
            return _REFUSING.search(name.rpartition(".")[2]) is not None
        text = self.walk.lines.text_of(own.line, own.end_line)
        return _REFUSAL.search(text) is not None and _OF_VERSIONS.search(text) is not None

    def returned(self, node: ast.Return) -> Exits:
        """`return value`."""
        value = self.expressions.expression(node.value) if node.value is not None else NONE
        inside = self.walk.attempts or self.walk.conditions
        self.walk.frame.returns.append(self.expressions.guarded(value) if inside else value)
        return True

    def raised(self, node: ast.Raise) -> Exits:
        """`raise`."""
        for part in (node.exc, node.cause):
            if part is not None:
                self.expressions.expression(part)
        return True

    def left(self, node: ast.stmt) -> Exits:
        """`continue`, `break`."""
        if isinstance(node, ast.Break):
            self._breaks.append(self.walk.conditions)
        return True

    def block(self, body: Sequence[ast.stmt]) -> Exits:
        """Statements one after the other. What stands after `if test: return` stands under `not test`."""
        conditions, attempts = self.walk.conditions, self.walk.attempts
        try:
            return any(self.statement(statement) for statement in body)  # what follows an exit is never run
        finally:
            self.walk.conditions, self.walk.attempts = conditions, attempts

    # --------------------------------------------------------------------------------------------------------- if

    def if_(self, node: ast.If) -> Exits:
        """`if`, with `elif` and `else`."""
        self.expressions.value_used(node.test)
        turned = node.test.operand if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not) else None
        if is_type_checking(turned or node.test):
            typed_body, run_body = (node.orelse, node.body) if turned else (node.body, node.orelse)
            with self.walk.unevaluated():
                self.block(typed_body)
            typed = self.walk.frame.state()
            exits = self.block(run_body)
            for name, value in typed[0].items():
                if self.walk.frame.values.get(name, UNKNOWN) == UNKNOWN:
                    self.walk.frame.values[name] = value
            return exits if run_body else False
        test = self.walk.test(node.test) + 1
        before = self.walk.frame.state()
        then = self._branch(node.body, test, node.test, True)
        after = self.walk.frame.state()
        self.walk.frame.restore(before)
        other = self._branch(node.orelse, -test, node.test, False)
        self._join([(then, after, test), (other, self.walk.frame.state(), -test)], before[0], self.walk.under)
        if then != other:
            self.walk.conditions = (*self.walk.conditions, -test if then else test)
            self.expressions.narrow(node.test, holds=other)  # after `if not isinstance(x, C): return`, x is a C
        return then and other

    def _branch(self, body: Sequence[ast.stmt], condition: int, test: ast.expr, holds: bool) -> Exits:
        outer, self.walk.assigned = self.walk.assigned, set()
        with self.walk.under(condition), self.expressions.narrowing():
            self.expressions.narrow(test, holds=holds)
            exits = self.block(body)
            for name in self.walk.assigned:
                self.walk.narrowings.pop(name, None)  # the branch gave it another value: that one stays
        self.walk.assigned |= outer
        return exits

    def _join(
        self,
        ends: list[tuple[Exits, FrameState, int]],
        before: dict[str, int],
        inside: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        """What names hold after branches: values of those that go on, each under its condition or attempt."""
        going = [(state, number) for exits, state, number in ends if not exits]
        if not going:
            return
        values: dict[str, int] = {}
        for name in dict.fromkeys(name for state, _ in going for name in state[0]):
            held = [(state[0].get(name, NONE if name not in before else UNKNOWN), number) for state, number in going]
            values[name] = held[0][0]
            if any(value != held[0][0] for value, _ in held):
                members = []
                for value, number in held:
                    with inside(number):
                        members.append(self.expressions.guarded(value))
                values[name] = self.walk.either(members)
        self.walk.frame.values = values
        tests = [number if inside == self.walk.under else 0 for _, number in going]
        self.walk.frame.dicts = _joined_dicts([state[1] for state, _ in going], tests)

    # -------------------------------------------------------------------------------------------------------- try

    def try_(self, node: Any) -> Exits:
        """`try` with its handlers."""
        number = self.walk.next_try()
        handlers = [self._caught(handler) for handler in node.handlers]
        reraises = bool(node.handlers) and all(
            any(isinstance(each, ast.Raise) and not skips(each) and not self._is_answered(each) for each in one.body)
            for one, names in zip(node.handlers, handlers, strict=True)
            if _LOOKUPS.intersection(names)
        )
        names = tuple(dict.fromkeys(one for names in handlers for one in names))
        body = self.walk.attempt(number, "body", names, reraises=reraises)
        before = self.walk.frame.state()
        switches, self.walk.switches = self.walk.switches, (*self.walk.switches, *switched_off(node.handlers))
        with self.walk.attempted(*([body] if node.handlers else [])):
            exits = self.block(node.body)
        self.walk.switches = switches
        worked = self.walk.attempt(number, "else", names, reraises=reraises)
        with self.walk.attempted(*([worked] if node.handlers else [])):
            exits = exits or self.block(node.orelse)
        ends: list[tuple[Exits, FrameState, int]] = [(exits, self.walk.frame.state(), body)]
        for index, handler in enumerate(node.handlers):
            self.walk.frame.restore(before)
            row = self.walk.attempt(number, "handler", handlers[index], index, reraises)
            with self.walk.attempted(row):
                if handler.name and handler.type is not None:
                    kinds = map(self.annotations.chain, self._exceptions(handler.type))
                    self.walk.bind(handler.name, self.walk.either(self.walk.step("instance", kind) for kind in kinds))
                ended = self.block(handler.body)
            ends.append((ended, self.walk.frame.state(), row))
        self._join(ends, {}, self.walk.attempted)
        # After `try: ...; return a` / `except: pass` the rest of the block is what the handler falls back to
        going = [attempt for exits, _, attempt in ends if not exits]
        if ends[0][0] and going:
            self.walk.attempts = (*self.walk.attempts, going[0])
        elif len(going) == 1 and not ends[0][0] and node.handlers and all(map(_gives_up, node.handlers)):
            self.walk.attempts = (*self.walk.attempts, worked)  # it goes on only if the body did not fail
        return self.block(node.finalbody) or all(end for end, _, _ in ends)

    def _is_answered(self, node: ast.Raise) -> bool:
        """Whether the file catches what is raised: an exception of its own that stands for something missing."""
        name = last_name(getattr(node.exc, "func", node.exc))
        caught = re.compile(rf"except\b[^\n:]*\b{name}\b") if name and not self.walk.is_builtin(name) else None
        return caught is not None and caught.search(self.walk.lines.text) is not None

    def _caught(self, handler: ast.ExceptHandler) -> tuple[Any, ...]:
        """What a handler catches: names of builtins, or values. Uses of packages in it are noted."""
        if handler.type is None:
            return ("*",)
        caught: list[Any] = []
        for entry in self._exceptions(handler.type):
            if isinstance(entry, ast.Name) and self.walk.is_builtin(entry.id):
                caught.append(entry.id)
                continue
            value = self.expressions.expression(entry, read=False)
            self.walk.emit("except", entry, value)
            caught.append(value)
        return tuple(caught)

    # -------------------------------------------------------------------------------------------------- match, with

    def match_(self, node: ast.Match) -> Exits:
        """`match`: each case stands under its own pattern, and under the failure of those before."""
        self.expressions.value_used(node.subject)
        shown = self.walk.text(node.subject)
        before = self.walk.frame.state()
        failed: list[int] = []
        ends: list[tuple[Exits, FrameState, int]] = []
        for case in node.cases:
            self.walk.frame.restore(before)
            condition = self.patterns.condition(case.pattern, node.subject, shown)
            with self.walk.under(*failed, condition):
                if case.guard is not None:
                    self.expressions.value_used(case.guard)
                    with self.walk.under(self.walk.test(case.guard) + 1):
                        exits = self.block(case.body)
                else:
                    exits = self.block(case.body)
            ends.append((exits, self.walk.frame.state(), condition))
            if condition and case.guard is None:
                failed.append(-condition)
        self._join(ends, before[0], self.walk.under)
        return False


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


def _joined_dicts(states: Sequence[dict[str, KnownDict]], tests: Sequence[int]) -> dict[str, KnownDict]:
    """Known dicts after branches: keys of one branch carry its conditions already, those that another one takes out
    get them here. tests: conditions of the branches, or 0."""
    joined: dict[str, KnownDict] = {}
    for name in dict.fromkeys(name for state in states for name in state):
        known = KnownDict(more=any(name not in state for state in states))
        for state, test in zip(states, tests, strict=True):
            if name not in state:
                continue
            known.more |= state[name].more
            known.rests = tuple(dict.fromkeys((*known.rests, *state[name].rests)))
            for key, kept in state[name].entries.items():
                others = [other[name] for other in states if name in other]
                taken = any(key in each.dropped and key not in each.entries for each in others) and test
                entries = [replace(each, conditions=(*each.conditions, test)) for each in kept] if taken else kept
                have = known.entries.setdefault(key, [])
                have.extend(entry for entry in entries if entry not in have)
        known.dropped = frozenset().union(*(state[name].dropped for state in states if name in state))
        if KnownDict.ANY in known.dropped:  # what is left of it is not known
            known.entries, known.rests = {}, ()
        joined[name] = known
    return joined


def _gives_up(handler: ast.ExceptHandler) -> bool:
    """Whether a handler leaves without an error: what follows is not missed."""
    return isinstance(handler.body[-1], ast.Return | ast.Continue | ast.Break) or skips(handler.body[-1])


def leaves(node: ast.Call, dotted: str) -> bool:
    """Whether a call never comes back."""
    return dotted in _EXITS or (isinstance(node.func, ast.Name) and node.func.id in _NEVER)


_STATEMENTS: dict[type[ast.stmt], Callable[[Any, Any], Any]] = {
    ast.Import: StatementReader.import_,
    ast.ImportFrom: StatementReader.import_from,
    ast.Assign: StatementReader.assign_statement,
    ast.AnnAssign: StatementReader.annotated,
    ast.AugAssign: StatementReader.augmented,
    ast.Delete: StatementReader.delete,
    ast.For: StatementReader.loop,
    ast.AsyncFor: StatementReader.loop,
    ast.While: StatementReader.while_,
    ast.With: StatementReader.with_,
    ast.AsyncWith: StatementReader.with_,
    ast.If: StatementReader.if_,
    ast.Try: StatementReader.try_,
    ast.TryStar: StatementReader.try_,
    ast.Match: StatementReader.match_,
    ast.Assert: StatementReader.assert_,
    ast.Expr: StatementReader.expression_statement,
    ast.Return: StatementReader.returned,
    ast.Raise: StatementReader.raised,
    ast.Continue: StatementReader.left,
    ast.Break: StatementReader.left,
    ast.FunctionDef: lambda reader, node: reader.walk.visit.definition(node),
    ast.AsyncFunctionDef: lambda reader, node: reader.walk.visit.definition(node),
    ast.ClassDef: lambda reader, node: reader.walk.visit.definition(node),
}
