"""Types of values inside a release: attributes, calls, returned and assigned values."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

from tooling.python.once import once
from tooling.python.source import dotted_name, parse_expression
from tooling.python.symbols.annotations import (
    NONE,
    OPEN,
    AnnotationReader,
    after,
    awaited,
    container,
    container_method,
    item_of,
    iterated,
    union,
)
from tooling.python.symbols.definitions import Where, external
from tooling.python.symbols.symbol import (
    Absent,
    Builtin,
    Container,
    Definite,
    Found,
    Instance,
    Open,
    SymbolKind,
    Type,
    Values,
)

if TYPE_CHECKING:
    from tooling.python.symbols.definitions import Located, Model
    from tooling.python.symbols.fields import Fields
    from tooling.python.symbols.members import Members
    from tooling.python.symbols.symbol import Resolution, Symbol
    from tooling.python.tables import FunctionTable

MAX_EXPRESSIONS = 8
PROPERTIES = ("property", "cached-property")
MAX_ACTIVE = 32
_CONTEXTS = {"contextmanager": "context", "asynccontextmanager": "async-context"}


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
    """Local names that are being looked at, and those that only a comprehension has."""


class TypeInference:
    """Follows values. Whatever is not understood is open."""

    def __init__(self, model: Model, members: Members, fields: Fields) -> None:
        self.model = model
        self.members = members
        self.fields = fields
        self.expressions = ExpressionInference(model, self)
        self._active: set[tuple[str, int, str]] = set()
        self._returns: dict[tuple[Symbol, Symbol | None], Values] = {}

    # Attributes

    def attribute(self, values: Values, name: str) -> tuple[Values, list[Absent]]:
        """`value.name`, and where it is absent."""
        parts: list[Values] = []
        absent: list[Absent] = []
        kinds = [kind for kind in values.types if kind != Builtin("NoneType")]
        for kind in kinds:
            found = self._attribute_of(kind, name)
            if isinstance(found, list):
                absent.extend(found)
            else:
                parts.append(found)
        result = union(parts)
        return replace(result, open=result.open or values.open, inferred=result.inferred or values.inferred), absent

    def _attribute_of(self, kind: Type, name: str) -> Values | list[Absent]:
        if isinstance(kind, Instance):
            return self._member(kind.symbol, name, instance=True)
        if isinstance(kind, Definite):
            if kind.symbol.kind in (SymbolKind.MODULE, SymbolKind.CLASS):
                return self._member(kind.symbol, name, instance=False)
            missing = self.model.member(kind.symbol, name) if kind.symbol.kind is SymbolKind.FUNCTION else None
            if isinstance(missing, Absent):
                return [missing]
            values, absent = self.attribute(self.force(kind), name)
            return absent if absent and not values.types and not values.open else values
        return OPEN

    def _member(self, symbol: Symbol, name: str, *, instance: bool) -> Values | list[Absent]:
        found: Resolution = self.model.member(symbol, name)
        missing = found.of_class if isinstance(found, Open) and not instance else found
        if isinstance(missing, Absent):
            return [missing]
        if not isinstance(found, Found) or not found.symbol.file:
            # A module that is a folder or compiled has no file, and is a value all the same.
            if isinstance(found, Found) and found.symbol.kind is SymbolKind.MODULE:
                return Values((Definite(found.symbol),))
            return self._by_hook(symbol) if instance and isinstance(found, Open) else OPEN
        target = found.symbol
        if symbol.kind is SymbolKind.MODULE:
            return Values((Definite(target),))
        bound = target.kind is SymbolKind.FUNCTION and (
            (instance and target.binding != "staticmethod") or target.binding == "classmethod"
        )
        return Values((Definite(target, bound, symbol.dotted),))

    def _by_hook(self, symbol: Symbol) -> Values:
        """Return what the `__getattr__` of a class gives, if that is an instance of one class: `client.test.users`."""
        hook = self.model.member(symbol, "__getattr__")
        if not isinstance(hook, Found) or hook.symbol.kind is not SymbolKind.FUNCTION or not hook.symbol.file:
            return OPEN
        given = self.returned(hook.symbol, symbol)
        is_known = len(given.types) == 1 and isinstance(given.types[0], Instance) and not given.open
        return replace(given, inferred=True) if is_known else OPEN

    def force(self, kind: Definite) -> Values:
        """Return the value behind a name: of a constant, field, property or attribute."""
        return self._forced(kind.symbol, kind.receiver)

    @once(meanwhile=OPEN)  # a value that is made from itself
    def _forced(self, symbol: Symbol, receiver: str) -> Values:
        return self.settled(self._value(symbol, self._class_named(receiver)))

    def settled(self, values: Values) -> Values:
        """Return the values behind names and properties; names that stand for each other end in open."""
        if not any(_stands_for_another(each) for each in values.types):
            return values
        parts = [self.force(each) if _stands_for_another(each) else Values((each,)) for each in values.types]
        return after(values, parts)

    def _class_named(self, dotted: str) -> Symbol | None:
        found = self.model.resolve(dotted) if dotted else None
        return found.symbol if isinstance(found, Found) and found.symbol.kind is SymbolKind.CLASS else None

    def _value(self, symbol: Symbol, receiver: Symbol | None) -> Values:
        if symbol.kind is SymbolKind.FUNCTION:
            return self.returned(symbol, receiver) if symbol.binding in PROPERTIES else OPEN
        located = self.model.definitions.locate(symbol)
        if located is None or symbol.kind is not SymbolKind.VALUE:
            return OPEN
        owner = self._class_named(symbol.owner)
        where = Where(located.table, located.classes)
        name = symbol.name
        if owner is not None:
            style = self.fields.style(owner)
            if style is not None and style.name == "enum" and not located.binding.extra:
                return Values((Instance(owner),))
            if located.binding.where == "self":
                return self._assigned(owner, name, receiver or owner)
        annotation = located.binding.extra or self._told(located, name)
        if annotation:
            return AnnotationReader(self.model, where, receiver or owner).read(annotation)
        return self.expressions.infer(Body(Where(located.table, located.classes, name, 0)), located.binding.source)

    def _told(self, located: Located, name: str) -> str:
        """Annotation of a name that only type checkers see bound."""
        items = located.table.scope.bindings.get(name, ()) if not located.classes else ()
        return next((item.extra for item in items if item.kind == "value" and item.extra), "")

    def _assigned(self, owner: Symbol, name: str, receiver: Symbol) -> Values:
        """`self.name`, by all its assignments in the class."""
        located = self.model.definitions.locate(owner)
        scope = self.model.definitions.scope(owner)
        if located is None or scope is None:
            return OPEN
        where = Where(located.table, located.classes)
        parts: list[Values] = []
        for source, annotation, method, _ in self.members.assignments(owner, name):
            if annotation:
                return AnnotationReader(self.model, where, receiver).read(annotation)
            binding = next((item for item in scope.bindings.get(method, ()) if item.kind.endswith("def")), None)
            facts = self.model.store.function(located.table, binding) if binding is not None else None
            parts.append(self.expressions.infer(Body(where, facts, receiver, "method"), source))
        found = union(parts)
        if len(found.types) == 1 and isinstance(kind := found.types[0], Container) and kind.items[-1] == OPEN:
            put = self._assigned(owner, f"{name}[]", receiver)  # `self.rows.append(Row())`; others may put more there
            if put.types:
                items = (*kind.items[:-1], replace(put, open=True, inferred=True))
                return replace(found, types=(replace(kind, items=items),))
        return found

    # Calls

    def called(self, values: Values) -> Values:
        """`value(...)`."""
        return after(values, [self._called(kind) for kind in values.types if kind != Builtin("NoneType")])

    def _called(self, kind: Type) -> Values:
        if isinstance(kind, Instance):
            return self._by_method(kind.symbol, "__call__")
        if not isinstance(kind, Definite):
            return kind.items[0] if isinstance(kind, Container) and kind.name == "function" else OPEN
        if kind.symbol.kind is SymbolKind.CLASS:
            return Values((Instance(kind.symbol),))
        if kind.symbol.kind is SymbolKind.FUNCTION and kind.symbol.binding not in PROPERTIES:
            return self.returned(kind.symbol, self._class_named(kind.receiver))
        return self.called(self.force(kind))

    def _by_method(self, symbol: Symbol, name: str) -> Values:
        """Return what a method of an instance returns; open where there is none."""
        found = self.members.member(symbol, name)
        if isinstance(found, Found) and found.symbol.kind is SymbolKind.FUNCTION and found.symbol.file:
            return self.returned(found.symbol, symbol)
        return OPEN

    def returned(self, symbol: Symbol, receiver: Symbol | None) -> Values:
        """Return what a call of a function gives: an awaitable for a coroutine, an iterator for a generator."""
        key = (symbol, receiver)
        found = self._returns.get(key)
        if found is None:
            active = (symbol.file, symbol.line, symbol.dotted)
            if active in self._active or len(self._active) > MAX_ACTIVE:
                return OPEN
            self._active.add(active)
            try:
                found = self._returned(symbol, receiver)
            finally:
                self._active.discard(active)
            self._returns[key] = found
        return found

    def _returned(self, symbol: Symbol, receiver: Symbol | None) -> Values:
        facts = self.model.definitions.facts(symbol)
        located = self.model.definitions.locate(symbol)
        if facts is None or located is None:
            return OPEN
        where = Where(located.table, located.classes)
        receiver = receiver or self._class_named(symbol.owner)
        context = ""
        for source in located.binding.decorators:
            context = context or _CONTEXTS.get(source.partition("(")[0].rpartition(".")[2], "")
            property_like = symbol.binding in PROPERTIES and "property" in source.lower()
            if not property_like and not self.model.keeps(where, source):
                return OPEN
        body = Body(where, facts, receiver, symbol.binding)
        value = self._overloaded(located, symbol, where, receiver) or self._result(body, facts)
        return container(context, [iterated(value)]) if context else value

    def _overloaded(self, located: Located, symbol: Symbol, where: Where, receiver: Symbol | None) -> Values | None:
        """Of overloads: one of what they return. Beside a body those that ask for no more than it does come first, and
        for what others give a call must pass more: `generate(prompt)`, `generate(prompt, stream=True)`."""
        scope = located.table.classes[located.classes[-1]] if located.classes else located.table.scope
        items = [item for item in scope.bindings.get(symbol.name, ()) if item.kind == "def"]
        overloads = [item for item in items if any("overload" in source for source in item.decorators)][:20]
        if not overloads:
            return None
        facts = [self.model.store.function(located.table, item) for item in overloads]
        reader = AnnotationReader(self.model, where, receiver)
        if located.binding in overloads:
            return union(reader.read(each.returns) for each in facts)
        needed = _required(self.model.store.function(located.table, located.binding))
        plain = [each for each in facts if _required(each) <= needed]
        found = union(reader.read(each.returns) for each in plain)
        return replace(found, open=found.open or len(plain) < len(facts)) if plain else None

    def _result(self, body: Body, facts: FunctionTable) -> Values:
        if facts.returns:
            value = AnnotationReader(self.model, body.where, body.receiver).read(facts.returns)
        elif facts.is_generator:
            items = union(
                self.expressions.infer(body, source) if not source.startswith("*") else OPEN for source in facts.yields
            )
            name, given = ("async-iterator", []) if facts.is_async else ("iterator", [self._by_returns(body, facts)])
            return replace(container(name, [items, *given]), inferred=True)
        else:
            value = self._by_returns(body, facts)
        return container("awaitable", [value]) if facts.is_async and not facts.is_generator else value

    def _by_returns(self, body: Body, facts: FunctionTable) -> Values:
        """Of a function without annotation, by its return statements."""
        if facts.refuses is not None or body.where.table.path.endswith(".pyi"):
            return OPEN
        if not facts.values:
            return replace(NONE, inferred=True)
        parts = [self.expressions.infer(body, source) if source else NONE for source in facts.values]
        return replace(union(parts), inferred=True)

    # Steps

    def awaited(self, values: Values) -> Values:
        """`await value`, of a coroutine or of an instance that has `__await__`."""
        parts = []
        for kind in values.types:
            made = self._by_method(kind.symbol, "__await__") if isinstance(kind, Instance) else OPEN
            given = [each.items[-1] for each in made.types if isinstance(each, Container) and each.items[1:]]
            parts.append(union(given) if given else awaited(Values((kind,))))
        return after(values, parts)

    def entered(self, values: Values) -> Values:
        """Return the target of a `with`."""
        return after(values, [self._entered(kind) for kind in values.types if kind != Builtin("NoneType")])

    def _entered(self, kind: Type) -> Values:
        if isinstance(kind, Container):
            return kind.items[0] if kind.name in _CONTEXTS.values() else OPEN
        if isinstance(kind, Instance):
            for name in ("__enter__", "__aenter__"):
                found = self._by_method(kind.symbol, name)
                if found != OPEN:
                    return awaited(found) if name == "__aenter__" else found
            return OPEN
        return self.entered(self.force(kind)) if isinstance(kind, Definite) else OPEN

    def item(self, values: Values, key: str | int | None) -> Values:
        """`value[key]`."""
        return after(values, [self._item(kind, key) for kind in values.types if kind != Builtin("NoneType")])

    def _item(self, kind: Type, key: str | int | None) -> Values:
        if isinstance(kind, Container):
            return item_of(kind, key)
        if isinstance(kind, Instance):
            field = self._field_at(kind.symbol, key)
            return field if field is not None else self._by_method(kind.symbol, "__getitem__")
        if _stands_for_another(kind):
            return self.item(self.force(kind), key)
        if isinstance(kind, Definite) and kind.symbol.kind is SymbolKind.CLASS:
            style = self.fields.style(kind.symbol)
            return Values((Instance(kind.symbol),)) if style is not None and style.name == "enum" else Values((kind,))
        return OPEN

    def _field_at(self, symbol: Symbol, key: str | int | None) -> Values | None:
        names = self.fields.names(symbol)
        if names is None or key is None:
            return None
        name = names[key] if isinstance(key, int) and -len(names) <= key < len(names) else key
        found = self.members.member(symbol, name) if isinstance(name, str) and name in names else None
        return self.force(Definite(found.symbol, receiver=symbol.dotted)) if isinstance(found, Found) else OPEN

    def looped(self, values: Values, *, asynchronous: bool) -> Values:
        """Return an element of what a loop runs over."""
        parts: list[Values] = []
        for kind in values.types:
            if isinstance(kind, Instance):
                made = self._by_method(kind.symbol, "__aiter__" if asynchronous else "__iter__")
                parts.append(self._stepped(made, asynchronous=asynchronous))
            elif isinstance(kind, Definite):
                parts.append(self.looped(self.force(kind), asynchronous=asynchronous))
            elif kind != Builtin("NoneType"):
                parts.append(iterated(Values((kind,)), asynchronous=asynchronous))
        return after(values, parts)

    def _stepped(self, made: Values, *, asynchronous: bool) -> Values:
        """Step through what `__iter__` gave, which may be an instance with `__next__`."""
        found = iterated(made, asynchronous=asynchronous)
        instances = [kind for kind in made.types if isinstance(kind, Instance)]
        if found.types or not instances:
            return found
        stepped = self._by_method(instances[0].symbol, "__anext__" if asynchronous else "__next__")
        return awaited(stepped) if asynchronous else stepped


def _required(facts: FunctionTable) -> set[str]:
    """Parameters without a default."""
    return {
        name for name, kind, default, _ in facts.parameters if default is None and kind not in ("star", "double-star")
    }


def _stands_for_another(kind: Type) -> TypeGuard[Definite]:
    if not isinstance(kind, Definite):
        return False
    return kind.symbol.kind is SymbolKind.VALUE or kind.symbol.binding in PROPERTIES


_MADE = {
    **dict.fromkeys(("iter", "map", "filter", "zip", "enumerate", "reversed"), container("iterator", [OPEN])),
    **dict.fromkeys(("list", "sorted"), container("list", [OPEN])),
    **{
        name: Values((Builtin(name),))
        for name in ("str", "int", "float", "bool", "set", "frozenset", "MappingProxyType")
    },
    "dict": container("dict", [OPEN, OPEN]),
}
"""What calls of Python's own names give."""
_OF_ELEMENTS = {
    "iter": ("iterator", ""),
    "list": ("list", ""),
    "max": ("", ""),
    "min": ("", ""),
    "next": ("", ""),
    "reversed": ("iterator", ""),
    "sorted": ("list", ""),
    "tuple": ("list", "tuple"),
}
"""Those that give elements of their one argument: one of them (""), or a container of all and what it is exactly."""
_ALWAYS: dict[type[ast.expr], str] = {ast.JoinedStr: "str", ast.Compare: "bool", ast.Set: "set", ast.SetComp: "set"}


