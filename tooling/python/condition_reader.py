"""Read a test expression as a `Condition`: versions, probes for names and modules; everything else is `Undecided`.

    read_condition(ast.parse("Version(vllm.__version__) >= Version('0.9')", mode="eval").body, scope)
    # CompareVersion(VersionSource.MODULE, "vllm", ">=", "0.9")

Names are looked up in a `GuardScope`, which may lead to expressions and functions of other files; small pure functions
are evaluated by substitution. Nothing is run. The values are those of `values`, with conditions, versions and what is
imported among them.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tooling.python import versions
from tooling.python.access_paths import Attribute
from tooling.python.conditions import (
    FALSE,
    TRUE,
    AllOf,
    AnyOf,
    CompareVersion,
    Condition,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Not,
    Undecided,
    all_of,
    any_of,
    is_decidable,
    negated,
    undecided,
)
from tooling.python.operations import METHODS, UNKNOWN, Fuel, OutOfFuel, Symbolic, compare, concrete
from tooling.python.source import POSITIONAL, each_parameter
from tooling.python.values import ValueEvaluator
from tooling.python.versions import VersionText

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.python.access_paths import AccessPath

MAX_DEPTH = 3
"""How many functions and names deep a condition is followed."""
MAX_STATEMENTS = 30
MAX_PATHS = 16
"""Branches times statements that are followed; more is not a small function."""
_CONVERSIONS = frozenset({"tuple", "list", "str", "int", "float", "bool", "set", "sorted", "any", "all", "callable"})
_FIELDS = frozenset(
    {"__annotations__", "__dataclass_fields__", "__fields__", "__struct_fields__", "_fields", "model_fields"}
)
"""Attributes of classes that hold the names of their constructors' parameters."""
SKIPS = {"pytest.mark.skipif": -1, "unittest.skipIf": -1, "unittest.skipUnless": 1}
"""What skips a test: -1 where its condition holds, 1 where it fails."""
UNSKIPPED = "__unskipped__"
"""How the condition is noted that a decorator of the repository may put on a function."""
_RAISES = object()
"""What a path through a function gives that ends in `raise`."""
_CONTAINERS = (list, tuple, dict, set)
_CONDITIONS = (CompareVersion, HasName, HasParameter, ModuleExists, Constant, Undecided, Not, AllOf, AnyOf)


class GuardScope(Protocol):
    """Where the names of a condition come from."""

    def find(self, name: str) -> object:
        """Return a value or `GuardDefinition`; UNKNOWN if the name is bound to something else, None if nobody knows."""
        ...

    def symbol(self, dotted: str) -> object:
        """Return what a dotted path stands for if it leads into the repository; None for others."""
        ...


@dataclass(frozen=True, slots=True)
class GuardSymbol(Symbolic):
    """Something imported; `access_path` if it belongs to a package that is asked for, or leads there."""

    dotted: str
    access_path: AccessPath | None = None
    exists: Condition | None = None
    """For a name that a handler sets to None: when it is something else."""


@dataclass(frozen=True, slots=True)
class GuardNames(Symbolic):
    """A collection of names: `dir(x)`, or the parameters of x."""

    of: AccessPath
    parameters: bool


@dataclass(frozen=True, slots=True)
class GuardSkip(Symbolic):
    """A decorator or mark that skips a test."""

    unless: Condition


@dataclass(frozen=True, slots=True)
class GuardDefinition(Symbolic):
    """A function of the repository, or an expression that a name was bound to, with the scope to read it in."""

    node: ast.FunctionDef | ast.expr
    scope: GuardScope

    @property
    def function(self) -> ast.FunctionDef | None:
        """A function to be called, also where it is a lambda; None for a value."""
        if isinstance(self.node, ast.Lambda):
            return ast.FunctionDef("", self.node.args, [ast.Return(self.node.body)], [])
        return self.node if isinstance(self.node, ast.FunctionDef) else None


@dataclass(frozen=True, slots=True)
class _Inside:
    """Names of a function around, then those of its file."""

    around: GuardScope
    names: dict[str, object]

    def find(self, name: str) -> object:
        """See `GuardScope`."""
        return self.names[name] if name in self.names else self.around.find(name)

    def symbol(self, dotted: str) -> object:
        """See `GuardScope`."""
        return self.around.symbol(dotted)


def read_condition(test: ast.expr, scope: GuardScope) -> Condition:
    """Return what must hold for `test` to hold."""
    try:
        return ConditionReader(scope).condition(test)
    except OutOfFuel:
        return undecided(ast.unparse(test))


