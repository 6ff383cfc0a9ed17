"""Values of calls: plain ones, builtins that look into what they are given (`getattr`, `super`, `zip`), and what makes
others call something (`partial`, threads, ray, mocks, imports by name)."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from tooling.python.source import span_of
from tooling.upgrade.usage.facts import NONE, UNKNOWN
from tooling.upgrade.usage.scan import handed, mocks
from tooling.upgrade.usage.scan.arguments import ArgumentReader, CallArguments, constant_name
from tooling.upgrade.usage.scan.containers import put_by_call
from tooling.upgrade.usage.scan.expressions import BUILTINS
from tooling.upgrade.usage.scan.frames import KnownDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.upgrade.usage.scan.annotations import AnnotationWalk
    from tooling.upgrade.usage.scan.core import WalkState
    from tooling.upgrade.usage.scan.expressions import ExpressionReader


class CallReader:
    """Values of calls; tables at the end say what is known of special ones."""

    def __init__(
        self, walk: WalkState, annotations: AnnotationWalk, expressions: ExpressionReader, arguments: ArgumentReader
    ) -> None:
        self.walk = walk
        self.annotations = annotations
        self.expressions = expressions
        self.arguments = arguments

    def call(self, node: ast.Call) -> int:
        """A call whose value is passed on, or used (`read` false and the caller says)."""
        return self._call(node, None)

    def used_call(self, node: ast.Call) -> int:
        """A call whose value is used at once, or thrown away."""
        return self._call(node, False)

    def awaited_call(self, node: ast.Call) -> int:
        """`await f()`."""
        value = self._call(node, True)
        if self.walk.facts.nodes[value][0] == "remote":
            return UNKNOWN
        self.expressions.operate(node, value, "__await__")
        row, function = self.walk.facts.nodes[value], node.func
        if row[0] == "documented" and isinstance(function, ast.Attribute) and function.attr == "get":
            return value  # `await queue.get()`
        return self.walk.step("await", value)

    def _call(self, node: ast.Call, awaited: bool | None) -> int:
        function = node.func
        if isinstance(function, ast.Name):
            builtin, operation = _BUILTIN_CALLS.get(function.id), BUILTINS.get(function.id)
            if (builtin is not None or operation) and self.walk.is_builtin(function.id):
                if operation and node.args:
                    self.expressions.asked(node, function.id, operation)
                value = builtin(self, node) if builtin is not None else None
                if value is not None:
                    return value
        getter = handed.as_lambda(self, function, node)
        if isinstance(getter, ast.Lambda) and getter is not function:
            return self.expressions.body_of(getter, self.visited(node))[0]
        target = self.expressions.expression(function, read=False)
        wrapper = _WRAPPERS.get(self.walk.dotted(target)) if target else None
        if wrapper is None and isinstance(function, ast.Attribute):
            wrapper = _METHODS.get(function.attr)
        if wrapper is not None:
            value = wrapper(self, node, target)
            if value is not None:
                return value
        return self.plain_call(node, target, awaited)

    def plain_call(self, node: ast.Call, target: int, awaited: bool | None) -> int:
        """Nothing special: the target called. A function that imports a module by a given name may not find it."""
        told = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in node.args)
        own = self.walk.facts.functions.get(getattr(node.func, "id", "")) if told else None
        text = self.walk.lines.text_of(own.line, own.end_line) if own is not None else ""
        tried = [self.walk.attempt(self.walk.next_try(), "body", ("ImportError",))] if _TRIES.search(text) else []
        with self.walk.attempted(*tried):
            found = self.arguments.arguments(node.args, node.keywords)
        self._dict_method(node)
        if isinstance(node.func, ast.Attribute):
            put_by_call(self.walk, node.func, found.given)
            if node.func.attr == "add_argument":
                self._option(node)
        for argument in (*node.args, *(one.value for one in node.keywords if one.arg is not None)):
            if isinstance(argument, ast.Name):
                self.arguments.dict_lost(argument.id)
        if self._is_mocked(target):
            self.walk.emit("read", node, target)  # a mock takes anything, and gives mocks
            return UNKNOWN
        self.emit_call(node, target, found, awaited)
        while self.walk.facts.nodes[target][0] == "partial":
            target = int(self.walk.facts.nodes[target][1])
        if isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
            mapping = self.arguments.quiet_value(node.func.value)
            kind, *rest = self.walk.facts.nodes[mapping]
            if kind in _NAMED or (kind == "instance" and self.walk.facts.nodes[rest[0]][0] == "param"):
                return self.walk.step("view", mapping, node.func.attr)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _DUMPS and not node.args and not node.keywords:
            return self.walk.step("fields", self.arguments.quiet_value(node.func.value), node.func.attr)
        return self.walk.step("call", target)

    def _is_mocked(self, target: int) -> bool:
        row = self.walk.facts.nodes[target]
        owner = self.walk.facts.nodes[row[1]] if row[0] == "attr" else row
        return bool(owner[0] == "documented" and owner[2] == mocks.OF_MOCK)

    def _option(self, node: ast.Call) -> None:
        """`parser.add_argument("--swap-space")`: an attribute of what the parser gives."""
        assert isinstance(node.func, ast.Attribute)
        names = [constant_name(one) for one in node.args]
        long = [name[2:] for name in names if name.startswith("--")] or [name.lstrip("-") for name in names]
        given = [constant_name(one.value) for one in node.keywords if one.arg == "dest"]
        if given or (long and long[0]):
            name = (given or [long[0].replace("-", "_")])[0]
            options = self.walk.facts.options.setdefault(self._parser(node.func.value), [])
            options.append((name, span_of(node.args[0] if node.args else node)))

    def _parser(self, node: ast.expr) -> str:
        """Key of a parser; groups of options are of the parser that made them."""
        if isinstance(node, ast.Name):
            frame = self.walk.frame if self.walk.is_local(node.id) else self.walk.module
            origin = frame.origins.get(node.id)
            made = origin.func if isinstance(origin, ast.Call) else None
            if isinstance(made, ast.Attribute) and made.attr in _GROUPS:
                return self._parser(made.value)
            return f"{frame.qualname}:{node.id}"
        return f"{self.walk.frame.owner}:{self.walk.text(node)}"  # `self.parser` of this class

    def emit_call(self, node: Any, target: int, found: CallArguments, awaited: bool | None = None) -> None:
        """Note a call; keywords that are passed only under further conditions are calls of their own."""
        while self.walk.facts.nodes[target][0] == "partial":  # others were given before: positions are not known
            target = int(self.walk.facts.nodes[target][1])
            found.given = [row for row in found.given if row[1] is not None]
            found.has_star = found.has_double_star = found.partial = True
        self.walk.emit("call", node, target, arguments=found.row(), awaited=awaited)
        for conditions, row in found.conditional:
            with self.walk.under(*conditions):
                self.walk.emit("call", node, target, arguments=((row,), True, True, True, ()), awaited=awaited)

    def target_called(self, node: ast.Dict) -> None:
        """`{"_target_": "a.B", "key": 1}` is a call of a.B, as Hydra makes it."""
        known = {constant_name(key): (key, value) for key, value in zip(node.keys, node.values, strict=True) if key}
        dotted = constant_name(known["_target_"][1]) if "_target_" in known else ""
        if "." not in dotted or not all(part.isidentifier() for part in dotted.split(".")):
            return
        found = CallArguments()
        found.has_star = found.has_double_star = found.partial = True
        for name, (key, value) in known.items():
            if name and not name.startswith("_"):
                found.given.append((span_of(key), name, -1, self.arguments.literal(value), UNKNOWN, True))
        self.emit_call(node, self.walk.node("import", dotted), found)

    def _dict_method(self, node: ast.Call) -> None:
        """`kwargs.update(a=1)` and relatives on a known dict."""
        function = node.func
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
            return
        known = self.walk.holding(function.value.id).dicts.get(function.value.id)
        value = self.walk.lookup(function.value.id)
        growing = known is None and value > NONE and function.attr in ("setdefault", "update")
        if growing and self.walk.is_of_stranger(value):
            self.arguments.dict_begun(function.value.id)
            known = self.walk.frame.dicts.get(function.value.id)
        if known is None:
            return
        if function.attr == "update":
            name = function.value.id
            self.arguments.dict_changed(
                name, [(one, one.arg, one.value) for one in node.keywords if one.arg is not None]
            )
            for argument in (*node.args, *(one.value for one in node.keywords if one.arg is None)):
                other = self.arguments.known_dict(argument)
                rests = (self.arguments.quiet_value(argument),)
                self._dict_updated(name, other or KnownDict(more=True, rests=rests))
        elif function.attr == "setdefault" and len(node.args) == 2 and constant_name(node.args[0]):
            self.arguments.dict_changed(function.value.id, [(node.args[0], constant_name(node.args[0]), node.args[1])])
        elif function.attr in ("pop", "clear", "popitem"):
            if function.attr == "pop" and node.args and constant_name(node.args[0]):
                known.drop(constant_name(node.args[0]))
            else:
                known.entries.clear()
                known.more, known.rests, known.dropped = True, (), frozenset({KnownDict.ANY})

    def _dict_updated(self, name: str, other: KnownDict) -> None:
        known = self.walk.frame.dicts[name]
        known.more |= other.more
        self.arguments.join(known, other)
        for key, entries in other.entries.items():
            known.entries[key] = [*known.entries.get(key, []), *entries] if self.walk.conditions else entries

    def visited(self, node: ast.Call) -> list[int]:
        """Values of the positional arguments, the others visited too."""
        values = [self.expressions.expression(argument) for argument in node.args]
        for keyword in node.keywords:
            self.expressions.expression(keyword.value)
        return values

    def attribute_name(self, node: ast.Call) -> str:
        """The name in `getattr(x, "name")`, also where a constant of the file holds it; "" if it is not known."""
        second = node.args[1] if len(node.args) > 1 else node
        if isinstance(second, ast.Name):
            frame = self.walk.holding(second.id) if self.walk.is_local(second.id) else self.walk.module
            second = frame.origins.get(second.id) or second
        name = constant_name(second)
        return name if name.isidentifier() else ""

    def one_of_names(self, node: ast.Call) -> int:
        """Value of `getattr(x, name)` where `name` runs over strings that are written out, and nothing asks for it."""
        second = node.args[1] if len(node.args) == 2 else node
        names = [str(one.value) for one in self.arguments.strings(second)] if isinstance(second, ast.Name) else []
        if not isinstance(second, ast.Name) or not names:
            return UNKNOWN
        asked = re.compile(rf"(?<![\"'])\b{second.id}\b(?![\"'])")
        if any(asked.search(self.walk.facts.tests[abs(one) - 1][0]) for one in self.walk.conditions):
            return UNKNOWN
        base, found = self.expressions.base(node.args[0]), []
        for name in names if all(name.isidentifier() for name in names) else ():
            value = self.walk.attribute(base, name)
            if value > NONE:
                found.append(self.walk.node("documented", value, f"`{second.id}` is {name!r} once"))
                self.walk.emit("read", node, found[-1])
        return self.walk.either(found) if found else UNKNOWN

    def named_attribute(self, node: ast.Call) -> int | None:
        """Value of `x.name` in `getattr(x, "name", ...)`; None if the name is not known."""
        name = self.attribute_name(node)
        return self.walk.attribute(self.expressions.base(node.args[0]), name) if name else None

    def bound_call(
        self, node: Any, function: ast.expr, positional: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> int:
        """Arguments given to a function that something else calls, perhaps with more of them."""
        target = self.expressions.expression(function, read=False)
        found = self.arguments.arguments(positional, keywords)
        found.partial = True
        self.emit_call(node, target, found)
        return target


# ---------------------------------------------------------------------------------------------------------- builtins

_COPIES = frozenset({"frozenset", "list", "tuple", "set", "sorted", "reversed", "iter"})


def _getattr(calls: CallReader, node: ast.Call) -> int:
    value = calls.named_attribute(node)
    if value is None:
        calls.expressions.children(node, True)
        second = node.args[1] if len(node.args) > 1 else node
        named = calls.walk.facts.nodes[calls.arguments.quiet_value(second)]
        if named[0] == "arg" and named[2] == getattr(second, "id", ""):
            base = calls.arguments.quiet_value(node.args[0])
            if calls.walk.frame.qualname.endswith(".__getattr__") and base > NONE:
                return calls.walk.step("named", base)
        return calls.one_of_names(node)
    calls.walk.emit("read" if len(node.args) == 2 else "probe", node, value)
    if len(node.args) == 2:
        return value
    default = calls.expressions.expression(node.args[2])
    asked = f"hasattr({calls.walk.text(node.args[0])}, {calls.attribute_name(node)!r})"
    test = calls.walk.test_text(asked, node.args[0])
    with calls.walk.under(test + 1):  # the default stands for what is not there
        value = calls.expressions.guarded(value)
    with calls.walk.under(-test - 1):
        default = calls.expressions.guarded(default)
    return calls.walk.either([value, default])


def _hasattr(calls: CallReader, node: ast.Call) -> int:
    value = calls.named_attribute(node)
    if value is None:
        calls.expressions.children(node, True)
    else:
        calls.walk.emit("probe", node, value)
    return UNKNOWN


def _setattr(calls: CallReader, node: ast.Call) -> int:
    name = constant_name(node.args[1]) if len(node.args) == 3 else ""
    if not name.isidentifier():
        calls.expressions.children(node, True)
        return UNKNOWN
    value = calls.expressions.expression(node.args[2])
    target = ast.copy_location(ast.Attribute(node.args[0], name, ast.Store()), node)
    calls.walk.visit.assign(target, value, node.args[2])
    return UNKNOWN


def _delattr(calls: CallReader, node: ast.Call) -> int:
    value = calls.named_attribute(node)
    if value is not None:
        calls.walk.emit("delete", node, value)
    return UNKNOWN


def _isinstance(calls: CallReader, node: ast.Call) -> int:
    if len(node.args) == 2:
        calls.expressions.expression(node.args[0])
        instance_classes(calls, node.args[1])
    return UNKNOWN


def instance_classes(calls: CallReader, node: ast.expr, action: str = "isinstance") -> None:
    """Classes that something is checked against."""
    if isinstance(node, ast.Tuple):
        for element in node.elts:
            instance_classes(calls, element, action)
    elif isinstance(node, ast.BinOp):
        instance_classes(calls, node.left, action)
        instance_classes(calls, node.right, action)
    elif isinstance(node, ast.Name | ast.Attribute):
        calls.walk.emit(action, node, calls.expressions.expression(node, read=False))
    else:
        calls.expressions.expression(node)


def _super(calls: CallReader, node: ast.Call) -> int:
    owner = calls.walk.frame.owner
    return calls.walk.node("super", owner) if owner else UNKNOWN


def _type(calls: CallReader, node: ast.Call) -> int:
    """`type(x)` is x's class: calling or reading it goes on from there."""
    if len(node.args) != 1:
        calls.expressions.children(node, True)
        return UNKNOWN
    value = calls.expressions.value_used(node.args[0])
    row = calls.walk.facts.nodes[value]
    return int(row[1]) if row[0] in ("instance", "call") else UNKNOWN