class ExpressionInference:
    """Infers types of expressions of a tree, with the local names of the function they stand in.

    Each method is for the syntax node of its name.
    """

    def __init__(self, model: Model, steps: TypeInference) -> None:
        self.model = model
        self.steps = steps

    def infer(self, body: Body, source: str) -> Values:
        """Return the type of an expression of the tree."""
        node = parse_expression(source) if source and source != "..." else None
        if node is None or body.depth > MAX_EXPRESSIONS:
            return OPEN
        return self._infer(replace(body, depth=body.depth + 1), node)

    def _infer(self, body: Body, node: ast.expr) -> Values:
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if body.depth <= MAX_EXPRESSIONS and type(node) in _ALWAYS:
            return Values((Builtin(_ALWAYS[type(node)]),))
        if method is None or body.depth > MAX_EXPRESSIONS:
            return OPEN
        found = method(body, node)
        return found if isinstance(found, Values) else OPEN

    def _on_constant(self, body: Body, node: ast.Constant) -> Values:
        return Values((Builtin(type(node.value).__name__),))

    def _on_name(self, body: Body, node: ast.Name) -> Values:
        if node.id in body.visited:
            return OPEN
        facts = body.facts
        if facts is not None:
            if facts.parameters and facts.parameters[0][0] == node.id and body.receiver is not None:
                if body.binding in ("method", *PROPERTIES):
                    return Values((Instance(body.receiver),))
                if body.binding == "classmethod":
                    return Values((Definite(body.receiver),))
            local = self._local(body, facts, node.id)
            own = facts.inner.get(node.id)
            if local == OPEN and own is not None and not own[1] and len(facts.local[node.id]) == 1:
                taken = body.visited | {each for each, *_ in own[0]}
                parts = [self.infer(replace(body, visited=taken), source) for source in own[2] if own[3] and source]
                return container("function", [replace(union(parts), inferred=True) if parts else OPEN])
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
        if parameter is None and not stored:
            return None
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
            known = container_method(self.steps.settled(base), node.func.attr)
            if known is not None:
                return known
        if isinstance(node.func, ast.Call) and dotted_name(node.func.func) == "type" and len(node.func.args) == 1:
            return self._infer(body, node.func.args[0])
        found = self.model.expression(body.where, name) if name else None
        outside = external(found) if found is not None and (body.facts is None or name not in body.facts.local) else ""
        if outside.startswith(("builtins.", "types.")):
            made = outside.rpartition(".")[2]
            if made in _OF_ELEMENTS and len(node.args) == 1:
                element = self.steps.looped(self._infer(body, node.args[0]), asynchronous=False)
                kind, exact = _OF_ELEMENTS[made]
                return container(kind, [element], exact) if kind else element
            if made in _MADE:
                return _MADE[made]
        return self.steps.called(self._infer(body, node.func))

    def _on_await(self, body: Body, node: ast.Await) -> Values:
        return self.steps.awaited(self._infer(body, node.value))

    def _on_ifexp(self, body: Body, node: ast.IfExp) -> Values:
        return union([self._infer(body, node.body), self._infer(body, node.orelse)])

    def _on_boolop(self, body: Body, node: ast.BoolOp) -> Values:
        return union(self._infer(body, value) for value in node.values)

    def _on_namedexpr(self, body: Body, node: ast.NamedExpr) -> Values:
        return self._infer(body, node.value)

    def _on_tuple(self, body: Body, node: ast.Tuple) -> Values:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return container("list", [OPEN], "tuple")
        return container("tuple", [self._infer(body, item) for item in node.elts])

    def _on_list(self, body: Body, node: ast.List) -> Values:
        items = [self._infer(body, item) for item in node.elts]
        return container("list", [union(items) if items else OPEN])

    def _on_dict(self, body: Body, node: ast.Dict) -> Values:
        values = [self._infer(body, value) for value in node.values]
        return container("dict", [OPEN, union(values) if values else OPEN])

    def _on_listcomp(self, body: Body, node: ast.ListComp) -> Values:
        return container("list", [self._element(body, node, node.elt)])

    def _on_generatorexp(self, body: Body, node: ast.GeneratorExp) -> Values:
        return container("iterator", [self._element(body, node, node.elt)])

    def _on_dictcomp(self, body: Body, node: ast.DictComp) -> Values:
        return container("dict", [OPEN, self._element(body, node, node.value)])

    def _element(self, body: Body, node: ast.ListComp | ast.GeneratorExp | ast.DictComp, element: ast.expr) -> Values:
        """Infer what a comprehension gives: elements as they come, or what is made of them, its variables open."""
        first = node.generators[0]
        if isinstance(element, ast.Name) and isinstance(first.target, ast.Name) and element.id == first.target.id:
            return self.steps.looped(self._infer(body, first.iter), asynchronous=bool(first.is_async))
        own = {each.id for one in node.generators for each in ast.walk(one.target) if isinstance(each, ast.Name)}
        return self._infer(replace(body, visited=body.visited | own), element)

    def _on_subscript(self, body: Body, node: ast.Subscript) -> Values:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return self.steps.item(self._infer(body, node.value), key if isinstance(key, str | int) else None)
