"""Read a test expression as a `Condition`: versions, probes for names and modules; everything else is `Undecided`.

    read_condition(ast.parse("Version(vllm.__version__) >= Version('0.9')", mode="eval").body, scope)
    # CompareVersion(VersionSource.MODULE, "vllm", ">=", "0.9")

Names are looked up in a `GuardScope`, which may lead to expressions and functions of other files; small pure functions
are evaluated by substitution. Nothing is run. Conditions, versions and imported things are among the values.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from tooling.python import versions
from tooling.python.access_paths import Attribute
from tooling.python.class_bodies import assigned_in, fields_of, function_in, is_decorated, is_small
from tooling.python.conditions import (
    FALSE,
    CompareVersion,
    Condition,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Undecided,
    all_of,
    any_of,
    evaluate,
    is_decidable,
    negated,
    undecided,
)
from tooling.python.function_bodies import (
    binding,
    bound_arguments,
    catches,
    exceptions,
    exits,
    is_lookup,
    record,
    skips,
    until_named,
)
from tooling.python.guard_values import (
    CONDITIONS,
    MAX_DEPTH,
    RAISES,
    GuardClass,
    GuardDefinition,
    GuardNames,
    GuardObject,
    GuardScope,
    GuardSkip,
    GuardSymbol,
    InnerScope,
    Listener,
    as_condition,
    asked_by,
    chosen,
    compared_values,
    names_in,
)
from tooling.python.module import last_name
from tooling.python.operations import BUILTINS, FAILURES, METHODS, UNKNOWN, Fuel, OutOfFuel, compare, regular
from tooling.python.source import dotted_name, each_parameter, parse_expression
from tooling.python.values import ValueEvaluator
from tooling.python.versions import VersionText

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.python.conditions import ReleaseAnswers

MAX_PATHS = 16
"""Branches times statements that are followed; more is not a small function."""
_CONVERSIONS = frozenset({"tuple", "list", "str", "int", "float", "bool", "set", "sorted", "any", "all", "callable"})
UNSKIPPED, RETURNS = "__unskipped__", "__returns__"
"""How the condition is noted that a decorator of the repository may put on a function, and a call on what follows."""
_MARKED = re.compile(rf"(?:{UNSKIPPED}|{RETURNS})\((.*)\)", re.DOTALL)
SKIPS = {"pytest.mark.skipif": -1, "pytest.mark.xfail": -1, "unittest.skipIf": -1, "unittest.skipUnless": 1}
"""What skips a test, or expects it to fail: -1 where its condition holds, 1 where it fails."""
_HANDLERS = "except"
"""A key that cannot be a name: the handlers of the `try` around, what follows it, and the same of the next one."""
_WORKED = ast.Pass()
"""Stands where such a body has ended without an error."""
_DECORATED = ast.Constant(object())  # type: ignore[arg-type]  # no literal of a program is the same object
"""Stands for the function that a decorator is called with."""
_IMPORTERS = frozenset({"__import__", "import_module"})
_ASK_FOR_MODULES = _IMPORTERS | {"find_spec", "find_loader"}
_SEARCHES = frozenset({"findall", "fullmatch", "match", "search", "split", "sub"})


def read_condition(test: ast.expr, scope: GuardScope) -> Condition:
    """Return what must hold for `test` to hold."""
    try:
        return ConditionReader(scope).condition(test)
    except OutOfFuel:
        return undecided(ast.unparse(test))


class ConditionReader(ValueEvaluator):
    """Evaluates partially: what a release or the run decides stays a condition."""

    def __init__(
        self, scope: GuardScope, depth: int = 0, fuel: Fuel | None = None, side: ReleaseAnswers | None = None
    ) -> None:
        """depth: definitions entered so far. side: the release for which everything is worked out."""
        super().__init__(fuel=fuel or Fuel())
        self.scope = scope
        self.depth = depth
        self.side = side
        self._paths = 0
        self._values: dict[int, tuple[ast.expr, object]] = {}

    def _inner(self, scope: GuardScope) -> ConditionReader:
        return ConditionReader(scope, self.depth + 1, self.fuel, self.side)

    def bind(self, target: ast.expr, value: object) -> None:
        """See `ValueEvaluator`."""
        self._values.clear()
        super().bind(target, value)

    def _once(self, node: ast.expr, read: Callable[[Any], object]) -> object:
        """Return the value of what has parts, which is read once until a name is bound again."""
        kept = self._values.get(id(node))
        if kept is None:
            try:
                kept = self._values[id(node)] = (node, read(node))
            except FAILURES:
                kept = self._values[id(node)] = (node, UNKNOWN)
        return kept[1]

    def condition(self, node: ast.expr) -> Condition:
        """Read an expression as a condition."""
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(value) for value in node.values]
            return all_of(parts) if isinstance(node.op, ast.And) else any_of(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negated(self.condition(node.operand))
        found = as_condition(self.evaluate(node))
        if self.side is not None and found is not None:
            held = evaluate(found, self.side.answer)
            return found if held is None else Constant(held)
        if found is not None and (self.side is not None or self.depth or is_decidable(found)):
            return found
        text = ast.unparse(node)
        return undecided(text) if self.depth else unread(text, self.scope)

    def truth(self, node: ast.expr) -> bool | None:
        """Whether an expression holds in every release."""
        found = self.condition(node)
        return found.value if isinstance(found, Constant) else None

    def _on_boolop(self, node: ast.BoolOp) -> object:
        return self._once(node, self._either)

    def _either(self, node: ast.BoolOp) -> object:
        for each in node.values if self.side is not None else ():  # `version or "0"` is one of them
            value = self.evaluate(each)
            held = as_condition(value)
            if not isinstance(held, Constant):
                break
            if held.value is isinstance(node.op, ast.Or) or each is node.values[-1]:
                return value
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
            return self._inner(found.scope).evaluate(found.node)
        if isinstance(found, GuardSymbol):
            version = versions.version_of_symbol(found.dotted)
            if version is not None:
                return self._known(version)
            if self.side is not None and found.access_path is not None:
                held = self.side.constant(found.access_path)
                return found if held is UNKNOWN else held
            return Constant(False) if found.dotted == "typing.TYPE_CHECKING" else found
        own = isinstance(found, GuardClass | GuardObject) and self.side is None  # read only for a release
        return UNKNOWN if found is None or own else found

    def _imported(self, dotted: str, level: int = 0) -> object:
        """Return what the import of a dotted path gives."""
        found = self.scope.symbol(dotted, level) or GuardSymbol("." * level + dotted)
        return found if isinstance(found, GuardDefinition) and found.function is not None else self._followed(found)

    def _known(self, found: object) -> object:
        """Return a version, or what is asked, itself where a release is at hand."""
        if self.side is not None and isinstance(found, HasName | HasParameter | ModuleExists | CompareVersion):
            held = self.side.answer(found)
            return found if held is None else Constant(held)
        if self.side is None or not isinstance(found, VersionText):
            return found
        text = self.side.version_of(found)
        return UNKNOWN if text is None else versions.known(found, text)

    def _on_attribute(self, node: ast.Attribute) -> object:
        if isinstance(node.value, ast.Name):
            key = f"{node.value.id}.{node.attr}"
            if key in self.env:  # a method has assigned it
                return self.env[key]
            kept = self.scope.find(key)
            if isinstance(kept, GuardDefinition) and isinstance(kept.node, ast.FunctionDef):  # a property
                return self._inlined(kept.node, kept.scope, ast.Call(node, [], []))
            if isinstance(kept, GuardDefinition):
                return self._followed(kept)
        return self._member(self.evaluate(node.value), node.attr)

    def _member(self, base: object, name: str) -> object:
        """Return `base.name`."""
        if isinstance(base, GuardObject | GuardClass):
            return self._own_member(base, name)
        if isinstance(base, GuardSymbol):
            dotted = f"{base.dotted}.{name}"
            inside = self.scope.symbol(dotted) if base.access_path is None else None
            if inside is not None and inside is not UNKNOWN:
                return self._followed(inside)
            names = names_in(base, name)
            if names is not None:
                return names
            access_path = None if base.access_path is None else Attribute(base.access_path, name)
            return self._followed(GuardSymbol(dotted, access_path))
        if isinstance(base, VersionText | Version | str):
            return versions.attribute(base, name)
        return base if isinstance(base, GuardNames) and name in ("parameters", "args", "kwonlyargs") else UNKNOWN

    def _own_member(self, base: GuardClass | GuardObject, name: str) -> object:
        """Return the value of an attribute of a class of the repository, or of an object of it."""
        owner, scope, made = self._having(base, name)
        if owner is None:
            return UNKNOWN
        function = function_in(owner, name)
        if function is not None:
            is_value = is_decorated(function, "property", "cached_property")
            return self._followed_call(function, scope, [made], {}) if is_value else UNKNOWN
        fields = fields_of(owner)
        given = {**dict(made.named), **dict(zip(fields, made.arguments or (), strict=False))}
        if name in fields and (name in given or (made.arguments is None and owner.decorator_list)):
            return given.get(name, UNKNOWN)
        values = assigned_in(owner, name)
        if not values or self.depth >= MAX_DEPTH:
            return UNKNOWN
        (value, method), inner = values[0], self._inner(scope)
        found: object = UNKNOWN
        if method is not None:
            known = made.arguments if method.name == "__init__" else None  # else a default is not what was passed
            passed: dict[str, object] = dict.fromkeys((entry.arg for entry, *_ in each_parameter(method.args)), UNKNOWN)
            named = passed if known is None else dict(made.named)
            bound = bound_arguments(method, [made, *(known or ())], named, inner.evaluate)
            if known is not None and is_small(method):
                made_so = ast.Return(ast.Attribute(ast.Name(method.args.args[0].arg), name))
                found = inner._run([*method.body, made_so], bound)
            inner.env = bound
        if found is UNKNOWN and len(values) == 1:
            found = inner.evaluate(value)  # the scope may know what is of a package
        return self._followed(scope.find(f"{owner.name}.{name}")) if found is UNKNOWN else found

    def _having(self, base: GuardClass | GuardObject, name: str) -> tuple[ast.ClassDef | None, GuardScope, GuardObject]:
        """Return the class that defines a name, the object's or one that it derives from, its scope, and the object."""
        made = base if isinstance(base, GuardObject) else GuardObject(base)
        owner: object = made.made
        for _ in range(MAX_DEPTH):
            body = owner.read() if isinstance(owner, GuardClass) else None
            if body is None or not isinstance(owner, GuardClass):
                break
            if function_in(body, name) or name in fields_of(body) or assigned_in(body, name):
                return body, owner.scope, made
            owner = self._inner(owner.scope).evaluate(body.bases[0]) if body.bases else None
        return None, self.scope, made

    def _on_subscript(self, node: ast.Subscript) -> object:
        base = self.evaluate(node.value)
        if isinstance(base, GuardNames) and isinstance(node.slice, ast.Slice):
            return base
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
        left, parts = self.evaluate(node.left), []
        for operator, operand in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(operand)
            compared = compared_values(left, operator, right)
            if compared is UNKNOWN and self.side is not None:  # the order of texts is what they say
                compared = self._compared_by_class(operator, left, right)
                compared = compare(operator, left, right) if compared is UNKNOWN else compared
            part = as_condition(compared)
            if part is None:
                return UNKNOWN
            parts.append(part)
            left = right
        return all_of(parts)

    def _compared_by_class(self, operator: ast.cmpop, left: object, right: object) -> object:
        """Compare by a special method of a class of the repository, or by the one that says the opposite."""
        sign = versions.OPERATORS.get(type(operator), "")
        sides = ((left, right, sign), (right, left, versions.FLIPPED.get(sign, "")))
        for one, other, asked in ((one, other, asked) for one, other, asked in sides if isinstance(one, GuardObject)):
            for name, holds in ((asked, True), (versions.OPPOSITE[asked], False)):
                owner, scope, made = self._having(one, versions.SPECIAL.get(name, ""))
                method = function_in(owner, versions.SPECIAL[name]) if owner is not None else None
                found = as_condition(self._followed_call(method, scope, [made, other], {})) if method else None
                if found is not None:
                    return found if holds else negated(found)
        return UNKNOWN

    # ------------------------------------------------------------------------------------------------------- calls

    def _on_call(self, node: ast.Call) -> object:
        return self._once(node, self._called)

    def _called(self, node: ast.Call) -> object:
        if self.side is None and any(isinstance(argument, ast.Starred) for argument in node.args):
            return UNKNOWN
        function = node.func
        found: object = UNKNOWN
        if isinstance(function, ast.Attribute) and function.attr == "issubset":
            return self._on_compare(ast.Compare(function.value, [ast.LtE()], node.args))
        if isinstance(function, ast.Name):
            found = self.env[function.id] if function.id in self.env else self.scope.find(function.id)
            if found is None:
                return self._builtin(function.id, node)
        elif isinstance(function, ast.Call):
            found = self.evaluate(function)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            owner = self.scope.find(function.value.id)
            is_own = isinstance(owner, GuardClass) and self.side is not None
            found = UNKNOWN if is_own else self.scope.find(ast.unparse(function))
        if isinstance(found, GuardSkip):
            return found  # put on a function
        if isinstance(found, GuardDefinition) and found.function is None and self.side is not None:
            found = self._followed(found)
        if isinstance(found, GuardClass | GuardObject) and self.side is not None:
            arguments, named = self.arguments(node)
            if isinstance(found, GuardClass):
                return GuardObject(found, tuple(arguments), tuple(named.items()))
            owner, scope, _ = self._having(found, "__call__")
            method = None if owner is None else function_in(owner, "__call__")
            return UNKNOWN if method is None else self._followed_call(method, scope, [found, *arguments], named)
        if isinstance(found, GuardDefinition) and found.function is not None:
            return self._inlined(found.function, found.scope, node)
        return self._method(function, node) if isinstance(function, ast.Attribute) else super()._on_call(node)

    def _method(self, function: ast.Attribute, node: ast.Call) -> object:
        base = self.evaluate(function.value)
        if isinstance(base, GuardObject | GuardClass):
            owner, scope, made = self._having(base, function.attr)
            method = function_in(owner, function.attr) if owner is not None else None
            if method is None:
                return UNKNOWN
            arguments, named = self.arguments(node)
            receiver = [] if is_decorated(method, "staticmethod") else [made]
            return self._followed_call(method, scope, [*receiver, *arguments], named)
        if isinstance(base, VersionText) or (isinstance(base, str) and function.attr == "contains"):
            return versions.method(base, function.attr, self.arguments(node)[0])
        if isinstance(base, GuardNames):
            name = self.evaluate(node.args[0]) if node.args else None
            if function.attr == "get" and isinstance(name, str):
                return self._known((HasParameter if base.parameters else HasName)(base.of, name))
            return base if function.attr in ("keys", "values", "union") else UNKNOWN
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
        if dotted in ("collections.namedtuple", "types.SimpleNamespace"):
            named = self.arguments(node)[1] if dotted == "types.SimpleNamespace" else None
            made = GuardClass(functools.partial(record, arguments[1] if named is None else [*named]), self.scope)
            return made if named is None else GuardObject(made, (), tuple(named.items()))
        if last in _ASK_FOR_MODULES and arguments and isinstance(arguments[0], str):
            return self._imported(arguments[0]) if last in _IMPORTERS else self._known(ModuleExists(arguments[0]))
        if self.side is not None and dotted.startswith("re.") and len(arguments) > 1:
            pattern = regular("compile", arguments)
            known = isinstance(pattern, re.Pattern) and all(isinstance(each, str) for each in arguments[1:])
            return getattr(pattern, last)(*arguments[1:]) if known and last in _SEARCHES else UNKNOWN
        found = versions.called(dotted, arguments, exactly=self.side is not None)
        return self._by_name(last, node) if found is None else self._known(found)

    def _by_name(self, name: str, node: ast.Call) -> object:
        """Evaluate a call whose name may say what its body does not, or is not at hand to say."""
        arguments, named = self.arguments(node)
        found = versions.availability(name, arguments, named)
        if found is None:
            minimum = next((named[each] for each in named if "version" in each), next(iter(named.values()), None))
            found = versions.helper(name, arguments, minimum)
        return UNKNOWN if found is None else self._known(found)

    def _builtin(self, name: str, node: ast.Call) -> object:
        if name in ("hasattr", "getattr") and len(node.args) >= 2:
            return self._probe(name, node)
        if name in ("dir", "vars") and len(node.args) == 1:
            return self._names(node, parameters=False)
        if name == "map" and len(node.args) == 2:
            items = self.evaluate(node.args[1])
            convert = BUILTINS.get(dotted_name(node.args[0]))
            return [convert(each) for each in items] if convert and isinstance(items, list | tuple) else items
        if name in (UNSKIPPED, RETURNS):
            return (self._unskipped if name == UNSKIPPED else self._returns)(node.args[0])
        if name == "__version__":  # how `importorskip(minversion=)` is noted
            return versions.version_of_symbol(f"{getattr(node.args[0], 'value', '')}.__version__") or UNKNOWN
        if name in _CONVERSIONS and len(node.args) == 1:
            inner = self.evaluate(node.args[0])
            parts = [as_condition(each) for each in inner] if isinstance(inner, list | tuple) else []
            known = [each for each in parts if each is not None]
            if name in ("all", "any") and known and len(known) == len(parts):
                return all_of(known) if name == "all" else any_of(known)
            return inner if isinstance(inner, (VersionText, GuardNames, *CONDITIONS)) else super()._on_call(node)
        is_import = name == "__import__"
        found = self._library(GuardSymbol("builtins.__import__"), node) if is_import else self._by_name(name, node)
        return super()._on_call(node) if found is UNKNOWN and name in BUILTINS else found

    def _unskipped(self, decorator: ast.expr) -> object:
        """When what a decorator stands over is run: by what skips it, or by what the function in its place does."""
        made = self.evaluate(decorator)
        if not isinstance(made, GuardSkip):
            made = self.evaluate(ast.Call(decorator, [_DECORATED], []))
        made = self._runs(made)
        return made.unless if isinstance(made, GuardSkip) else UNKNOWN if made is RAISES else made

    def _runs(self, made: object) -> object:
        """When a function that stands for a decorated one runs that; other things as they are. One that returns
        `function(*args) if up.MAJOR < 2 else None` does where `up.MAJOR < 2`."""
        held = made.scope.names if isinstance(made, GuardDefinition) and isinstance(made.scope, InnerScope) else {}
        name = next((name for name, value in held.items() if value is _DECORATED.value), "")
        if not isinstance(made, GuardDefinition) or made.function is None or not name:
            return True if made is _DECORATED.value else made
        body = [*until_named(made.function.body, name), ast.Return(ast.Constant(False))]
        reader = ConditionReader(made.scope, self.depth, self.fuel, self.side)
        return reader._run(body, bound_arguments(made.function, [], {}, reader.evaluate))

    def _returns(self, call: ast.expr) -> object:
        """Whether a call of a function of the repository comes back."""
        found = self.scope.find(dotted_name(getattr(call, "func", call)))
        function = found.function if isinstance(found, GuardDefinition) and self.side is not None else None
        if not isinstance(found, GuardDefinition) or not isinstance(call, ast.Call) or function is None:
            return UNKNOWN
        inner = self._inner(found.scope)
        result = inner._run(function.body, bound_arguments(function, *self.arguments(call), inner.evaluate))
        if result is UNKNOWN or isinstance(result, GuardSkip):
            return result.unless if isinstance(result, GuardSkip) else UNKNOWN
        return Constant(result is not RAISES)

    def _probe(self, name: str, node: ast.Call) -> object:
        base, member = self._probed(node.args[0]), self.evaluate(node.args[1])
        if not (isinstance(base, GuardSymbol) and isinstance(member, str)):
            return UNKNOWN
        if name == "getattr" and member == "__version__":
            return self._known(versions.version_of_symbol(f"{base.dotted}.__version__") or UNKNOWN)
        if base.access_path is None or (
            name == "getattr"
            and not (len(node.args) == 3 and isinstance(node.args[2], ast.Constant) and not node.args[2].value)
        ):
            return UNKNOWN
        return self._known(HasName(base.access_path, member))

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
        self._known((HasParameter if parameters else HasName)(of.access_path, ""))
        return GuardNames(of.access_path, parameters)

    # --------------------------------------------------------------------------------------------------- functions

    def _inlined(self, function: ast.FunctionDef, scope: GuardScope, node: ast.Call) -> object:
        """Follow a call through the body of a small function."""
        if self.depth >= MAX_DEPTH:
            return UNKNOWN
        result = self._followed_call(function, scope, *self.arguments(node))
        unsure = UNKNOWN in result if isinstance(result, tuple) else result is UNKNOWN
        found = self._by_name(function.name, node) if unsure else UNKNOWN
        return result if found is UNKNOWN else found

    def _followed_call(
        self, function: ast.FunctionDef, scope: GuardScope, positional: Sequence[object], named: dict[str, object]
    ) -> object:
        if self.depth >= MAX_DEPTH or not is_small(function):
            return UNKNOWN
        inner = self._inner(scope)
        result = inner._run(function.body, bound_arguments(function, positional, named, inner.evaluate))
        return UNKNOWN if result is RAISES else result

    def _run(self, body: list[ast.stmt], bound: dict[str, object]) -> object:
        self._paths += 1
        if self._paths > MAX_PATHS:
            return UNKNOWN
        self.env = dict(bound)
        self._values.clear()
        for index, statement in enumerate(body):
            rest = body[index + 1 :]
            if isinstance(statement, ast.Return):
                return self._returned(statement.value)
            if statement is _WORKED:
                self.env[_HANDLERS] = self.env[_HANDLERS][2]  # type: ignore[index]  # `_try` put it there
                continue
            if isinstance(statement, ast.Raise) and not skips(statement):
                return self._raised(statement)
            if isinstance(statement, ast.Assert):
                return self._branched(ast.If(statement.test, [ast.Pass()], [ast.Raise()]), rest)
            if skips(statement) or exits(statement):
                return GuardSkip(FALSE) if skips(statement) else RAISES
            if isinstance(statement, ast.If | ast.For | ast.Try):
                return self._branched(statement, rest)
            if not self._simple(statement):
                return UNKNOWN
        return None

    def _returned(self, value: ast.expr | None) -> object:
        if isinstance(value, ast.Lambda):
            return GuardDefinition(value, InnerScope(self.scope, self.env))
        return None if value is None else self.evaluate(value)

    def _branched(self, statement: ast.If | ast.For | ast.Try, rest: list[ast.stmt]) -> object:
        if isinstance(statement, ast.Try):
            return self._try(statement, rest)
        before = self.env
        if isinstance(statement, ast.For):
            items = self.items(statement.iter)
            leaves = any(isinstance(inner, ast.Break | ast.Continue) for inner in ast.walk(statement))
            if items is None or leaves or len(items) > MAX_PATHS:
                return UNKNOWN
            turns = [(binding(statement.target, each), *statement.body) for each in items]
            return self._run([*itertools.chain(*turns), *statement.orelse, *rest], before)
        test = self.condition(statement.test)
        if isinstance(test, Constant):
            return self._run([*(statement.body if test.value else statement.orelse), *rest], before)
        ways = [self._run([*way, *rest], before) for way in (statement.body, statement.orelse)]
        return chosen(test, *(map(self._runs, ways) if _DECORATED.value in ways else ways))

    def _simple(self, statement: ast.stmt) -> bool:
        """Follow a statement without branches; whether it is one that is understood."""
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], self.evaluate(statement.value)
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                target = ast.Name(f"{target.value.id}.{target.attr}")
            self.bind(target, value)
            return isinstance(target, ast.Name | ast.Tuple)
        if isinstance(statement, ast.AnnAssign) and statement.value:
            self.bind(statement.target, self.evaluate(statement.value))
            return isinstance(statement.target, ast.Name)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            read = ast.BinOp(ast.Name(statement.target.id, ast.Load()), statement.op, statement.value)
            self.bind(statement.target, self.evaluate(read))
            return True
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                self.env[name] = self._imported(alias.name if alias.asname else name)
            return True
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                dotted = f"{statement.module}.{alias.name}" if statement.module else alias.name
                self.env[alias.asname or alias.name] = self._imported(dotted, statement.level)
            return True
        if isinstance(statement, ast.FunctionDef):
            self.env[statement.name] = GuardDefinition(statement, InnerScope(self.scope, self.env))
            return True
        return isinstance(statement, ast.Expr | ast.Pass | ast.Global)

    def _raised(self, statement: ast.Raise) -> object:
        """Go on in the handler around that catches it."""
        around: Any = self.env.get(_HANDLERS)
        while around is not None:
            handlers, rest, around = around
            for handler in handlers:
                if catches(exceptions(handler.type), exceptions(statement.exc)[0]):
                    return self._run([*handler.body, *rest], {**self.env, _HANDLERS: around})
        return RAISES

    def _try(self, statement: ast.Try, rest: list[ast.stmt]) -> object:
        """`try: import x` / `except ImportError`: the body's path where x exists, and that of `getattr(x, "name")`."""
        before = self.env
        handlers = {**before, _HANDLERS: (statement.handlers, rest, before.get(_HANDLERS))}
        body = self._run([*statement.body, _WORKED, *statement.orelse, *rest], handlers)
        self.env, sure = before, True
        tried: list[Condition] = []
        for each in statement.body:
            if isinstance(each, ast.Import):
                tried.extend(ModuleExists(alias.name) for alias in each.names)
            elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
                tried.append(ModuleExists(each.module))
            elif isinstance(value := getattr(each, "value", None), ast.Call) and last_name(value.func) in _IMPORTERS:
                module = self.evaluate(value.args[0]) if len(value.args) == 1 else UNKNOWN
                tried.extend([ModuleExists(module)] if isinstance(module, str) else [])
                sure = sure and isinstance(module, str)
            elif isinstance(each, ast.Expr) and not isinstance(each.value, ast.Constant):  # only to see if it works
                asked = each.value
                if isinstance(asked, ast.Attribute):
                    asked = ast.Call(ast.Name("getattr"), [asked.value, ast.Constant(asked.attr)], [])
                found = self._probe("hasattr", asked) if is_lookup(asked) else UNKNOWN
                tried.extend([found] if isinstance(found, HasName | Constant) else [])
                sure = sure and isinstance(found, HasName | Constant)
        if not statement.handlers or (sure and not tried):
            return UNKNOWN if body is RAISES and statement.handlers else body
        other = self._run([*statement.handlers[0].body, *rest], before)
        works = all_of(tried)
        held = evaluate(works, self.side.answer) if self.side is not None and sure else None
        if held is not None:
            return body if held else other
        return chosen(works, body, other) if sure else body if body == other else UNKNOWN


def unread(text: str, scope: GuardScope) -> Undecided:
    """Make a condition of a test that is read when somebody asks."""
    return undecided(_MARKED.sub(r"\1", text), Unread(text, scope))


@dataclass(frozen=True, slots=True)
class Unread:
    """A test as it is written, with its names: see `OpenQuestion`."""

    text: str
    scope: GuardScope

    def holds(self, side: ReleaseAnswers) -> bool | None:
        """See `OpenQuestion`."""
        test = parse_expression(self.text)
        with contextlib.suppress(OutOfFuel):
            return (
                None if test is None else evaluate(ConditionReader(self.scope, side=side).condition(test), side.answer)
            )
        return None

    def about(self) -> frozenset[str]:
        """See `OpenQuestion`; also by what its names stand for."""
        side = Listener()
        test = parse_expression(self.text)
        if test is None:
            return frozenset()
        texts = asked_by(test, self.scope, side, lambda where: ConditionReader(where, side=side).condition)
        return frozenset(side.names | texts if side.asks else side.names) - {""}
