"""A test expression as a `Condition`: versions, probes for names and modules; everything else is `Undecided`.

    condition_of(ast.parse("Version(vllm.__version__) >= Version('0.9')", mode="eval").body, scope)
    # CompareVersion(VersionSource.MODULE, "vllm", ">=", "0.9")

Names are looked up in a `GuardScope`, which may lead to expressions and functions of other files; small
pure functions are evaluated by substitution. Nothing is run.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tooling.upgrade.usage import guards
from tooling.upgrade.usage.guards import (
    NOTHING,
    FunctionBody,
    GuardDefinition,
    GuardNames,
    GuardScope,
    GuardSymbol,
    Literal,
    Truth,
    Value,
    VersionText,
    all_of,
    any_of,
    is_decidable,
    negated,
    undecided,
)
from tooling.upgrade.uses import Attribute, Condition, Constant, HasName, HasParameter, ModuleExists

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["condition_of", "is_decidable", "negated"]

MAX_DEPTH = 3
"""How many functions and names deep a condition is followed."""
_CONVERSIONS = frozenset({"tuple", "list", "str", "int", "float", "bool", "set", "sorted", "any", "all"})


def condition_of(test: ast.expr, scope: GuardScope) -> Condition:
    """What must hold for `test` to hold."""
    return _Evaluator(0).truth(test, scope)


class _Evaluator:
    """Partial evaluation. `depth`: definitions entered so far."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    # --------------------------------------------------------------------------------------------------- conditions

    def truth(self, node: ast.expr, scope: GuardScope) -> Condition:
        """An expression as a condition."""
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(value, scope) for value in node.values]
            return all_of(parts) if isinstance(node.op, ast.And) else any_of(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negated(self.truth(node.operand, scope))
        value = self.value(node, scope)
        if isinstance(value, Truth):
            return value.condition
        if isinstance(value, Literal):
            return Constant(bool(value.value))
        if isinstance(value, GuardSymbol) and value.exists is not None:
            return value.exists
        return undecided(ast.unparse(node))

    # ------------------------------------------------------------------------------------------------------- values

    def value(self, node: ast.expr, scope: GuardScope) -> Value:
        """What an expression is worth."""
        handler = _HANDLERS.get(type(node))
        return NOTHING if handler is None else handler(self, node, scope)

    def constant(self, node: ast.Constant, scope: GuardScope) -> Value:
        """A literal."""
        return Literal(node.value)

    def sequence(self, node: Any, scope: GuardScope) -> Value:
        """A tuple or list of known things; a set of field names is a collection of names."""
        values = [self.value(element, scope) for element in node.elts]
        if all(isinstance(value, Literal) for value in values):
            return Literal(tuple(value.value for value in values if isinstance(value, Literal)))
        return NOTHING

    def logic(self, node: ast.expr, scope: GuardScope) -> Value:
        """and, or, not."""
        condition = self.truth(node, scope)
        return Truth(condition) if is_decidable(condition) else NOTHING

    def conditional(self, node: ast.IfExp, scope: GuardScope) -> Value:
        """`a if test else b`."""
        test = self.truth(node.test, scope)
        if isinstance(test, Constant):
            return self.value(node.body if test.value else node.orelse, scope)
        sides = [self.truth(side, scope) for side in (node.body, node.orelse)]
        condition = any_of([all_of([test, sides[0]]), all_of([negated(test), sides[1]])])
        return Truth(condition) if is_decidable(condition) else NOTHING

    def name(self, node: ast.Name, scope: GuardScope) -> Value:
        """A name, followed to what it was bound to."""
        if node.id == "TYPE_CHECKING":
            return Truth(Constant(False))
        return self._followed(scope.find(node.id))

    def _followed(self, found: Value | GuardDefinition | None) -> Value:
        if isinstance(found, GuardDefinition):
            if isinstance(found.node, ast.FunctionDef) or self._depth >= MAX_DEPTH:
                return NOTHING
            return _Evaluator(self._depth + 1).value(found.node, found.scope)
        if isinstance(found, GuardSymbol):
            version = guards.version_of_symbol(found.dotted)
            if version is not None:
                return version
            return Truth(Constant(False)) if found.dotted == "typing.TYPE_CHECKING" else found
        return NOTHING if found is None else found

    def attribute(self, node: ast.Attribute, scope: GuardScope) -> Value:
        """`base.name`."""
        if isinstance(node.value, ast.Name):
            kept = scope.find(f"{node.value.id}.{node.attr}")
            if isinstance(kept, GuardDefinition):
                return self._followed(kept)
        base = self.value(node.value, scope)
        if isinstance(base, GuardSymbol):
            dotted = f"{base.dotted}.{node.attr}"
            inside = scope.symbol(dotted)
            if inside is not None:
                return self._followed(inside)
            access_path = None if base.access_path is None else Attribute(base.access_path, node.attr)
            return self._followed(GuardSymbol(dotted, access_path))
        if isinstance(base, VersionText):
            return guards.attribute(base, node.attr)
        if isinstance(base, GuardNames):
            return base if node.attr in ("parameters", "args", "kwonlyargs") else NOTHING
        return NOTHING

    def subscript(self, node: ast.Subscript, scope: GuardScope) -> Value:
        """`version[:2]`; `{">": operator.gt}[operation]`."""
        base = self.value(node.value, scope)
        if isinstance(base, VersionText):
            return guards.item(base, node.slice)
        table = self._dict(node.value, scope)
        key = self.value(node.slice, scope)
        if table is not None and isinstance(key, Literal):
            for entry, value in zip(table.keys, table.values, strict=True):
                if isinstance(entry, ast.Constant) and entry.value == key.value:
                    return self.value(value, scope)
        return NOTHING

    def _dict(self, node: ast.expr, scope: GuardScope) -> ast.Dict | None:
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            node = found.node if isinstance(found, GuardDefinition) and isinstance(found.node, ast.expr) else node
        return node if isinstance(node, ast.Dict) else None

    def comprehension(self, node: Any, scope: GuardScope) -> Value:
        """`(int(x) for x in version.split("."))` is the version; `{f.name for f in fields(C)}` are C's parameters."""
        if len(node.generators) != 1 or node.generators[0].ifs:
            return NOTHING
        source = self.value(node.generators[0].iter, scope)
        return source if isinstance(source, VersionText | GuardNames) else NOTHING

    # -------------------------------------------------------------------------------------------------- comparisons

    def compare(self, node: ast.Compare, scope: GuardScope) -> Value:
        """Comparisons, chained ones too."""
        left, parts = node.left, []
        for operator, right in zip(node.ops, node.comparators, strict=True):
            part = self._compared(left, operator, right, scope)
            if not isinstance(part, Truth | Literal):
                return NOTHING
            parts.append(part.condition if isinstance(part, Truth) else Constant(bool(part.value)))
            left = right
        return Truth(all_of(parts))

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, scope: GuardScope) -> Value:
        first, second = self.value(left, scope), self.value(right, scope)
        if isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and isinstance(second, Literal):
            special = _against(first, second.value, isinstance(operator, ast.Is | ast.Eq))
            if special is not None:
                return special
        if isinstance(operator, ast.In | ast.NotIn):
            inside = self._inside(first, second)
            if isinstance(inside, Truth) and isinstance(operator, ast.NotIn):
                return Truth(negated(inside.condition))
            return inside
        return guards.compared(first, guards.compare_operator(operator), second)

    def _inside(self, member: Value, container: Value) -> Value:
        if isinstance(container, GuardNames) and isinstance(member, Literal) and isinstance(member.value, str):
            kind = HasParameter if container.parameters else HasName
            return Truth(kind(container.of, member.value))
        if isinstance(member, VersionText) and isinstance(container, Literal):
            return guards.within(member, container)
        if isinstance(member, Literal) and isinstance(container, Literal):
            if isinstance(container.value, tuple):
                return Literal(member.value in container.value)
            return (
                Literal(member.value in container.value)
                if isinstance(container.value, str) and isinstance(member.value, str)
                else NOTHING
            )
        return NOTHING

    # -------------------------------------------------------------------------------------------------------- calls

    def call(self, node: ast.Call, scope: GuardScope) -> Value:
        """Calls: builtins, methods of versions, functions of the repository, functions of libraries."""
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return NOTHING
        function = node.func
        if isinstance(function, ast.Name):
            found = scope.find(function.id)
            if found is None:
                return self._builtin(function.id, node, scope)
            if isinstance(found, GuardDefinition) and isinstance(found.node, ast.FunctionDef):
                return self._inlined(found, node, scope)
        if isinstance(function, ast.Attribute):
            base = self.value(function.value, scope)
            if isinstance(base, VersionText):
                return guards.method(base, function.attr, self._arguments(node, scope))
            if isinstance(base, GuardNames):
                return base if function.attr in ("keys", "union") else NOTHING
            if isinstance(base, GuardSymbol):
                inside = scope.symbol(f"{base.dotted}.{function.attr}")
                if isinstance(inside, GuardDefinition) and isinstance(inside.node, ast.FunctionDef):
                    return self._inlined(inside, node, scope)
        return self._library(self.value(function, scope), node, scope)

    def _arguments(self, node: ast.Call, scope: GuardScope) -> list[Value]:
        return [self.value(argument, scope) for argument in node.args]

    def _inlined(self, found: GuardDefinition, node: ast.Call, scope: GuardScope) -> Value:
        assert isinstance(found.node, ast.FunctionDef)
        if self._depth >= MAX_DEPTH:
            return NOTHING
        named = {one.arg: self.value(one.value, scope) for one in node.keywords if one.arg is not None}
        body = FunctionBody(_Evaluator(self._depth + 1))
        result = body.result(found.node, found.scope, self._arguments(node, scope), named)
        return self._by_name(found.node.name, node, scope) if result == NOTHING else result

    def _by_name(self, name: str, node: ast.Call, scope: GuardScope) -> Value:
        """A call whose name may say what its body does not, or is not at hand to say."""
        arguments = self._arguments(node, scope)
        named = {one.arg: self.value(one.value, scope) for one in node.keywords if one.arg is not None}
        found = guards.availability(name, arguments, named)
        if found is None:
            minimum = next((named[each] for each in named if "version" in each), next(iter(named.values()), None))
            found = guards.helper(name, arguments, minimum)
        return NOTHING if found is None else found

    def _builtin(self, name: str, node: ast.Call, scope: GuardScope) -> Value:
        if name in ("hasattr", "getattr") and len(node.args) >= 2:
            return self._probe(name, node, scope)
        if name == "dir" and len(node.args) == 1:
            return self._names(node, scope, parameters=False)
        if name == "map" and len(node.args) == 2:
            return self.value(node.args[1], scope)
        if name == "__version__":  # how `importorskip(minversion=)` is noted
            return guards.version_of_symbol(f"{getattr(node.args[0], 'value', '')}.__version__") or NOTHING
        if name in _CONVERSIONS and len(node.args) == 1:
            inner = self.value(node.args[0], scope)
            return inner if isinstance(inner, VersionText | GuardNames | Truth) else NOTHING
        return self._by_name(name, node, scope)

    def _probe(self, name: str, node: ast.Call, scope: GuardScope) -> Value:
        base, member = self._probed(node.args[0], scope), self.value(node.args[1], scope)
        if not (isinstance(base, GuardSymbol) and isinstance(member, Literal) and isinstance(member.value, str)):
            return NOTHING
        if name == "getattr" and member.value == "__version__":
            return guards.version_of_symbol(f"{base.dotted}.__version__") or NOTHING
        if base.access_path is None or (
            name == "getattr"
            and not (len(node.args) == 3 and isinstance(node.args[2], ast.Constant) and not node.args[2].value)
        ):
            return NOTHING
        return Truth(HasName(base.access_path, member.value))

    def _probed(self, node: ast.expr, scope: GuardScope) -> Value:
        """What is asked for its names; of longer expressions the walk over the file noted the value by their source."""
        if not isinstance(node, ast.Name):
            found = scope.find(ast.unparse(node))
            if isinstance(found, GuardSymbol):
                return found
        return self.value(node, scope)

    def _names(self, node: ast.Call, scope: GuardScope, *, parameters: bool) -> Value:
        of = self._probed(node.args[0], scope) if node.args else NOTHING
        return (
            GuardNames(of.access_path, parameters)
            if isinstance(of, GuardSymbol) and of.access_path is not None
            else NOTHING
        )

    def _library(self, function: Value, node: ast.Call, scope: GuardScope) -> Value:
        dotted = guards.library_symbol(function)
        if not dotted:
            return NOTHING
        last = dotted.rpartition(".")[2]
        if last in ("signature", "getfullargspec", "fields") and dotted.startswith(("inspect.", "dataclasses.")):
            return self._names(node, scope, parameters=True)
        arguments = self._arguments(node, scope)
        if last in ("find_spec", "find_loader") and arguments and isinstance(arguments[0], Literal):
            return Truth(ModuleExists(str(arguments[0].value)))
        value = guards.called(dotted, arguments)
        if value is not None:
            return value
        return self._by_name(last, node, scope)