def _copy(calls: CallReader, node: ast.Call) -> int:
    keyed = handed.over(-1, 0, name="key")(calls, node, UNKNOWN) if len(node.args) == 1 else None
    return UNKNOWN if keyed is None else keyed


def _extreme(calls: CallReader, node: ast.Call) -> int | None:
    """`max(rows, key=f)`."""
    found = _copy(calls, node) if len(node.args) == 1 else UNKNOWN
    if len(node.args) != 1:
        calls.visited(node)
    return calls.walk.iterated(found)


def _next(calls: CallReader, node: ast.Call) -> int:
    if not node.args:
        return UNKNOWN
    element = calls.expressions.loop_elements(node.args[0], False)
    for default in node.args[1:]:
        calls.expressions.expression(default)
    return element


def _enumerate(calls: CallReader, node: ast.Call) -> int:
    values = calls.visited(node)
    element = calls.walk.iterated(values[0]) if values else UNKNOWN
    return calls.walk.step("list", calls.walk.node("tuple", (UNKNOWN, element)))


def _zip(calls: CallReader, node: ast.Call) -> int:
    if len(node.args) == 1 and isinstance(node.args[0], ast.Starred):
        return calls.walk.step("columns", calls.walk.iterated(calls.expressions.expression(node.args[0].value)))
    elements = tuple(map(calls.walk.iterated, calls.visited(node)))
    return calls.walk.step("list", calls.walk.node("tuple", elements)) if elements else UNKNOWN


