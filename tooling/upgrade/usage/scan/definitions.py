"""Functions and classes: shapes, what they give back, and their bodies, walked when the scope around is complete."""

from __future__ import annotations

import ast
import contextlib
import re
from typing import TYPE_CHECKING, Any

from tooling.python.bound_names import bound_names
from tooling.python.condition_reader import SKIPS, UNSKIPPED
from tooling.python.function_bodies import skips
from tooling.python.module import last_name
from tooling.python.source import POSITIONAL, each_parameter, methods_in
from tooling.upgrade.usage.facts import NONE, UNKNOWN, ClassFacts, FunctionFacts
from tooling.upgrade.usage.scan.arguments import constant_name
from tooling.upgrade.usage.scan.frames import Frame, KnownDict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.source import FunctionNode
    from tooling.upgrade.usage.scan.annotations import AnnotationWalk
    from tooling.upgrade.usage.scan.arguments import ArgumentReader
    from tooling.upgrade.usage.scan.core import WalkState
    from tooling.upgrade.usage.scan.expressions import ExpressionReader
    from tooling.upgrade.usage.scan.statements import StatementReader

_BINDINGS = {
    "property": "property",
    "functools.cached_property": "property",
    "abc.abstractproperty": "property",
    "classmethod": "classmethod",
    "staticmethod": "staticmethod",
}
_NEUTRAL = frozenset(
    {
        "abc.abstractmethod",
        "functools.cache",
        "functools.lru_cache",
        "functools.wraps",
        "pytest.fixture",
        "ray.method",
        "ray.remote",
        "torch.compile",
        "torch.inference_mode",
        "torch.no_grad",
        "typing.final",
        "typing.overload",
        "typing.override",
        "typing_extensions.override",
    }
)
"""Decorators after which a function still takes and gives what it says."""
_FIXTURES = frozenset({"pytest.fixture", "pytest_asyncio.fixture"})
_MODELS = frozenset({"pydantic.BaseModel", "pydantic.RootModel", "pydantic_settings.BaseSettings"})
_DISPATCHES = (("name", "functools.singledispatch"), ("name", "functools.singledispatchmethod"))
_SETUPS = frozenset({"asyncSetUp", "setUp", "setUpClass", "setup_class", "setup_method"})
"""Methods that are run before each test of a class, or before all: one that skips skips them."""
_OWN = frozenset({"global", "import", "name", "own", "relative", "star"})
"""Kinds of values that may be of the repository."""


