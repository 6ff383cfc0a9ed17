"""Expressions: their values, and the uses in them. Calls are in `calls`."""

from __future__ import annotations

import ast
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tooling.python.bound_names import bound_names
from tooling.python.source import each_parameter
from tooling.upgrade.usage.facts import NONE, UNKNOWN
from tooling.upgrade.usage.scan.containers import SLICE, filled
from tooling.upgrade.usage.scan.frames import Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tooling.upgrade.usage.scan.annotations import AnnotationWalk
    from tooling.upgrade.usage.scan.core import WalkState

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*(?:\.\w+)*)?|[A-Za-z_]\w*:[A-Za-z_]\w*", re.ASCII)
_STRING_LIMIT = 200


def narrowed(test: ast.expr, holds: bool) -> Iterator[tuple[str, list[ast.expr]]]:
    """(name or "self.x", the classes it is an instance of one of) where `test` has the given outcome."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from narrowed(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is holds:
            for value in test.values:
                yield from narrowed(value, holds)
    elif isinstance(test, ast.Compare):
        # `type(x) is C`
        if len(test.ops) != 1 or not isinstance(test.left, ast.Call) or len(test.left.args) != 1:
            return
        if not (isinstance(test.left.func, ast.Name) and test.left.func.id == "type"):
            return
        positive = isinstance(test.ops[0], ast.Is | ast.Eq)
        negative = isinstance(test.ops[0], ast.IsNot | ast.NotEq)
        key = _key(test.left.args[0])
        if key and (positive if holds else negative):
            yield key, [test.comparators[0]]
    elif holds and (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Name)
        and test.func.id == "isinstance"
        and len(test.args) == 2
    ):
        assert isinstance(test, ast.Call)
        key = _key(test.args[0])
        if key:
            yield key, _classes(test.args[1])


def _key(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.target.id if isinstance(node, ast.NamedExpr) else ""


def _classes(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Tuple):
        return [entry for element in node.elts for entry in _classes(element)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_classes(node.left), *_classes(node.right)]
    return [node]


class ExpressionReader:
    """Values of expressions."""

    def __init__(self, walk: WalkState, annotations: AnnotationWalk) -> None:
        self.walk = walk
        self.annotations = annotations

    def expression(self, node: Any, read: bool = True) -> int:
        """Value of an expression, its uses noted."""
        handler = _HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node, read)
        return UNKNOWN

    def name(self, node: ast.Name, read: bool) -> int:
        """A bare name. Only imported ones are worth a use: locals cannot fail."""
        value = self.walk.lookup(node.id)
        if read and node.id in self.walk.frame.dicts and self.walk.is_of_stranger(value):
            value = self.walk.visit.keys_in(node.id) or value
            return filled(self.walk, node.id, value) if node.id in self.walk.filled else value
        if read and node.id in self.walk.filled:
            value = filled(self.walk, node.id, value)
        kind = self.walk.facts.nodes[value][0] if value > NONE else ""
        if read and kind in _IMPORTED:
            self.walk.emit("read", node, value)
        if kind in ("global", "own"):
            self.walk.facts.mentions.setdefault(node.id, {})[node.lineno, node.col_offset] = self.walk.context()
        return value

    def base(self, node: ast.expr) -> int:
        """Value of what an attribute is taken of: itself no use if it is only a name or a dotted path."""
        if isinstance(node, ast.Attribute):
            value = self.attribute_value(node)
            if value > NONE and self.walk.facts.nodes[value][0] == "attr":
                self.walk.emit("read", node, value)
            return value
        return self.value_used(node, read=False)

    def value_used(self, node: ast.expr, read: bool = True) -> int:
        """Value of something that is used at once: a call there is not awaited."""
        if isinstance(node, ast.Call):
            return self.walk.visit.used_call(node)
        return self.expression(node, read)

    def attribute_value(self, node: ast.Attribute) -> int:
        """Value of `base.name`, without a use of the attribute itself."""
        base = self.base(node.value)
        key = f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
        key = key if key in self.walk.frame.values else f"*.{node.attr}"
        return self.walk.frame.values[key] if key in self.walk.frame.values else self.walk.attribute(base, node.attr)

    def attribute_read(self, node: ast.Attribute, read: bool) -> int:
        """`base.name`."""
        value = self.attribute_value(node)
        if read:
            self.walk.emit("read", node, value)
        return value

    def constant(self, node: ast.Constant, read: bool, *, alone: bool = False) -> int:
        """Read a constant: None, or perhaps a dotted string. alone: whether a mapping has it as its only such text."""
        if node.value is None:
            return NONE
        text = node.value
        if read and isinstance(text, str) and len(text) < _STRING_LIMIT and _DOTTED.fullmatch(text):
            doubt = {"evidence": "if the text is a name"} if alone and text.count(".") == 1 else {}
            self.walk.emit("string", node, self.walk.node("import", text.replace(":", ".")), **doubt)
        return UNKNOWN

    def await_(self, node: ast.Await, read: bool) -> int:
        """`await x`."""
        if isinstance(node.value, ast.Call):
            return self.walk.visit.awaited_call(node.value)
        value = self.expression(node.value)
        if self.walk.facts.nodes[value][0] == "remote":
            return UNKNOWN
        self.walk.emit("await", node, value)
        return self.walk.step("await", value)

    def subscript(self, node: ast.Subscript, read: bool) -> int:
        """`x[key]`, for reading."""
        if isinstance(node.value, ast.Dict | ast.List | ast.Tuple):
            return self._chosen(node)
        value = self.value_used(node.value)
        if not isinstance(node.slice, ast.Constant) or self.walk.dotted(value) == "sys.modules":  # a key is no path
            self.expression(node.slice)
        if isinstance(node.ctx, ast.Load):
            if self.walk.facts.nodes[value][0] != "remote":
                asked = literal_type(node.slice)
                self.operate(node, value, "subscript", "" if asked == "open" else asked)
        else:
            self.operate(node, value, _ITEMS[type(node.ctx)])
        key, row = constant_key(node.slice), self.walk.facts.nodes[value]
        if row[0] == "fields" and isinstance(key, str) and isinstance(node.ctx, ast.Load):  # `asdict(settings)["size"]`
            field = self.walk.attribute(row[1], key)
            if field > NONE:
                self.walk.emit("read", node, self.walk.node("documented", field, "its fields are the keys"))
        if isinstance(node.slice, ast.Slice):
            return value if row[0] == "list" else self.walk.step("item", value, SLICE)
        return self.walk.item(value, key)

    def _chosen(self, node: ast.Subscript) -> int:
        """`{True: lambda: a, False: old}[condition]`: a function runs only if it is the one chosen."""
        self.expression(node.slice)
        display = node.value
        if isinstance(display, ast.Dict):
            pairs = [
                (self.walk.text(key), value) for key, value in zip(display.keys, display.values, strict=True) if key
            ]
        else:
            assert isinstance(display, ast.List | ast.Tuple)
            pairs = [(str(index), value) for index, value in enumerate(display.elts)]
        by_truth = {shown for shown, _ in pairs} in ({"0", "1"}, {"False", "True"})
        values = []
        for shown, value in pairs:
            if by_truth:
                test = (self.walk.test(node.slice) + 1) * (1 if shown in ("1", "True") else -1)
            else:
                test = self.walk.test_text(f"({self.walk.text(node.slice)}) == {shown}", node.slice) + 1
            with self.walk.under(test if isinstance(value, ast.Lambda | ast.Name) else 0):
                values.append(self.expression(value))
        return self.walk.either(values)

    def boolean(self, node: ast.BoolOp, read: bool) -> int:
        """`a and b`: b is reached only if a holds."""
        sign = 1 if isinstance(node.op, ast.And) else -1
        conditions: list[int] = []
        values: list[int] = []
        with self.narrowing():
            for value in node.values:
                with self.walk.under(*conditions):
                    found = self.expression(value)
                    told = any(self.walk.facts.nodes[each][0] == "guarded" for each in values)
                    values.append(self.guarded(found) if told else found)
                if value is not node.values[-1]:
                    conditions.append(sign * (self.walk.test(value) + 1))
                if sign == 1:
                    self.narrow(value, holds=True)
        return self.walk.either(values) if sign == -1 else values[-1]

    def conditional(self, node: ast.IfExp, read: bool) -> int:
        """`a if test else b`."""
        self.expression(node.test)
        test = self.walk.test(node.test) + 1
        values = []
        for branch, condition in ((node.body, test), (node.orelse, -test)):
            with self.walk.under(condition), self.narrowing():
                self.narrow(node.test, holds=condition > 0)
                value = self.expression(branch)
                values.append(self.guarded(value))
        return self.walk.either(values)

    def guarded(self, value: int) -> int:
        """The value, with the conditions it is bound under."""
        if value <= NONE or not self.walk.hot[value] or self.walk.facts.nodes[value][0] == "guarded":
            return value
        return self.walk.node("guarded", value, self.walk.context())

    @contextmanager
    def narrowing(self) -> Iterator[None]:
        """What conditions tell about types inside is forgotten after."""
        changed: dict[str, int | None] = {}
        frame, before = self.walk.frame, self.walk.narrowings
        self.walk.narrowings = changed
        try:
            yield
        finally:
            self.walk.narrowings = before
            for key, value in changed.items():
                if value is None:
                    frame.values.pop(key, None)
                else:
                    frame.values[key] = value

    def narrow(self, test: ast.expr, *, holds: bool) -> None:
        """Use what a condition tells about types."""
        for key, classes in narrowed(test, holds):
            kinds = [self.annotations.chain(entry) for entry in classes]
            own = [isinstance(entry, ast.Name) and self.walk.is_builtin(entry.id) for entry in classes]
            if all(own) and key in self.walk.frame.values:  # `if isinstance(x, list)`: nothing of a package
                self.walk.narrowings.setdefault(key, self.walk.frame.values[key])
                self.walk.frame.values[key] = UNKNOWN
            if all(kinds) and any(self.walk.hot[kind] for kind in kinds):
                self.walk.narrowings.setdefault(key, self.walk.frame.values.get(key))
                self.walk.frame.values[key] = self.walk.either(self.walk.step("instance", kind) for kind in kinds)

    def walrus(self, node: ast.NamedExpr, read: bool) -> int:
        """`(x := value)`."""
        value = self.expression(node.value)
        self.walk.bind(node.target.id, value, node.value)
        return value

    def lambda_(self, node: ast.Lambda, read: bool) -> int:
        """A lambda: its body is walked here, as it is mostly called soon."""
        return self.body_of(node, ())[1]

    def body_of(self, node: ast.Lambda, given: Sequence[int]) -> tuple[int, int]:
        """What a lambda gives that is called with these values, and the lambda itself."""
        for default in (*node.args.defaults, *(entry for entry in node.args.kw_defaults if entry is not None)):
            self.expression(default)
        arguments = node.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        extra = [entry for entry in (arguments.vararg, arguments.kwarg) if entry is not None]
        with self.inline({entry.arg for entry in (*names, *extra)}):
            self.walk.frame.values.update(zip((entry.arg for entry in names), given, strict=False))
            result = self.expression(node.body)
        rows = [(one.arg, kind, None if usual is None else "...") for one, kind, usual in each_parameter(arguments)]
        return result, self.walk.node("lambda", tuple(rows), result)

    @contextmanager
    def inline(self, names: set[str]) -> Iterator[None]:
        """Inside a lambda or comprehension that binds these names."""
        outer = self.walk.frame
        self.walk.frame = Frame("function", outer.qualname, outer, frozenset(names), inline=True, owner=outer.owner)
        self.walk.frame.receiver = outer.receiver if outer.receiver not in names else ""
        try:
            yield
        finally:
            outer.later.extend(self.walk.frame.later)
            self.walk.frame = outer

    def comprehension(self, node: Any, read: bool) -> int:
        """List, set, dict comprehensions and generator expressions."""
        first = self._elements(node.generators[0])
        targets = [ast.Expr(generator.target) for generator in node.generators]
        conditions: list[int] = []
        with self.inline(set(bound_names([*targets], walrus=True).names)):
            for index, generator in enumerate(node.generators):
                elements = first if index == 0 else self._elements(generator)
                self.walk.visit.assign(generator.target, elements)
                if isinstance(generator.target, ast.Name):
                    self.walk.frame.strings[generator.target.id] = self.walk.visit.strings(generator.iter)
                for test in generator.ifs:
                    with self.walk.under(*conditions):
                        self.expression(test)
                    conditions.append(self.walk.test(test) + 1)
                    self.narrow(test, holds=True)
            with self.walk.under(*conditions):
                if isinstance(node, ast.DictComp):
                    key, value = self.expression(node.key), self.expression(node.value)
                    if self.walk.facts.nodes[key][0] == "later":  # `{submit(f, x): x for x in rows}`
                        return self.walk.node("dict", value, key)
                    return self.walk.step("dict", value)
                return self.walk.step("list", self.expression(node.elt))

    def _elements(self, generator: ast.comprehension) -> int:
        return self.loop_elements(generator.iter, bool(generator.is_async))

    def loop_elements(self, node: ast.expr, asynchronous: bool) -> int:
        """Elements of what is looped over."""
        value = self.expression(node)
        if self.walk.facts.nodes[value][0] not in _DISPLAYS:
            self.walk.emit("iterate", node, value, awaited=asynchronous)
        return self.walk.iterated(value, asynchronous)

    def operate(self, node: ast.AST, value: int, operation: str, other: str = "") -> None:
        """Note what is done with a value by a special method, unless this file made the container itself."""
        if self.walk.facts.nodes[value][0] in _DISPLAYS:
            return
        if operation in ("iterate", "subscript"):
            self.walk.emit(operation, node, value, **({"other": other} if other else {}))
        else:
            self.walk.emit("operate", node, value, operation=operation, other=other)

    def between(self, node: ast.AST, operation: str, sides: Sequence[ast.expr], values: Sequence[int]) -> None:
        """Note an operator between two values; the right one answers where a literal stands on the left."""
        (left, right), (first, second) = sides, values
        self.operate(node, first, operation, "same" if first == second else literal_type(right))
        if isinstance(left, ast.Constant | ast.JoinedStr) or not self.walk.hot[first] or self.walk.is_untyped(first):
            other = literal_type(left)
            swapped = SWAPPED.get(operation, f"__r{operation[2:]}")
            self.operate(node, second, swapped, "left" if other == "open" else other)

    def asked(self, node: ast.Call, name: str, operation: str) -> None:
        """What a builtin asks its arguments for: `len(x)`, `sorted(x)`, `max(x, y)`."""
        arguments = node.args[1:] if name in ("map", "filter") else node.args if name == "zip" else node.args[:1]
        if name == "format" and len(node.args) == 1:
            return  # text without a form is always given
        values = [self.walk.visit.quiet_value(each) for each in arguments]
        if name in ("min", "max") and len(node.args) > 1:
            operation = "__lt__" if name == "min" else "__gt__"
            same = self.walk.visit.quiet_value(node.args[1]) == values[0]
            self.operate(node, values[0], operation, "same" if same else "open")
            return
        for value in values:
            self.operate(node, value, operation)

    def binary(self, node: ast.BinOp, read: bool) -> int:
        """`a + b`."""
        values = self.value_used(node.left), self.value_used(node.right)
        self.between(node, OPERATORS[type(node.op)], (node.left, node.right), values)
        kinds = [self.walk.facts.nodes[value][0] for value in values]
        if isinstance(node.op, ast.Mult) and "list" in kinds:
            return values[kinds.index("list")]
        joined = kinds[0] == kinds[1] and kinds[0] in ("list", "dict") and isinstance(node.op, ast.Add | ast.BitOr)
        if joined or not {"dict", "keys", "list"}.isdisjoint(kinds):  # a display on one side: of no package
            return self.walk.either(values) if joined else UNKNOWN
        return self.walk.step("call", self.walk.attribute(values[0], OPERATORS[type(node.op)]))

    def unary(self, node: ast.UnaryOp, read: bool) -> int:
        """`-a`; `not a` is always answered."""
        value = self.value_used(node.operand)
        if not isinstance(node.op, ast.Not):
            self.operate(node, value, OPERATORS[type(node.op)])
        return UNKNOWN

    def compared(self, node: ast.Compare, read: bool) -> int:
        """`a < b`, `a in b`; whether two are equal or the same is always answered. A text in it is asked for, not
        looked up."""
        sides = [node.left, *node.comparators]
        values = [UNKNOWN if isinstance(side, ast.Constant) else self.value_used(side) for side in sides]
        for index, operator in enumerate(node.ops):
            if type(operator) in OPERATORS:
                self.between(node, OPERATORS[type(operator)], sides[index : index + 2], values[index : index + 2])
            elif isinstance(operator, ast.In | ast.NotIn):
                asked = literal_type(sides[index])
                self.operate(node, values[index + 1], "__contains__", "" if asked == "open" else asked)
        return UNKNOWN

    def starred(self, node: ast.Starred, read: bool) -> int:
        """`*a`."""
        self.operate(node.value, self.value_used(node.value), "iterate")
        return UNKNOWN

    def display(self, node: Any, read: bool) -> int:
        """Tuples, lists and sets."""
        values = []
        for entry in node.elts:
            values.append(self.expression(entry.value if isinstance(entry, ast.Starred) else entry))
            if isinstance(entry, ast.Starred):
                self.operate(entry.value, values[-1], "iterate")
                values[-1] = self.walk.iterated(values[-1])
            elif isinstance(node, ast.Set):
                self.operate(node, values[-1], "__hash__")
        if not any(self.walk.hot[one] for one in values):
            return UNKNOWN
        if isinstance(node, ast.Tuple) and not any(isinstance(entry, ast.Starred) for entry in node.elts):
            return self.walk.node("tuple", tuple(values))
        return self.walk.step("list", self.walk.either(values))

    def mapping(self, node: ast.Dict, read: bool) -> int:
        """Dict displays."""
        for key in node.keys:
            if key is not None and not isinstance(key, ast.Constant):  # what a text files under itself is not looked up
                self.operate(node, self.expression(key), "__hash__")
        roots = [str(getattr(value, "value", "")).partition(".")[0] for value in node.values]
        targets = [isinstance(key, ast.Constant) and key.value == "_target_" for key in node.keys]
        values = [
            self.constant(value, True, alone=roots.count(root) == 1 and not target)
            if isinstance(value, ast.Constant)
            else self.expression(value)
            for value, root, target in zip(node.values, roots, targets, strict=True)
        ]
        for key, value in zip(node.keys, values, strict=True):
            if key is None:
                self.operate(node, value, MAPPED)
        self.walk.visit.target_called(node)
        held = self.walk.step("dict", self.walk.either(values)) if None not in node.keys else UNKNOWN
        value = self.walk.displays[node] = self.walk.visit.keys_of(node, held)
        return value

    def yielded(self, node: Any, read: bool) -> int:
        """`yield` and `yield from`."""
        value = self.expression(node.value) if node.value is not None else UNKNOWN
        frame = self.walk.frame
        frame.is_generator = True
        frame.yields.append(self.walk.iterated(value) if isinstance(node, ast.YieldFrom) else value)
        return UNKNOWN

    def children(self, node: Any, read: bool) -> int:
        """Anything else: only what is inside matters."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value_used(child)
        return UNKNOWN

    def formatted(self, node: ast.JoinedStr, read: bool) -> int:
        """An f-string: its constant parts are not dotted names."""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.value_used(part.value)
                if part.format_spec is not None and part.conversion == -1:
                    self.operate(part, value, "__format__")
        return UNKNOWN