def _against(value: Value, other: object, equal: bool) -> Truth | None:
    """`x is None`, `x == True`, where x is a condition (something found or not)."""
    condition = (
        value.condition if isinstance(value, Truth) else value.exists if isinstance(value, GuardSymbol) else None
    )
    if condition is None or not (other is None or isinstance(other, bool)):
        return None
    holds = condition if other is True else negated(condition)
    return Truth(holds if equal else negated(holds))


_HANDLERS: dict[type[ast.expr], Callable[[Any, Any, GuardScope], Value]] = {
    ast.Constant: _Evaluator.constant,
    ast.Tuple: _Evaluator.sequence,
    ast.List: _Evaluator.sequence,
    ast.Set: _Evaluator.sequence,
    ast.BoolOp: _Evaluator.logic,
    ast.UnaryOp: lambda walk, node, scope: walk.logic(node, scope) if isinstance(node.op, ast.Not) else NOTHING,
    ast.IfExp: _Evaluator.conditional,
    ast.Name: _Evaluator.name,
    ast.Attribute: _Evaluator.attribute,
    ast.Subscript: _Evaluator.subscript,
    ast.GeneratorExp: _Evaluator.comprehension,
    ast.ListComp: _Evaluator.comprehension,
    ast.SetComp: _Evaluator.comprehension,
    ast.Compare: _Evaluator.compare,
    ast.Call: _Evaluator.call,
    ast.NamedExpr: lambda walk, node, scope: walk.value(node.value, scope),
}