def as_condition(value: object) -> Condition | None:
    """Return a value as a condition; None where that is not known."""
    if isinstance(value, _CONDITIONS):
        return value
    if isinstance(value, GuardSymbol):
        return value.exists
    if isinstance(value, _CONTAINERS):  # an empty one that can grow may have grown by then
        return Constant(bool(value)) if value or isinstance(value, tuple) else None
    return Constant(bool(value)) if concrete(value) and not isinstance(value, re.Match | re.Pattern) else None


class ConditionReader(ValueEvaluator):
    """Evaluates partially: what a release or the run decides stays a condition."""

    def __init__(self, scope: GuardScope, depth: int = 0, fuel: Fuel | None = None) -> None:
        """depth: definitions entered so far."""
        super().__init__(fuel=fuel or Fuel())
        self.scope = scope
        self.depth = depth
        self._paths = 0

    def condition(self, node: ast.expr) -> Condition:
        """Read an expression as a condition."""
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(value) for value in node.values]
            return all_of(parts) if isinstance(node.op, ast.And) else any_of(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negated(self.condition(node.operand))
        found = as_condition(self.evaluate(node))
        return undecided(ast.unparse(node)) if found is None else found

    def truth(self, node: ast.expr) -> bool | None:
        """Whether an expression holds in every release."""
        found = self.condition(node)
        return found.value if isinstance(found, Constant) else None

    def _on_boolop(self, node: ast.BoolOp) -> object:
        found = self.condition(node)
        return found if is_decidable(found) else UNKNOWN

    def _on_unaryop(self, node: ast.UnaryOp) -> object:
        if not isinstance(node.op, ast.Not):
            return super()._on_unaryop(node)
        found = self.condition(node)
        return found if is_decidable(found) else UNKNOWN

    def _on_ifexp(self, node: ast.IfExp) -> object:
        test = self.condition(node.test)
        if isinstance(test, Constant):
            return self.evaluate(node.body if test.value else node.orelse)
        sides = [self.condition(side) for side in (node.body, node.orelse)]
        found = any_of([all_of([test, sides[0]]), all_of([negated(test), sides[1]])])
        return found if is_decidable(found) else UNKNOWN

    # ------------------------------------------------------------------------------------------------------- names

    def _on_name(self, node: ast.Name) -> object:
        if node.id == "TYPE_CHECKING":
            return Constant(False)
        return self.env[node.id] if node.id in self.env else self._followed(self.scope.find(node.id))

    def _followed(self, found: object) -> object:
        if isinstance(found, GuardDefinition):
            if isinstance(found.node, ast.FunctionDef) or self.depth >= MAX_DEPTH:
                return UNKNOWN
            return ConditionReader(found.scope, self.depth + 1, self.fuel).evaluate(found.node)
        if isinstance(found, GuardSymbol):
            version = versions.version_of_symbol(found.dotted)
            if version is not None:
                return version
            return Constant(False) if found.dotted == "typing.TYPE_CHECKING" else found
        return UNKNOWN if found is None else found

    def _on_attribute(self, node: ast.Attribute) -> object:
        if isinstance(node.value, ast.Name):
            kept = self.scope.find(f"{node.value.id}.{node.attr}")
            if isinstance(kept, GuardDefinition) and isinstance(kept.node, ast.FunctionDef):  # a property
                return self._inlined(kept.node, kept.scope, ast.Call(node, [], []))
            if isinstance(kept, GuardDefinition):
                return self._followed(kept)
        return self._member(self.evaluate(node.value), node.attr)

    def _member(self, base: object, name: str) -> object:
        """Return `base.name`."""
        if isinstance(base, GuardSymbol):
            dotted = f"{base.dotted}.{name}"
            inside = self.scope.symbol(dotted)
            if inside is not None and inside is not UNKNOWN:
                return self._followed(inside)
            if base.access_path is not None and name in _FIELDS:
                return GuardNames(base.access_path, parameters=True)
            if base.access_path is not None and name in ("__dict__", "__all__"):
                return GuardNames(base.access_path, parameters=False)
            if (
                name == "co_varnames"
                and isinstance(base.access_path, Attribute)
                and base.access_path.name == "__code__"
            ):
                return GuardNames(base.access_path.base, parameters=True)
            access_path = None if base.access_path is None else Attribute(base.access_path, name)
            return self._followed(GuardSymbol(dotted, access_path))
        if isinstance(base, VersionText):
            return versions.attribute(base, name)
        if isinstance(base, str) and name == "release" and base[:1].isdigit():
            return tuple(int(part) for part in base.split(".") if part.isdigit())
        return base if isinstance(base, GuardNames) and name in ("parameters", "args", "kwonlyargs") else UNKNOWN

    def _on_subscript(self, node: ast.Subscript) -> object:
        base = self.evaluate(node.value)
        if isinstance(base, dict):  # `{1: True, 2: False}[major]`
            key = self.evaluate(node.slice)
            ways = [(versions.compared(key, ast.Eq(), each), as_condition(value)) for each, value in base.items()]
            known = [
                all_of([test, held]) for test, held in ways if isinstance(test, CompareVersion) and held is not None
            ]
            return any_of(known) if known and len(known) == len(ways) else super()._on_subscript(node)
        return versions.item(base, node.slice) if isinstance(base, VersionText) else super()._on_subscript(node)

    def _comprehended(self, generators: list[ast.comprehension], element: Callable[[], Any]) -> Any:
        """`(int(x) for x in version.split("."))` is the version; `{f.name for f in fields(C)}` are C's parameters."""
        if len(generators) == 1 and not generators[0].ifs:
            source = self.evaluate(generators[0].iter)
            if isinstance(source, VersionText | GuardNames):
                return source
        return super()._comprehended(generators, element)

    # ------------------------------------------------------------------------------------------------- comparisons

    def _on_compare(self, node: ast.Compare) -> object:
        if isinstance(node.left, ast.IfExp):  # `("a" if new else "b") == "a"`
            test, *sides = (
                self.condition(each)
                for each in (
                    node.left.test,
                    *(ast.Compare(side, node.ops, node.comparators) for side in (node.left.body, node.left.orelse)),
                )
            )
            return any_of([all_of([test, sides[0]]), all_of([negated(test), sides[1]])])
        left, parts = self.evaluate(node.left), []
        for operator, operand in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(operand)
            part = as_condition(_compared(left, operator, right))
            if part is None:
                return UNKNOWN
            parts.append(part)
            left = right
        return all_of(parts)

    # ------------------------------------------------------------------------------------------------------- calls

    def _on_call(self, node: ast.Call) -> object:
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return UNKNOWN
        function = node.func
        found: object = UNKNOWN
        if isinstance(function, ast.Name):
            found = self.env[function.id] if function.id in self.env else self.scope.find(function.id)
            if found is None:
                return self._builtin(function.id, node)
        elif isinstance(function, ast.Call):
            found = self.evaluate(function)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            found = self.scope.find(ast.unparse(function))
        if isinstance(found, GuardSkip):
            return found  # put on a function
        if isinstance(found, GuardDefinition) and found.function is not None:
            return self._inlined(found.function, found.scope, node)
        return self._method(function, node) if isinstance(function, ast.Attribute) else super()._on_call(node)

    def _method(self, function: ast.Attribute, node: ast.Call) -> object:
        base = self.evaluate(function.value)
        if isinstance(base, VersionText) or (isinstance(base, str) and function.attr == "contains"):
            return versions.method(base, function.attr, self.arguments(node)[0])
        if isinstance(base, GuardNames):
            return base if function.attr in ("keys", "union") else UNKNOWN
        if isinstance(base, GuardSymbol):
            inside = self.scope.symbol(f"{base.dotted}.{function.attr}")
            if isinstance(inside, GuardDefinition) and inside.function is not None:
                return self._inlined(inside.function, inside.scope, node)
        if not isinstance(base, tuple(METHODS)):  # the base is not evaluated again: chains of calls may be long
            return self._library(self._member(base, function.attr), node)
        return super()._on_call(node)

    def call(self, node: ast.Call, name: str) -> object:
        """Evaluate a call of something other than a method."""
        return self._library(self.evaluate(node.func), node)

    def _library(self, function: object, node: ast.Call) -> object:
        """Evaluate a call by what the library is known to do, or by the function's name."""
        dotted = function.dotted if isinstance(function, GuardSymbol) else ""
        if not dotted:
            return UNKNOWN
        last = dotted.rpartition(".")[2]
        if last in ("signature", "getfullargspec", "fields") and dotted.startswith(("inspect.", "dataclasses.")):
            return self._names(node, parameters=True)
        if dotted in ("unittest.skip", "pytest.mark.skip"):
            return GuardSkip(FALSE)
        if dotted in SKIPS and node.args:
            test = self.condition(node.args[0])
            return GuardSkip(test if SKIPS[dotted] > 0 else negated(test))
        arguments = self.arguments(node)[0]
        if last in ("find_spec", "find_loader") and arguments and isinstance(arguments[0], str):
            return ModuleExists(arguments[0])
        found = versions.called(dotted, arguments)
        return self._by_name(last, node) if found is None else found

    def _by_name(self, name: str, node: ast.Call) -> object:
        """Evaluate a call whose name may say what its body does not, or is not at hand to say."""
        arguments, named = self.arguments(node)
        found = versions.availability(name, arguments, named)
        if found is None:
            minimum = next((named[each] for each in named if "version" in each), next(iter(named.values()), None))
            found = versions.helper(name, arguments, minimum)
        return UNKNOWN if found is None else found

    def _builtin(self, name: str, node: ast.Call) -> object:
        if name in ("hasattr", "getattr") and len(node.args) >= 2:
            return self._probe(name, node)
        if name in ("dir", "vars") and len(node.args) == 1:
            return self._names(node, parameters=False)
        if name == "map" and len(node.args) == 2:
            return self.evaluate(node.args[1])
        if name == UNSKIPPED:
            return self._unskipped(node.args[0])
        if name == "__version__":  # how `importorskip(minversion=)` is noted
            return versions.version_of_symbol(f"{getattr(node.args[0], 'value', '')}.__version__") or UNKNOWN
        if name in _CONVERSIONS and len(node.args) == 1:
            inner = self.evaluate(node.args[0])
            parts = [as_condition(each) for each in inner] if isinstance(inner, list | tuple) else []
            known = [each for each in parts if each is not None]
            if name in ("all", "any") and known and len(known) == len(parts):
                return all_of(known) if name == "all" else any_of(known)
            return inner if isinstance(inner, (VersionText, GuardNames, *_CONDITIONS)) else super()._on_call(node)
        return self._by_name(name, node)

    def _unskipped(self, decorator: ast.expr) -> object:
        """When what a decorator stands over is run."""
        made = self.evaluate(decorator)
        if not isinstance(made, GuardSkip):
            test = ast.Call(decorator, [ast.Constant(None)], [])
            made = self.evaluate(test)
        return made.unless if isinstance(made, GuardSkip) else UNKNOWN

    def _probe(self, name: str, node: ast.Call) -> object:
        base, member = self._probed(node.args[0]), self.evaluate(node.args[1])
        if not (isinstance(base, GuardSymbol) and isinstance(member, str)):
            return UNKNOWN
        if name == "getattr" and member == "__version__":
            return versions.version_of_symbol(f"{base.dotted}.__version__") or UNKNOWN
        if base.access_path is None or (
            name == "getattr"
            and not (len(node.args) == 3 and isinstance(node.args[2], ast.Constant) and not node.args[2].value)
        ):
            return UNKNOWN
        return HasName(base.access_path, member)

    def _probed(self, node: ast.expr) -> object:
        """Return what is asked for its names; of longer expressions the scope may know the value by their source."""
        if not isinstance(node, ast.Name):
            found = self.scope.find(ast.unparse(node))
            if isinstance(found, GuardSymbol):
                return found
        return self.evaluate(node)

    def _names(self, node: ast.Call, *, parameters: bool) -> object:
        of = self._probed(node.args[0]) if node.args else UNKNOWN
        if not isinstance(of, GuardSymbol) or of.access_path is None:
            return UNKNOWN
        return GuardNames(of.access_path, parameters)

    # --------------------------------------------------------------------------------------------------- functions

    def _inlined(self, function: ast.FunctionDef, scope: GuardScope, node: ast.Call) -> object:
        """Follow a call through the body of a small function."""
        if self.depth >= MAX_DEPTH:
            return UNKNOWN
        inner = ConditionReader(scope, self.depth + 1, self.fuel)
        result = inner.returned(function, *self.arguments(node)) if _is_small(function) else UNKNOWN
        unsure = UNKNOWN in result if isinstance(result, tuple) else result is UNKNOWN
        found = self._by_name(function.name, node) if unsure else UNKNOWN
        return result if found is UNKNOWN else found

    def returned(self, function: ast.FunctionDef, positional: Sequence[object], named: dict[str, object]) -> object:
        """Return what a call with these arguments gives."""
        bound = dict(named)
        for index, (entry, kind, default) in enumerate(each_parameter(function.args)):
            if kind in POSITIONAL and index < len(positional):
                bound[entry.arg] = positional[index]
            elif entry.arg not in bound:
                bound[entry.arg] = UNKNOWN if default is None else self.evaluate(default)
        result = self._run(function.body, bound)
        return UNKNOWN if result is _RAISES else result

    def _run(self, body: list[ast.stmt], bound: dict[str, object]) -> object:
        self._paths += 1
        if self._paths > MAX_PATHS:
            return UNKNOWN
        self.env = dict(bound)
        for index, statement in enumerate(body):
            rest = body[index + 1 :]
            if isinstance(statement, ast.Return):
                return None if statement.value is None else self.evaluate(statement.value)
            if isinstance(statement, ast.Raise):
                return _RAISES
            if isinstance(statement, ast.If):
                test, before = self.condition(statement.test), self.env
                if isinstance(test, Constant):
                    return self._run([*(statement.body if test.value else statement.orelse), *rest], before)
                then = self._run([*statement.body, *rest], before)
                return _chosen(test, then, self._run([*statement.orelse, *rest], before))
            if isinstance(statement, ast.Try):
                return self._try(statement, rest)
            if not self._simple(statement):
                return UNKNOWN
        return None

    def _simple(self, statement: ast.stmt) -> bool:
        """Follow a statement without branches; whether it is one that is understood."""
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self.bind(statement.targets[0], self.evaluate(statement.value))
            return isinstance(statement.targets[0], ast.Name | ast.Tuple)
        if isinstance(statement, ast.AnnAssign) and statement.value:
            self.bind(statement.target, self.evaluate(statement.value))
            return isinstance(statement.target, ast.Name)
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                self.env[name] = GuardSymbol(alias.name if alias.asname else name)
            return True
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                self.env[alias.asname or alias.name] = GuardSymbol(f"{statement.module}.{alias.name}")
            return True
        if isinstance(statement, ast.FunctionDef):
            self.env[statement.name] = GuardDefinition(statement, _Inside(self.scope, self.env))
            return True
        return isinstance(statement, ast.Expr | ast.Pass | ast.Global | ast.Assert)

    def _try(self, statement: ast.Try, rest: list[ast.stmt]) -> object:
        """`try: import x` / `except ImportError`: the body's path where x exists."""
        before = self.env
        body = self._run([*statement.body, *statement.orelse, *rest], before)
        modules: list[Condition] = []
        for each in statement.body:
            if isinstance(each, ast.Import):
                modules.extend(ModuleExists(alias.name) for alias in each.names)
            elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
                modules.append(ModuleExists(each.module))
        if not modules or not statement.handlers:
            return body
        return _chosen(all_of(modules), body, self._run([*statement.handlers[0].body, *rest], before))


def _compared(left: object, operator: ast.cmpop, right: object) -> object:
    if isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and (right is None or isinstance(right, bool)):
        # `x is None`, `x == True`, where x is a condition (something found or not)
        found = as_condition(left) if isinstance(left, (GuardSymbol, *_CONDITIONS)) else None
        if found is not None:
            same = isinstance(operator, ast.Is | ast.Eq)
            return found if (right is True) is same else negated(found)
    if isinstance(operator, ast.In | ast.NotIn):
        inside: object = UNKNOWN
        if isinstance(right, GuardNames) and isinstance(left, str):
            inside = (HasParameter if right.parameters else HasName)(right.of, left)
        elif isinstance(right, GuardSymbol) and right.dotted == "sys.modules" and isinstance(left, str):
            inside = ModuleExists(left)
        elif isinstance(left, VersionText) and (concrete(right)):
            inside = versions.within(left, right)
        else:
            return compare(operator, left, right)
        found = as_condition(inside)
        return UNKNOWN if found is None else negated(found) if isinstance(operator, ast.NotIn) else found
    return versions.compared(left, operator, right)


def _chosen(test: Condition, then: object, other: object) -> object:
    """`then if test else other`, where _RAISES cannot be reached."""
    if then is _RAISES or other is _RAISES or then == other:
        return other if then is _RAISES else then
    if isinstance(then, GuardSkip) or isinstance(other, GuardSkip):  # the other one is the test as it is
        then, other = (each.unless if isinstance(each, GuardSkip) else TRUE for each in (then, other))
        return GuardSkip(any_of([all_of([test, then]), all_of([negated(test), other])]))
    if isinstance(then, tuple) and isinstance(other, tuple) and len(then) == len(other):
        return tuple(_chosen(test, *pair) for pair in zip(then, other, strict=True))
    sides = [as_condition(then), as_condition(other)]
    if sides[0] is None or sides[1] is None or isinstance(then, _CONTAINERS) or isinstance(other, _CONTAINERS):
        return UNKNOWN
    return any_of([all_of([test, sides[0]]), all_of([negated(test), sides[1]])])


@functools.lru_cache(maxsize=2_000)
def _is_small(function: ast.FunctionDef) -> bool:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) <= MAX_STATEMENTS