_DISPLAYS = frozenset({"list", "dict", "tuple"})
"""Kinds of values that are containers of this file's own making."""
_ITEMS: dict[type[ast.expr_context], str] = {ast.Store: "__setitem__", ast.Del: "__delitem__"}
MAPPED = "keys"
"""What `**x` asks for beside items: it has no special method."""
_ITERATING = ("all", "any", "enumerate", "filter", "frozenset", "iter", "list", "map", "max", "min", "set", "sorted")
BUILTINS = {
    "abs": "__abs__",
    "float": "__float__",
    "format": "__format__",
    "hash": "__hash__",
    "int": "__int__",
    "len": "__len__",
    "next": "__next__",
    "reversed": "__reversed__",
    "round": "__round__",
    **dict.fromkeys((*_ITERATING, "sum", "tuple", "zip"), "iterate"),
}
"""By builtin: the special method that it asks its arguments for."""
OPERATORS: dict[type[ast.operator | ast.unaryop | ast.cmpop], str] = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.MatMult: "__matmul__",
    ast.Div: "__truediv__",
    ast.FloorDiv: "__floordiv__",
    ast.Mod: "__mod__",
    ast.Pow: "__pow__",
    ast.LShift: "__lshift__",
    ast.RShift: "__rshift__",
    ast.BitAnd: "__and__",
    ast.BitOr: "__or__",
    ast.BitXor: "__xor__",
    ast.UAdd: "__pos__",
    ast.USub: "__neg__",
    ast.Invert: "__invert__",
    ast.Lt: "__lt__",
    ast.LtE: "__le__",
    ast.Gt: "__gt__",
    ast.GtE: "__ge__",
}
SWAPPED = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__"}
"""What the other side of a comparison is asked for."""
_IMPORTED = frozenset({"import", "name", "relative", "global", "star", "guarded"})