def _import(calls: CallReader, node: ast.Call) -> int:
    name = constant_name(node.args[0]) if node.args else ""
    if not name:
        calls.expressions.children(node, True)
        return UNKNOWN
    calls.walk.emit("string", node.args[0], calls.walk.node("import", name))
    return calls.walk.node("import", name if len(node.args) > 3 else name.partition(".")[0])


def _dict(calls: CallReader, node: ast.Call) -> int:
    known = calls.arguments.known_dict(node)
    given = calls.visited(node)
    if len(given) == 1 and known is not None and not known.entries:  # of pairs, or of a mapping
        row = calls.walk.facts.nodes[given[0]]
        pair = calls.walk.item(calls.walk.iterated(given[0]), 1)
        return given[0] if row[0] in ("dict", "keys") else calls.walk.step("dict", pair)
    return calls.arguments.keys(known) if known is not None else UNKNOWN


def _plain(calls: CallReader, node: ast.Call) -> int | None:
    """`staticmethod(f)` is f."""
    return calls.expressions.expression(node.args[0]) if len(node.args) == 1 else None


def _vars(calls: CallReader, node: ast.Call) -> int:
    """`vars(settings)`: its attributes as a mapping."""
    values = calls.visited(node)
    return calls.walk.step("fields", values[0]) if len(values) == 1 else UNKNOWN