class DefinitionReader:
    """Definitions of functions and classes."""

    def __init__(
        self,
        walk: WalkState,
        annotations: AnnotationWalk,
        expressions: ExpressionReader,
        arguments: ArgumentReader,
        statements: StatementReader,
    ) -> None:
        self.walk = walk
        self.annotations = annotations
        self.expressions = expressions
        self.arguments = arguments
        self.statements = statements
        self._skipping: dict[str, bool] = {}
        """Fixtures that skip, and whether every test of the file uses them."""

    def definition(self, node: Any) -> None:
        """A function or class."""
        if isinstance(node, ast.ClassDef):
            self._class(node)
        else:
            binding, decorators, makers, conditions = self._decorators(node)
            qualname = self._qualname(node.name, self.walk.facts.functions)
            owner = self.walk.frame.qualname if self.walk.frame.kind == "class" else ""
            parameters, values, defaults = self._parameters(node, owner, binding, qualname)
            self.walk.facts.functions[qualname] = FunctionFacts(
                line=node.lineno,
                end_line=node.end_lineno or node.lineno,
                owner=owner,
                binding=binding or ("method" if owner else "function"),
                is_async=isinstance(node, ast.AsyncFunctionDef),
                decorators=decorators,
                makers=makers,
                annotation=self.annotations.annotation(node.returns),
                annotated=node.returns is not None and not self._is_variable(node.returns),
                parameters=parameters,
                defaults=defaults,
                fixture=any(
                    self.walk.dotted(self.annotations.chain(getattr(decorator, "func", decorator))) in _FIXTURES
                    for decorator in node.decorator_list
                ),
            )
            if self.walk.facts.functions[qualname].fixture and "skip" in self.walk.text(node) and not owner:
                self._skipping[node.name] = any("autouse=True" in self.walk.text(each) for each in node.decorator_list)
            if binding == "accessor":
                self.walk.facts.functions[qualname].binding = "property"
            elif owner:
                self.walk.facts.classes[owner].methods[node.name] = qualname
            value = self.walk.node("own", qualname)
            self.walk.bind(node.name, value)
            self.walk.frame.defined[node.lineno] = qualname, self.walk.conditions
            frame = Frame("function", qualname, self.walk.frame, owner=owner)
            if owner and values and binding != "staticmethod":
                frame.receiver = next(iter(values))
            frame.values.update(values)
            self._given_from_outside(node, frame, next(iter(values), "") if frame.receiver else "")
            if self.walk.frame.kind == "function" and self.walk.frame.receiver not in values:
                frame.owner, frame.receiver = self.walk.frame.owner, self.walk.frame.receiver
            double = node.args.kwarg
            if double is not None and self.walk.facts.nodes[values[double.arg]][0] == "kwargs":
                frame.dicts[double.arg] = KnownDict(more=True, rests=(values[double.arg],))
            # Walk the body when the names around it have all their values
            holder: Frame = self.walk.frame
            while (holder.kind == "class" or holder.inline) and holder.parent is not None:
                holder = holder.parent
            here, evaluated = (*self.walk.conditions, *conditions), self.walk.evaluated

            def walk() -> None:
                marks = tuple(mark for outer in _outwards(frame) for mark in outer.marks)
                asked = {
                    getattr(one, "value", "")
                    for each in node.decorator_list
                    if isinstance(each, ast.Call) and last_name(each.func) == "usefixtures"
                    for one in each.args
                }
                marks += tuple(
                    self.walk.test_text(f"{UNSKIPPED}({each})", node) + 1
                    for each, always in self._skipping.items()
                    if (always and node.name.startswith("test")) or each in values or each in asked
                )
                self.walk.conditions, self.walk.attempts, self.walk.switches = (*here, *marks), (), ()
                self.walk.evaluated = evaluated
                bound = bound_names(node.body, walrus=self.walk.has_walrus)
                frame.bound = frozenset(bound.names | set(frame.values))
                frame.outer, frame.nonlocals = frozenset(bound.outer), frozenset(bound.nonlocals)
                frame.history.update((name, [value]) for name, value in frame.values.items())
                outer, self.walk.frame = self.walk.frame, frame
                self.walk.assigned, self.walk.narrowings = set(), {}
                self.statements.block(node.body)
                facts = self.walk.facts.functions[frame.qualname]
                facts.returns, facts.yields = tuple(dict.fromkeys(frame.returns)), tuple(dict.fromkeys(frame.yields))
                facts.is_generator = frame.is_generator
                self.finish(frame)
                self.walk.frame = outer

            holder.later.append(walk)

    def skip_condition(self, node: ast.expr) -> tuple[int, ...]:
        """`skipif(test)` stands for `not test`, `skipUnless(test)` for `test`; a decorator of the repository may be
        made of these."""
        function = node.func if isinstance(node, ast.Call) else node
        sign = SKIPS.get(self.walk.dotted(self.annotations.chain(function)), 0)
        if sign and isinstance(node, ast.Call) and node.args:
            test = node.args[0]
            if isinstance(test, ast.Constant):  # pytest evaluates a text
                text = test.value if isinstance(test.value, str) and sign < 0 else ""
                return (sign * (self.walk.test_text(text, test) + 1),) if text else ()
            return (sign * (self.walk.test(test) + 1),)
        value = self.annotations.chain(function)
        if sign or not self.walk.hot[value] or self.walk.facts.nodes[value][0] not in _OWN:
            return ()
        return (self.walk.test_text(f"{UNSKIPPED}({self.walk.text(node)})", node) + 1,)

    # -------------------------------------------------------------------------------------------------- functions

    def finish(self, frame: Frame) -> None:
        """Walk the bodies that waited for this scope."""
        while frame.later:
            waiting, frame.later = frame.later, []
            for walk in waiting:
                walk()

    def _decorators(self, node: FunctionNode) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """How a function is bound, the decorators that may change it, their values, and conditions they put on it."""
        binding = ""
        others: list[int] = []
        makers: list[int] = []
        conditions: list[int] = []
        for decorator in node.decorator_list:
            inner = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = inner.id if isinstance(inner, ast.Name) and self.walk.is_builtin(inner.id) else ""
            value = self.expressions.expression(decorator, read=False)
            target = self.annotations.chain(inner)
            name = name or self.walk.dotted(target)
            if not isinstance(decorator, ast.Call):
                self.walk.emit("decorate", decorator, value)
            conditions.extend(self.skip_condition(decorator))
            if isinstance(inner, ast.Attribute) and inner.attr in ("setter", "deleter", "getter"):
                binding = "accessor"
            elif name in _BINDINGS:
                binding = _BINDINGS[name]
            elif name not in _NEUTRAL and name not in SKIPS and not name.startswith("pytest.mark"):
                others.append(self.walk.node("name", name) if name else value)
                makers.append(value)
        return binding, tuple(others), tuple(makers), tuple(conditions)

    def _parameters(
        self, node: FunctionNode, owner: str, binding: str, qualname: str
    ) -> tuple[tuple[tuple[str, str, str | None], ...], dict[str, int], dict[str, int]]:
        """Shape of a function without `self`, what its parameters hold, and what their defaults are."""
        rows: list[tuple[str, str, str | None]] = []
        values: dict[str, int] = {}
        defaults: dict[str, int] = {}
        documented = _documented(node)
        for entry, kind, default in each_parameter(node.args):
            is_variable = entry.annotation is not None and self._is_variable(entry.annotation)
            annotated = UNKNOWN if is_variable else self.annotations.annotation(entry.annotation)
            if default is not None:
                held = self.expressions.expression(default)
                if held > NONE and self.walk.hot[held]:
                    defaults[entry.arg] = held
            rows.append((entry.arg, kind, self.walk.text(default)[:80] if default is not None else None))
            values[entry.arg] = (
                self.walk.step("list", annotated)
                if kind == "star"
                else self.walk.step("dict", annotated)
                if kind == "double-star"
                else annotated
            )
            last = getattr(entry.annotation, "attr", getattr(entry.annotation, "id", ""))
            takes_anything = entry.annotation is None or last in ("Any", "object") or is_variable
            if annotated == UNKNOWN and takes_anything:
                text = documented.get(entry.arg, "") if kind != "star" else ""
                known = self.annotations.documented(text, "its docstring says so") if text else UNKNOWN
                starred = {"double-star": ("kwargs", qualname), "star": ("stars", qualname)}
                untyped = starred.get(kind, ("arg", qualname, entry.arg))
                values[entry.arg] = known or self.walk.node(*untyped)
        if owner and binding != "staticmethod" and rows and rows[0][1] in POSITIONAL:
            own = self.walk.node("own", owner)
            is_class = binding == "classmethod" or rows[0][0] == "cls"
            values[rows[0][0]] = own if is_class else self.walk.node("instance", own)
            rows = rows[1:]
        return tuple(rows), values, defaults

    def _is_variable(self, annotation: ast.expr) -> bool:
        """Whether an annotation is a type variable that may stand for anything."""
        made = self.walk.module.origins.get(annotation.id) if isinstance(annotation, ast.Name) else None
        return (
            isinstance(made, ast.Call)
            and last_name(made.func) == "TypeVar"
            and len(made.args) + len(made.keywords) == 1
        )

    def _given_from_outside(self, node: FunctionNode, frame: Frame, receiver: str) -> None:
        """What parameters hold by the word of a decorator: `@parametrize("name", [...])`, `@show.register(Image)`."""
        for call in node.decorator_list:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            if call.func.attr == "register" and len(call.args) == 1:
                base = self.walk.facts.nodes[self.annotations.chain(call.func.value)]
                known = self.walk.facts.functions.get(base[1]) if base[0] == "own" else None
                names = [each for each in frame.values if each != receiver][:1]
                if known is not None and any(self.walk.facts.nodes[one] in _DISPATCHES for one in known.decorators):
                    held = self.walk.step("instance", self.annotations.chain(call.args[0]))
                    frame.values.update((name, held) for name in names if self.walk.is_untyped(frame.values[name]))
            elif call.func.attr == "parametrize" and len(call.args) > 1:
                self._parametrized(call, frame)

    def _parametrized(self, call: ast.Call, frame: Frame) -> None:
        names = [str(each.value) for each in self.arguments.strings(call.args[0])]
        names = names or constant_name(call.args[0]).replace(" ", "").split(",")
        rows = [
            getattr(row, "args", [row])
            if last_name(getattr(row, "func", row)) == "param"
            else row.elts
            if isinstance(row, ast.Tuple | ast.List) and len(names) > 1
            else [row]
            for row in getattr(call.args[1], "elts", [])
        ]
        for place, name in enumerate(names):
            given = [row[place] for row in rows if len(row) == len(names)]
            if name not in frame.values or not given:
                continue
            frame.strings[name] = self.arguments.strings(ast.List(given, ast.Load()))
            held = [self.arguments.quiet_value(each) for each in given]
            held = [each for each in held if each > NONE and self.walk.hot[each]]
            if held and self.walk.is_untyped(frame.values[name]):
                value = self.walk.node("documented", self.walk.either(held), "a test is given it")
                frame.values[name] = value

    def _qualname(self, name: str, taken: dict[str, Any]) -> str:
        """Unique in the file: of several definitions of one name the later ones get a number."""
        base = f"{self.walk.frame.qualname}.{name}" if self.walk.frame.qualname else name
        unique, number = base, 2
        while unique in taken:
            unique, number = f"{base}#{number}", number + 1
        return unique

    # ---------------------------------------------------------------------------------------------------- classes

    def _class(self, node: ast.ClassDef) -> None:
        conditions: list[int] = []
        for decorator in node.decorator_list:
            value = self.expressions.expression(decorator, read=False)
            if not isinstance(decorator, ast.Call):
                self.walk.emit("decorate", decorator, value)
            conditions.extend(self.skip_condition(decorator))
        qualname = self._qualname(node.name, self.walk.facts.classes)
        bases = self._bases(node, qualname)
        facts = ClassFacts(bases, line=node.lineno, end_line=node.end_lineno or node.lineno)
        self.walk.facts.classes[qualname] = facts
        self.walk.bind(node.name, self.walk.node("own", qualname))
        outer = self.walk.frame
        self.walk.frame = Frame(
            "class", qualname, outer, frozenset(bound_names(node.body, walrus=self.walk.has_walrus).names)
        )
        self.walk.frame.reads_annotations = any(self.walk.dotted(base) in _MODELS for base in bases)
        self.walk.assigned, assigned = set(), self.walk.assigned
        with self.walk.under(*conditions):
            self.statements.block(node.body)
            self._overrides(node, facts, bases)
            for method in methods_in(node.body):
                for statement in method.body if method.name in _SETUPS else ():
                    if isinstance(statement, ast.If) and skips(statement.body[-1]):
                        self.walk.frame.marks = (*self.walk.frame.marks, -self.walk.test(statement.test) - 1)
        for name, values in self.walk.frame.history.items():
            if name not in facts.methods and name not in facts.annotations:
                facts.attributes.setdefault(name, []).extend(values)
        self.walk.assigned = assigned
        self.walk.frame = outer

    def _bases(self, node: ast.ClassDef, qualname: str) -> tuple[int, ...]:
        bases = []
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base  # class C(Base[T])
            if isinstance(base, ast.Subscript):
                self.expressions.expression(base.slice)
            value = self.expressions.expression(inner, read=False)
            found = self.arguments.arguments([], node.keywords if base is node.bases[0] else [])
            found.partial |= len(node.bases) > 1  # another base may take what this one needs
            self.walk.emit("subclass", base, value, arguments=found.row(), owner=qualname)
            if inner is not base:
                self.walk.emit("subscript", base, value)
            bases.append(value)
        if not node.bases:
            self.arguments.arguments([], node.keywords)
        return tuple(bases)

    def _overrides(self, node: ast.ClassDef, facts: ClassFacts, bases: tuple[int, ...]) -> None:
        """Methods that may override one of a base class. The place is that of the `def` line."""
        if not any(self.walk.hot[base] for base in bases):
            return
        defined = self.walk.frame.defined
        for statement in methods_in(node.body):
            last = facts.methods.get(statement.name)
            if last is None or statement.lineno not in defined:
                continue
            qualname, conditions = defined[statement.lineno]
            if qualname != last and conditions == defined[self.walk.facts.functions[last].line][1]:
                continue  # a later definition of the name counts
            self.walk.conditions, before = conditions, self.walk.conditions
            for base in bases:
                self.walk.emit("override", _DefinitionLine(statement), base, name=statement.name, method=qualname)
            self.walk.conditions = before


