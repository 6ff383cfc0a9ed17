"""Types of expressions of a release, with the local names of the function they stand in."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tooling.python.source import dotted_name, parse_expression
from tooling.upgrade.symbols import Builtin, Definite, Found, Instance, SymbolKind, Values
from tooling.upgrade.upstream.annotations import (
    OPEN,
    AnnotationReader,
    awaited,
    container,
    container_method,
    iterated,
    union,
)
from tooling.upgrade.upstream.model import Where

if TYPE_CHECKING:
    from tooling.python.tables import FunctionTable
    from tooling.upgrade.symbols import Absent, Resolution, Symbol
    from tooling.upgrade.upstream.model import Model

MAX_DEPTH = 8
PROPERTIES = ("property", "cached-property")


@dataclass(frozen=True)
class Body:
    """The inside of a function, for its local names; of a module or class without `facts`."""

    where: Where
    facts: FunctionTable | None = None
    receiver: Symbol | None = None
    """The class that `self` or `cls` is of."""
    binding: str = "function"
    depth: int = 0
    visited: frozenset[str] = frozenset()
    """Local names that are being looked at."""


class Steps(Protocol):
    """What values are asked for."""

    def attribute(self, values: Values, name: str) -> tuple[Values, list[Absent]]:
        """`value.name`, and where it is absent."""
        ...

    def called(self, values: Values) -> Values:
        """`value(...)`."""
        ...

    def entered(self, values: Values) -> Values:
        """The target of a `with`."""
        ...

    def item(self, values: Values, key: str | int | None) -> Values:
        """`value[key]`."""
        ...


class ExpressionFollower:
    """Infers; each method is for the syntax node of its name."""

    def __init__(self, model: Model, steps: Steps) -> None:
        self.model = model
        self.steps = steps

    def infer(self, body: Body, source: str) -> Values:
        """The type of an expression of the release."""
        node = parse_expression(source) if source and source != "..." else None
        if node is None or body.depth > MAX_DEPTH:
            return OPEN
        return self._infer(replace(body, depth=body.depth + 1), node)

    def _infer(self, body: Body, node: ast.expr) -> Values:
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if method is None or body.depth > MAX_DEPTH:
            return OPEN
        found = method(body, node)
        return found if isinstance(found, Values) else OPEN

    def _on_constant(self, body: Body, node: ast.Constant) -> Values:
        return Values((Builtin(type(node.value).__name__),))

    def _on_joinedstr(self, body: Body, node: ast.JoinedStr) -> Values:
        return Values((Builtin("str"),))

    def _on_compare(self, body: Body, node: ast.Compare) -> Values:
        return Values((Builtin("bool"),))

    def _on_name(self, body: Body, node: ast.Name) -> Values:
        facts = body.facts
        if facts is not None:
            if facts.parameters and facts.parameters[0][0] == node.id and body.receiver is not None:
                if body.binding in ("method", *PROPERTIES):
                    return Values((Instance(body.receiver),))
                if body.binding == "classmethod":
                    return Values((Definite(body.receiver),))
            local = self._local(body, facts, node.id)
            if local is not None:
                return local
        where = body.where if facts is None else Where(body.where.table)
        return self._definite(self.model.expression(where, node.id))

    def _definite(self, found: Resolution) -> Values:
        if isinstance(found, Found) and (found.symbol.file or found.symbol.kind is SymbolKind.MODULE):
            return Values((Definite(found.symbol),))
        return OPEN

    def _local(self, body: Body, facts: FunctionTable, name: str) -> Values | None:
        parameter = next((item for item in facts.parameters if item[0] == name), None)
        stored = facts.local.get(name, ())
        if not stored and name in facts.imports:
            module, imported = facts.imports[name]
            return self._definite(self.model.resolve(f"{module}.{imported}" if imported else module))
        if name in body.visited or (parameter is None and not stored):
            return OPEN if name in body.visited else None
        inner = replace(body, visited=body.visited | {name})
        parts = [self._stored(inner, *entry) for entry in stored]
        if parameter is not None:
            _, kind, _, annotation = parameter
            starred = kind in ("star", "double-star")
            reader = AnnotationReader(self.model, body.where, body.receiver)
            parts.append(reader.read(annotation) if annotation and not starred else OPEN)
        return union(parts)

    def _stored(self, body: Body, kind: str, source: str, annotation: str) -> Values:
        if annotation:
            return AnnotationReader(self.model, body.where, body.receiver).read(annotation)
        if kind == "value":
            return self.infer(body, source)
        if kind in ("for", "async for"):
            return iterated(self.infer(body, source), asynchronous=kind == "async for")
        return self.steps.entered(self.infer(body, source)) if kind == "with" else OPEN

    def _on_attribute(self, body: Body, node: ast.Attribute) -> Values:
        values, _ = self.steps.attribute(self._infer(body, node.value), node.attr)
        return values if values.types else OPEN

    def _on_call(self, body: Body, node: ast.Call) -> Values:
        name = dotted_name(node.func)
        if name in ("cast", "typing.cast") and len(node.args) == 2:
            return AnnotationReader(self.model, body.where, body.receiver).of(node.args[0])
        if name in ("copy.copy", "copy.deepcopy", "deepcopy") and node.args:
            return self._infer(body, node.args[0])
        if name.endswith(".__new__") and body.receiver is not None:
            return Values((Instance(body.receiver),))
        if isinstance(node.func, ast.Attribute):
            base = self._infer(body, node.func.value)
            known = container_method(base, node.func.attr)
            if known is not None:
                return known
        if isinstance(node.func, ast.Call) and dotted_name(node.func.func) == "type" and len(node.func.args) == 1:
            return self._infer(body, node.func.args[0])
        return self.steps.called(self._infer(body, node.func))

    def _on_await(self, body: Body, node: ast.Await) -> Values:
        return awaited(self._infer(body, node.value))

    def _on_ifexp(self, body: Body, node: ast.IfExp) -> Values:
        return union([self._infer(body, node.body), self._infer(body, node.orelse)])

    def _on_boolop(self, body: Body, node: ast.BoolOp) -> Values:
        return union(self._infer(body, value) for value in node.values)

    def _on_namedexpr(self, body: Body, node: ast.NamedExpr) -> Values:
        return self._infer(body, node.value)

    def _on_tuple(self, body: Body, node: ast.Tuple) -> Values:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return container("list", [OPEN])
        return container("tuple", [self._infer(body, item) for item in node.elts])

    def _on_list(self, body: Body, node: ast.List) -> Values:
        items = [self._infer(body, item) for item in node.elts]
        return container("list", [union(items) if items else OPEN])

    def _on_dict(self, body: Body, node: ast.Dict) -> Values:
        values = [self._infer(body, value) for value in node.values]
        return container("dict", [OPEN, union(values) if values else OPEN])

    def _on_subscript(self, body: Body, node: ast.Subscript) -> Values:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return self.steps.item(self._infer(body, node.value), key if isinstance(key, str | int) else None)