def _shown(calls: CallReader, node: ast.Call, target: int = UNKNOWN) -> int | None:
    """`print("a.b")`, `warnings.filterwarnings("ignore", module="a.b")`: texts are shown, or are patterns."""
    if any(isinstance(each, ast.Starred) for each in node.args):
        return None
    for each in (*node.args, *(word.value for word in node.keywords)):
        if not isinstance(each, ast.Constant):
            calls.expressions.expression(each)
    return UNKNOWN


_BUILTIN_CALLS: dict[str, Callable[[CallReader, ast.Call], int | None]] = {
    "getattr": _getattr,
    "hasattr": _hasattr,
    "setattr": _setattr,
    "delattr": _delattr,
    "isinstance": _isinstance,
    "issubclass": _isinstance,
    "print": _shown,
    "staticmethod": _plain,
    "super": _super,
    "type": _type,
    "next": _next,
    "enumerate": _enumerate,
    "vars": _vars,
    "zip": _zip,
    "__import__": _import,
    "dict": _dict,
    "filter": lambda calls, node: handed.over(0, 1)(calls, node, UNKNOWN),
    "map": lambda calls, node: handed.mapped(calls, node, UNKNOWN),
    **dict.fromkeys(("max", "min"), _extreme),
    **dict.fromkeys(_COPIES, _copy),
}
"""By name."""