def literal_type(node: ast.expr) -> str:
    """Return the name of a literal's type; "open" for anything else."""
    match node:
        case ast.Constant(value):
            return type(value).__name__
        case ast.JoinedStr():
            return "str"
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value)):
            return type(value).__name__
        case ast.Slice():
            return "slice"
        case ast.List() | ast.Dict() | ast.Set() | ast.Tuple():
            return type(node).__name__.lower()
    return "open"


def constant_key(node: ast.expr) -> str | int | None:
    """A subscript's constant key."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = constant_key(node.operand)
        return -inner if isinstance(inner, int) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int) and not isinstance(node.value, bool):
        return node.value
    return None


_HANDLERS: dict[type[ast.AST], Callable[[Any, Any, bool], int]] = {
    ast.Name: ExpressionReader.name,
    ast.Attribute: ExpressionReader.attribute_read,
    ast.Constant: ExpressionReader.constant,
    ast.Call: lambda reader, node, read: reader.walk.visit.call(node),
    ast.Await: ExpressionReader.await_,
    ast.Subscript: ExpressionReader.subscript,
    ast.BoolOp: ExpressionReader.boolean,
    ast.IfExp: ExpressionReader.conditional,
    ast.NamedExpr: ExpressionReader.walrus,
    ast.Lambda: ExpressionReader.lambda_,
    ast.ListComp: ExpressionReader.comprehension,
    ast.SetComp: ExpressionReader.comprehension,
    ast.DictComp: ExpressionReader.comprehension,
    ast.GeneratorExp: ExpressionReader.comprehension,
    ast.Tuple: ExpressionReader.display,
    ast.List: ExpressionReader.display,
    ast.Set: ExpressionReader.display,
    ast.Dict: ExpressionReader.mapping,
    ast.Yield: ExpressionReader.yielded,
    ast.YieldFrom: ExpressionReader.yielded,
    ast.JoinedStr: ExpressionReader.formatted,
    ast.BinOp: ExpressionReader.binary,
    ast.UnaryOp: ExpressionReader.unary,
    ast.Compare: ExpressionReader.compared,
    ast.Slice: ExpressionReader.children,
    ast.Starred: ExpressionReader.starred,
    ast.FormattedValue: ExpressionReader.children,
}
