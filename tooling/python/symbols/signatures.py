"""Reads how functions and classes are called."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.python.functions import read_parameters, renamed_parameter
from tooling.python.once import once
from tooling.python.source import Lines, parse_expression
from tooling.python.standard_library import WITHOUT_CONSTRUCTOR, is_exception, python_class
from tooling.python.symbols.definitions import Where, external
from tooling.python.symbols.symbol import Found, Open, Parameter, Signature, Symbol, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.symbols.constants import ConstantReader
    from tooling.python.symbols.decorators import Decorators
    from tooling.python.symbols.definitions import Located, Model
    from tooling.python.symbols.fields import Fields, FieldStyle
    from tooling.python.symbols.members import ClassLineage, Members
    from tooling.python.tables import FunctionTable


class Signatures:
    """Signatures, kept for the run."""

    def __init__(
        self, model: Model, members: Members, fields: Fields, decorators: Decorators, values: ConstantReader
    ) -> None:
        self.model = model
        self.definitions = model.definitions
        self.members = members
        self.fields = fields
        self.decorators = decorators
        self.values = values

    @once()
    def signature(self, symbol: Symbol) -> Signature | Open:
        """Without `self` or `cls`."""
        if symbol.kind is SymbolKind.CLASS:
            return self._of_class(symbol)
        facts = self.definitions.facts(symbol)
        located = self.definitions.locate(symbol)
        if facts is not None and located is not None:
            where = Where(located.table, located.classes)
            parameters = self._parameters(facts.parameters, where, facts)
            if (symbol.owner and symbol.binding != "staticmethod") or symbol.dotted.endswith(".__new__"):
                parameters = _without_receiver(parameters)
            exact = not self._alternatives(symbol, located)
            for source in located.binding.decorators:
                node = parse_expression(source) if "eprecat" in source else None
                renamed = renamed_parameter(node) if node is not None else None
                if renamed is not None:
                    old, new, text = renamed
                    if new:
                        parameters = [
                            replace(item, aliases=(*item.aliases, old)) if item.name == new else item
                            for item in parameters
                        ]
                    else:
                        parameters = [
                            replace(item, deprecated=item.deprecated or text) if item.name == old else item
                            for item in parameters
                        ]
                elif "=" in source or ":" in source:
                    parameters = _with_old_names(parameters, source)
                if self.decorators.names_positions(where, source):
                    named = [replace(each, kind="positional") for each in parameters if each.kind == "keyword-only"]
                    parameters = [*(each for each in parameters if each.kind != "keyword-only"), *named]
                exact = exact and self.decorators.keeps(where, source)
            return Signature(tuple(parameters), facts.returns, exact)
        if located is not None and symbol.kind is SymbolKind.VALUE:
            return self._of_value(located)
        return Open(f"{symbol.dotted} is not a function or class that is known")

    def _of_class(self, symbol: Symbol) -> Signature | Open:
        if self.members.constructor_hook(symbol):
            return Open(f"a metaclass decides how {symbol.dotted} is called")
        lineage = self.members.lineage(symbol)
        style = self.fields.style(symbol)
        made = None if style is None else self._by_style(symbol, style)
        for ancestor in lineage.ancestors:
            found = self._constructor(ancestor, symbol, style, made)
            if found is not None:
                return self._decorated(symbol, lineage, found)
        if made is not None:
            return self._decorated(symbol, lineage, made)
        if not lineage.complete:
            return Open(f"{symbol.dotted} may have the constructor of a base that is not part of this distribution")
        written = self._new(symbol)
        if written is None and any(self._makes_classes(each) for each in lineage.classes):
            return Open(f"the metaclass of {symbol.dotted} may give it a constructor")
        return self._decorated(symbol, lineage, written or Signature(()))

    def of_statement(self, symbol: Symbol) -> tuple[Symbol, Signature] | Open:
        """Find what a class statement with this base calls, and how: the metaclass, or `__init_subclass__`."""
        lineage = self.members.lineage(symbol)
        known = [python_class(each) for each in lineage.outside if each not in WITHOUT_CONSTRUCTOR]
        plain = all(each is not None and type(each) is type and not _is_told(each) for each in known)
        metaclasses = [each for ancestor in lineage.classes for each in self.members.metaclasses(ancestor)]
        if not lineage.complete or not plain:
            return Open(f"a base of {symbol.dotted} may take keywords")
        for metaclass in metaclasses:
            if external(metaclass) == "abc.ABCMeta":
                continue
            if not isinstance(metaclass, Found) or metaclass.symbol.kind is not SymbolKind.CLASS:
                return Open(f"the metaclass of {symbol.dotted} is not known")
            for name in ("__new__", "__init__"):
                made = self.members.member(metaclass.symbol, name)
                if isinstance(made, Found) and made.symbol.file:
                    found = self.signature(made.symbol)
                    if isinstance(found, Open) or any("star" in each.kind for each in found.parameters[:3]):
                        return Open(f"what {made.symbol.dotted} takes is not known")
                    return made.symbol, replace(found, parameters=found.parameters[3:])
        hook = self.members.member(symbol, "__init_subclass__")
        if not isinstance(hook, Found) or not hook.symbol.file:
            return symbol, Signature(())
        found = self.signature(hook.symbol)
        return found if isinstance(found, Open) else (hook.symbol, found)

    # Functions

    def _parameters(
        self, items: Sequence[tuple[str, str, str | None, str]], where: Where, facts: FunctionTable | None
    ) -> list[Parameter]:
        notes = facts.parameter_notes if facts is not None else {}
        return [
            Parameter(
                name,
                kind,
                default,
                self.values.folded(where, default) if default else None,
                annotation,
                deprecated=notes.get(name, ""),
            )
            for name, kind, default, annotation in items
        ]

    def _alternatives(self, symbol: Symbol, located: Located) -> bool:
        """Whether another branch, or another overload, defines the name with other parameters."""
        table = located.table
        scope = table.classes[located.classes[-1]] if located.classes else table.scope
        items = scope.bindings.get(symbol.name, ())
        binding = located.binding
        if any("overload" in decorator for decorator in binding.decorators):
            return len(items) > 1
        if not binding.where or binding.where == "try":
            return False
        others = [
            item for item in items if item.kind in ("def", "async def") and item.where not in ("typing", "except")
        ]
        own = self.model.store.function(table, binding)
        return any(_shape(self.model.store.function(table, other)) != _shape(own) for other in others)

    def _of_value(self, located: Located) -> Signature | Open:
        """Read a lambda under a name."""
        node = parse_expression(located.binding.source) if located.binding.source else None
        if not isinstance(node, ast.Lambda):
            return Open("a value that is not known to be callable")
        lines = Lines(f"({located.binding.source}\n)")
        where = Where(located.table, located.classes)
        parameters = self._parameters(read_parameters(node.args, lines), where, None)
        return Signature(tuple(_without_receiver(parameters) if located.classes else parameters))

    # Classes

    def _constructor(
        self, ancestor: Symbol | str, symbol: Symbol, style: FieldStyle | None, made: Signature | Open | None
    ) -> Signature | Open | None:
        """Return what one class of the order says about calling the class; None if it leaves it to others."""
        if isinstance(ancestor, str):
            return self._outside(ancestor, symbol, style, made)
        scope = self.definitions.scope(ancestor)
        own = self.fields.own_style(ancestor)
        if scope is not None and "__init__" in scope.bindings:
            found = self.members.member(ancestor, "__init__")
            if isinstance(found, Found) and found.symbol.kind is SymbolKind.FUNCTION:
                return self.signature(found.symbol)
            return Open(f"{ancestor.dotted}.__init__ is not a plain function")
        if own is not None and own.init:
            return made if ancestor == symbol else self._by_style(ancestor, own)
        if style is not None and style.extra == "unknown" and ancestor == symbol:
            return made
        if scope is not None and "__new__" in scope.bindings:
            scopes = map(self.definitions.scope, self.members.lineage(symbol).classes)
            if not any(each is not None and "__init__" in each.bindings for each in scopes):
                return self._new(ancestor)
        return None

    def _outside(
        self, ancestor: str, symbol: Symbol, style: FieldStyle | None, made: Signature | Open | None
    ) -> Signature | Open | None:
        if ancestor in WITHOUT_CONSTRUCTOR:
            return None
        if made is not None and style is not None and style.name not in ("dataclass", "attrs", "pydantic-dataclass"):
            return made
        if is_exception(ancestor):
            return Signature((Parameter("args", "star"),))
        return Open(f"{symbol.dotted} has the constructor of {ancestor}")

    def _makes_classes(self, symbol: Symbol) -> bool:
        """Whether a metaclass of the package has a hand in how a class is made."""
        found = [each.symbol for each in self.members.metaclasses(symbol) if isinstance(each, Found)]
        made = [self.members.member(each, name) for each in found for name in ("__new__", "__init__")]
        return any(isinstance(each, Found) and each.symbol.file for each in made)

    def _new(self, symbol: Symbol) -> Signature | Open | None:
        found = self.members.member(symbol, "__new__")
        if isinstance(found, Found) and found.symbol.kind is SymbolKind.FUNCTION:
            return self.signature(found.symbol)
        return None

    def _by_style(self, symbol: Symbol, style: FieldStyle) -> Signature | Open:
        if style.name == "enum":
            return Signature((Parameter("value", "positional"),), exact=False)
        if style.name == "unknown":
            return Open(f"how {symbol.dotted} is called is not known")
        parameters = self.fields.parameters(symbol, style)
        if style.extra == "unknown":
            return Signature((*parameters, Parameter("kwargs", "double-star")), exact=False)
        return Signature(tuple(parameters), extra=style.extra)

    def _decorated(self, symbol: Symbol, lineage: ClassLineage, found: Signature | Open) -> Signature | Open:
        """Class decorators and unknown bases of dataclasses may change what was found."""
        located = self.definitions.locate(symbol)
        if isinstance(found, Open) or located is None:
            return found
        where = self.members.around(symbol)
        exact = found.exact and all(self.decorators.keeps(where, source) for source in located.binding.decorators)
        if self.fields.own_style(symbol) is not None and not lineage.complete:
            exact = False
        return replace(found, exact=exact)


def _is_told(known: type) -> bool:
    """Whether a class of Python looks at the classes that derive from it."""
    return any("__init_subclass__" in vars(kind) for kind in known.__mro__[:-1])


def _shape(facts: FunctionTable) -> list[tuple[str, str, bool]]:
    return [(name, kind, default is None) for name, kind, default, _ in facts.parameters]


def _with_old_names(parameters: list[Parameter], source: str) -> list[Parameter]:
    """Add old names that a decorator takes for parameters, as pairs of an old name and a parameter:
    `@rename_arguments(size="length")`, `@deprecated_names({"size": "length"})`."""
    node = parse_expression(source)
    pairs: dict[str, list[str]] = {}
    for part in ast.walk(node) if isinstance(node, ast.Call) else ():
        rows: list[tuple[object, ast.expr]] = []
        if isinstance(part, ast.Dict):
            rows = [(getattr(key, "value", None), value) for key, value in zip(part.keys, part.values, strict=True)]
        elif isinstance(part, ast.Call):
            rows = [(word.arg, word.value) for word in part.keywords]
        for old, value in rows:
            new = value.value if isinstance(value, ast.Constant) else None
            if isinstance(old, str) and isinstance(new, str):
                pairs.setdefault(new, []).append(old)
    names = {item.name for item in parameters}
    return [
        replace(item, aliases=(*item.aliases, *(old for old in pairs.get(item.name, ()) if old not in names)))
        for item in parameters
    ]


def _without_receiver(parameters: list[Parameter]) -> list[Parameter]:
    if parameters and parameters[0].kind in ("positional", "positional-only"):
        return parameters[1:]
    return parameters