# ---------------------------------------------------------------------------------------------------------- wrappers

_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
_TAKING = frozenset({"get", "get_nowait", "pop", "popleft", "setdefault"})
_TRIES = re.compile(r"\btry:.*\b(?:import_module|__import__)\b.*\bexcept\b(?!.*\braise\b)", re.DOTALL)
_VIEWS = _TAKING | {"items", "popitem", "result", "values"}
"""Methods of containers and futures that give what is in them."""
_NAMED = frozenset({"attr", "call", "documented", "either", "global", "item", "iter"})
"""Kinds of values that may be a container elsewhere."""
_DUMPS = frozenset({"_asdict", "model_dump"})
"""Methods of records that give their fields."""
_LOGGERS = frozenset({"getLogger", "get_logger", "init_logger", "getChild", "get_child"})
_MAPPINGS = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "DefaultDict"})


def _import_module(calls: CallReader, node: ast.Call, target: int) -> int | None:
    name = constant_name(node.args[0]) if node.args else ""
    if not name or name.startswith("."):
        return None
    calls.walk.emit("string", node.args[0], calls.walk.node("import", name))
    return calls.walk.node("import", name)


def _find_spec(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """Asking for a module can fail only for its parent packages: no use of its own."""
    return UNKNOWN if node.args and constant_name(node.args[0]) else None


def _cast(calls: CallReader, node: ast.Call, target: int) -> int | None:
    if len(node.args) != 2:
        return None
    calls.expressions.expression(node.args[1])
    return calls.annotations.annotation(node.args[0])


def _context(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`contextlib.closing(x)` is entered as x."""
    return calls.walk.step("context", calls.expressions.expression(node.args[0])) if len(node.args) == 1 else None


def _type_variable(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`TypeVar("E", bound=Engine)`: what is annotated with it is an Engine."""
    bounds = [one.value for one in node.keywords if one.arg == "bound"] or node.args[1:]
    return calls.walk.either(map(calls.annotations.type_expression, bounds)) if bounds else None


def _same(calls: CallReader, node: ast.Call, target: int) -> int | None:
    return calls.expressions.expression(node.args[0]) if len(node.args) == 1 and not node.keywords else None


def _replaced(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`dataclasses.replace(x, field=1)` calls the class of x with further keywords."""
    if len(node.args) != 1:
        return None
    value = calls.expressions.expression(node.args[0])
    row = calls.walk.facts.nodes[value]
    found = calls.arguments.arguments([], node.keywords)
    found.has_star = found.has_double_star = found.partial = True
    if row[0] in ("instance", "call"):
        calls.emit_call(node, int(row[1]), found)
    return value


def _ray_get(calls: CallReader, node: ast.Call, target: int) -> int | None:
    if not node.args:
        return None
    value = calls.expressions.expression(node.args[0])
    row = calls.walk.facts.nodes[value]
    return calls.walk.step("call", row[1]) if row[0] == "remote" else UNKNOWN


def _remote(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`x.remote(...)`: x called, by somebody else."""
    assert isinstance(node.func, ast.Attribute)
    base = calls.walk.facts.nodes[target]
    inner = calls.arguments.quiet_value(node.func.value)
    if base[0] not in ("attr", "import") or calls.walk.facts.nodes[inner][0] == "import":
        return None  # `ray.remote(...)`: a function of a module
    calls.emit_call(node, inner, calls.arguments.arguments(node.args, node.keywords))
    return calls.walk.step("remote", inner)


def _options(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`Actor.options(...)` is the actor; only ray's `options` is followed by `.remote`."""
    assert isinstance(node.func, ast.Attribute)
    inner = calls.walk.facts.nodes[calls.arguments.quiet_value(node.func.value)]
    if inner[0] not in ("own", "global", "remote") or "ray" not in calls.walk.module.bound:
        return None
    calls.arguments.arguments(node.args, node.keywords)
    return calls.arguments.quiet_value(node.func.value)


def _validated(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`Model.model_validate({"key": 1})`: the class called with the keys of a mapping."""
    assert isinstance(node.func, ast.Attribute)
    value = calls.arguments.quiet_value(node.func.value)
    if len(node.args) != 1 or isinstance(node.args[0], ast.Starred) or calls.walk.is_of_stranger(value):
        return None
    calls.plain_call(node, target, None)
    calls.emit_call(node, value, calls.arguments.arguments([], [ast.keyword(None, node.args[0])]))
    return calls.walk.step("call", value)


def _as_dict(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`asdict(settings)`; with a factory or a filter its keys may be any."""
    if len(node.args) != 1 or node.keywords:
        return None
    return calls.walk.step("fields", calls.expressions.expression(node.args[0]))


def _parsed(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`parser.parse_args()`: nothing types it, and its attributes are known."""
    assert isinstance(node.func, ast.Attribute)
    key = calls._parser(node.func.value)
    if key not in calls.walk.facts.options:
        return None
    calls.plain_call(node, target, None)
    return calls.walk.node("options", key, "args")


def _module_put(calls: CallReader, node: ast.Call, _target: int) -> int:
    """`sys.modules.setdefault("a.b", fake)`."""
    if node.args and (made := constant_name(node.args[0])):
        calls.walk.emit("assign", node, calls.walk.node("import", made))
    return UNKNOWN


def _view(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`.values()`, `.items()`, `.get()` of dicts whose content is known by display or annotation."""
    assert isinstance(node.func, ast.Attribute)
    shown = node.func.value
    mapping = calls.arguments.quiet_value(shown)
    if calls.walk.dotted(mapping) == "sys.modules":
        return UNKNOWN  # what is not there is no failure
    base = calls.walk.facts.nodes[mapping]
    held = UNKNOWN
    key = constant_name(node.args[0]) if node.args and node.func.attr in ("get", "pop") else ""
    if key and base[0] in ("kwargs", "keys", "without"):
        held = calls.walk.item(mapping, key)
    elif base[0] in ("dict", "keys"):
        held = int(base[1 if base[0] == "dict" else 3])
    elif base[0] == "list" and node.func.attr in _TAKING:
        held = int(base[1])
    elif base[0] == "instance":
        kind = calls.walk.facts.nodes[base[1]]
        if kind[0] == "param" and len(kind[2]) == 2 and kind[1] in _MAPPINGS:
            held = calls.walk.step("instance", kind[2][1])
    if held <= NONE:
        return None
    for argument in node.args:
        calls.expressions.expression(argument)
    calls._dict_method(node)
    if node.func.attr in _TAKING:
        return held
    if node.func.attr == "popitem":
        return calls.walk.node("tuple", (UNKNOWN, held))
    return calls.walk.step("list", held if node.func.attr == "values" else calls.walk.node("tuple", (UNKNOWN, held)))


def _copied(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`rows.copy()`."""
    assert isinstance(node.func, ast.Attribute)
    value = calls.arguments.quiet_value(node.func.value)
    return value if calls.walk.facts.nodes[value][0] in ("list", "dict") and not node.args else None


def _logger(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """A logger's name is not a dotted path."""
    if len(node.args) != 1 or not constant_name(node.args[0]):
        return None
    found = CallArguments()
    found.given.append((span_of(node.args[0]), None, 0, calls.walk.text(node.args[0]), UNKNOWN, False))
    calls.emit_call(node, target, found)
    return calls.walk.step("call", target)


def _import_or_skip(calls: CallReader, node: ast.Call, target: int) -> int | None:
    """`pytest.importorskip("a", minversion="1.2")`: what follows runs only if that import works."""
    module = constant_name(node.args[0]) if node.args else ""
    if not module:
        return None
    value = calls.walk.node("import", module)
    switches, calls.walk.switches = calls.walk.switches, (*calls.walk.switches, "pytest.skip")
    number = calls.walk.next_try()
    with calls.walk.attempted(calls.walk.attempt(number, "body", ("ImportError",))):
        calls.walk.emit("import", node.args[0], value)
    calls.walk.switches = switches
    calls.walk.attempts = (*calls.walk.attempts, calls.walk.attempt(number, "else", ("ImportError",)))
    wanted = [keyword.value for keyword in node.keywords if keyword.arg == "minversion"] or node.args[1:2]
    for version in wanted:
        if constant_name(version):
            test = calls.walk.test_text(f"__version__({module!r}) >= {constant_name(version)!r}", node)
            calls.walk.conditions = (*calls.walk.conditions, test + 1)
    return value


_WRAPPERS: dict[str, Callable[[CallReader, ast.Call, int], int | None]] = {
    "attr.asdict": _as_dict,
    "attrs.asdict": _as_dict,
    "dataclasses.asdict": _as_dict,
    "itertools.product": lambda calls, node, target: _zip(calls, node),
    "itertools.zip_longest": lambda calls, node, target: _zip(calls, node),
    **handed.WRAPPERS,
    **mocks.WRAPPERS,
    "importlib.import_module": _import_module,
    "importlib.util.find_spec": _find_spec,
    **dict.fromkeys(("contextlib.aclosing", "contextlib.closing", "contextlib.nullcontext"), _context),
    "typing.TypeVar": _type_variable,
    "typing.cast": _cast,
    "typing_extensions.cast": _cast,
    "sys.modules.setdefault": _module_put,
    **dict.fromkeys(("copy.copy", "functools.cache", "functools.lru_cache"), _same),
    "copy.replace": _replaced,
    "dataclasses.replace": _replaced,
    "copy.deepcopy": _same,
    "pytest.importorskip": _import_or_skip,
    "warnings.filterwarnings": _shown,
    "ray.get": _ray_get,
    "ray.remote": _same,
}
_METHODS: dict[str, Callable[[CallReader, ast.Call, int], int | None]] = {
    "remote": _remote,
    "options": _options,
    **handed.METHODS,
    **mocks.METHODS,
    "values": _view,
    "items": _view,
    "get": _view,
    "get_nowait": _view,
    "parse_args": _parsed,
    "pop": _view,
    "model_validate": _validated,
    "parse_obj": _validated,
    "copy": _copied,
    "popitem": _view,
    "popleft": _view,
    **dict.fromkeys(_LOGGERS, _logger),
}