class _DefinitionLine:
    """Place of a `def` line: from `def` to the end of the name."""

    def __init__(self, node: FunctionNode) -> None:
        self.lineno = self.end_lineno = node.lineno
        self.col_offset = node.col_offset
        keyword = len("async def ") if isinstance(node, ast.AsyncFunctionDef) else len("def ")
        self.end_col_offset = node.col_offset + keyword + len(node.name.encode())


_GOOGLE = re.compile(r"^[ \t]+\**(\w+)[ \t]*\(([^\n)]+)\)?[ \t]*:", re.MULTILINE)
"""  engine (up.LLM, *optional*): what runs"""
_NUMPY = re.compile(r"^[ \t]*(\w+) : ([^\n]+)$", re.MULTILINE)
_SPHINX = re.compile(r":type[ \t]+(\w+):[ \t]*([^\n]+)")
_SPHINX_SHORT = re.compile(r":param[ \t]+([\w.~`]+)[ \t]+(\w+):")


def _documented(node: FunctionNode) -> dict[str, str]:
    """Types of parameters by what the docstring or a comment says."""
    found: dict[str, str] = {}
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        text = first.value.value
        for pattern in (_NUMPY, _GOOGLE, _SPHINX):
            found.update(pattern.findall(text))
        found.update((name, kind) for kind, name in _SPHINX_SHORT.findall(text))
    if node.type_comment:
        with contextlib.suppress(SyntaxError, ValueError):
            given = ast.parse(node.type_comment, mode="func_type").argtypes
            entries = [entry.arg for entry in (*node.args.posonlyargs, *node.args.args)]
            names = entries[len(entries) - len(given) :] if len(given) <= len(entries) else []
            found.update(zip(names, map(ast.unparse, given), strict=False))
    return found


def _outwards(frame: Frame) -> Iterator[Frame]:
    inner: Frame | None = frame
    while inner is not None:
        yield inner
        inner = inner.parent
