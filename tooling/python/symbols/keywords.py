"""Whether a callable takes a keyword, followed through **kwargs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.python.functions import renamed_parameter
from tooling.python.once import once
from tooling.python.operations import Ref, concrete
from tooling.python.source import dotted_name, parse_expression, string_of
from tooling.python.standard_library import WITHOUT_CONSTRUCTOR, has_member, python_class
from tooling.python.symbols.definitions import Where
from tooling.python.symbols.symbol import Found, Keyword, Open, Symbol, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from tooling.python.symbols.constants import ConstantReader
    from tooling.python.symbols.decorators import Decorators
    from tooling.python.symbols.definitions import Located, Model
    from tooling.python.symbols.fields import Fields
    from tooling.python.symbols.members import Members
    from tooling.python.tables import FunctionTable

MAX_DEPTH = 4
_NAMED_KINDS = ("positional", "keyword-only")


class Keywords:
    """Follows one keyword at a time."""

    def __init__(
        self, model: Model, members: Members, fields: Fields, decorators: Decorators, values: ConstantReader
    ) -> None:
        self.model = model
        self.values = values
        self.members = members
        self.fields = fields
        self.decorators = decorators

    @once()
    def keyword(self, symbol: Symbol, name: str) -> Keyword:
        """Whether a function or class takes it."""
        return self._taken(symbol, name, frozenset(), None)

    def callee(self, function: Symbol, source: str) -> Symbol | None:
        """Return what a call in the body of a function reaches; None where that is not known."""
        facts, located = self.model.definitions.facts(function), self.model.definitions.locate(function)
        found = self._callee(source, facts, located, None) if facts is not None and located is not None else None
        return found if isinstance(found, Symbol) else None

    def _taken(self, symbol: Symbol, name: str, seen: frozenset[Symbol], instance: Symbol | None) -> Keyword:
        """`seen`: callables on the way here. `instance`: the class whose order `super()` follows."""
        if symbol in seen or len(seen) > MAX_DEPTH:
            return Keyword.OPEN
        seen |= {symbol}
        if symbol.kind is SymbolKind.CLASS:
            return self._by_class(symbol, name, seen)
        facts = self.model.definitions.facts(symbol)
        located = self.model.definitions.locate(symbol)
        if facts is None or located is None:
            return Keyword.OPEN
        direct = self._direct(symbol, facts, located, name)
        if direct is not None:
            return direct
        if facts.keyword_allowed:
            return self._listed(facts, located, name, instance)
        return self._through(facts, located, name, seen, instance)

    def _listed(self, facts: FunctionTable, located: Located, name: str, instance: Symbol | None) -> Keyword:
        """Whether the collections have it that all keywords are looked up in."""
        for source in facts.keyword_allowed:
            names = self._collection(facts, located, source, instance)
            if names is None:
                return Keyword.OPEN
            if name not in names:
                return Keyword.REFUSED
        return Keyword.READ

    def _collection(
        self, facts: FunctionTable, located: Located, source: str, instance: Symbol | None
    ) -> Collection[object] | None:
        """Members of a collection that a function names; None if they are not known."""
        where = Where(located.table)
        first, _, rest = source.partition(".")
        receiver = facts.parameters[0][0] if facts.parameters and located.classes else ""
        if rest and first in (receiver, "self", "cls"):
            found = self.members.member(instance, rest) if instance is not None and "." not in rest else None
            holder = self.model.definitions.locate(found.symbol) if isinstance(found, Found) else None
            if holder is None or holder.binding.kind != "value" or holder.binding.where == "self":
                return None
            where, source = Where(holder.table, holder.classes), holder.binding.source
        elif first in facts.local or first in facts.imports or first in {each for each, *_ in facts.parameters}:
            return None
        owner, _, kind = source.rpartition(".")
        if kind in ("__annotations__", "__dataclass_fields__", "model_fields"):
            named = self.model.expression(where, owner)
            fields = self.model.signature(named.symbol) if isinstance(named, Found) else Open("")
            return None if isinstance(fields, Open) or not fields.exact else {each.name for each in fields.parameters}
        value = self.values.constant(where, source)
        if isinstance(value, Ref):
            value = self.values.value_of(value.dotted)
        return value if isinstance(value, list | tuple | set | frozenset | dict) and concrete(list(value)) else None

    def _by_class(self, symbol: Symbol, name: str, seen: frozenset[Symbol]) -> Keyword:
        signature = self.model.signature(symbol)
        if isinstance(signature, Open):
            return Keyword.OPEN
        constructor = self._constructor(symbol)
        if constructor is not None:
            return self._taken(constructor, name, seen, symbol)
        if any(name in (item.name, *item.aliases) for item in signature.parameters if item.kind in _NAMED_KINDS):
            return Keyword.NAMED
        if not signature.exact or any(item.kind == "double-star" for item in signature.parameters):
            return Keyword.OPEN
        return {"ignore": Keyword.IGNORED, "allow": Keyword.READ}.get(signature.extra, Keyword.REFUSED)

    def _constructor(self, symbol: Symbol) -> Symbol | None:
        """Return the `__init__` (or `__new__`) in the release that calling the class runs first."""
        for ancestor in self.members.lineage(symbol).classes:
            own = self.fields.own_style(ancestor)
            scope = self.model.definitions.scope(ancestor)
            for method in ("__init__", "__new__"):
                if scope is not None and method in scope.bindings:
                    found = self.members.member(ancestor, method)
                    return found.symbol if isinstance(found, Found) else None
            if own is not None and own.init:
                return None
        return None

    def _direct(self, symbol: Symbol, facts: FunctionTable, located: Located, name: str) -> Keyword | None:
        """Return what the function itself says; None if **kwargs decides."""
        kinds = {parameter: kind for parameter, kind, _, _ in facts.parameters}
        receiver = facts.parameters[0][0] if facts.parameters and symbol.owner else ""
        if kinds.get(name) in _NAMED_KINDS and not (name == receiver and symbol.binding != "staticmethod"):
            return Keyword.NAMED
        if name in facts.keyword_reads:
            return Keyword.READ
        where = Where(located.table, located.classes)
        exact = True
        for source in located.binding.decorators:
            node = parse_expression(source)
            renamed = renamed_parameter(node) if node is not None else None
            if renamed is not None and renamed[0] == name:
                return Keyword.READ
            if name in self.decorators.taken_keywords(where, source) or _names(node, name):
                return Keyword.READ
            exact = exact and self.decorators.keeps(where, source)
        if not exact:
            return Keyword.OPEN
        if "double-star" not in kinds.values():
            return Keyword.REFUSED
        return self._unpacked(facts, where, name)

    def _unpacked(self, facts: FunctionTable, where: Where, name: str) -> Keyword | None:
        """`**kwargs: Unpack[Options]` names the options, and changes nothing at run time."""
        annotation = next(text for _, kind, _, text in facts.parameters if kind == "double-star")
        node = parse_expression(annotation.strip("\"'")) if "Unpack[" in annotation else None
        inner = dotted_name(node.slice) if isinstance(node, ast.Subscript) else ""
        found = self.model.expression(where, inner) if inner else None
        if isinstance(found, Found) and self.fields.is_field(found.symbol, name) is not None:
            return Keyword.NAMED
        return None

    def _through(
        self, facts: FunctionTable, located: Located, name: str, seen: frozenset[Symbol], instance: Symbol | None
    ) -> Keyword:
        answers = set()
        for callee, given, always in facts.keyword_forwards:
            answer = Keyword.REFUSED
            if name not in given:
                target = self._callee(callee, facts, located, instance)
                kept = instance if callee.startswith(("super(", "self.", "cls.")) else None
                answer = self._taken(target, name, seen, kept) if isinstance(target, Symbol) else target
            # What refuses it in one branch says nothing of calls that do not come there.
            answers.add(Keyword.OPEN if answer is Keyword.REFUSED and not always else answer)
        for better in (Keyword.NAMED, Keyword.READ):
            if better in answers:
                return Keyword.READ
        if facts.keyword_open or Keyword.OPEN in answers:
            return Keyword.OPEN
        if facts.keyword_checked:
            return Keyword.REFUSED
        if len(answers) > 1:
            return Keyword.OPEN
        return answers.pop() if answers else Keyword.IGNORED

    def _callee(self, source: str, facts: FunctionTable, located: Located, instance: Symbol | None) -> Symbol | Keyword:
        """Return the callable that a piece of source names inside a function."""
        node = parse_expression(source)
        classes = located.table.classes[located.classes[-1]].name if located.classes else ""
        found = self.model.resolve(f"{located.table.dotted}.{classes}") if classes else None
        owner = found.symbol if isinstance(found, Found) and found.symbol.kind is SymbolKind.CLASS else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            if dotted_name(node.value.func) == "super" and owner is not None:
                return self._in_order(instance or owner, owner, node.attr)
            return Keyword.OPEN
        name = dotted_name(node)
        first, _, rest = name.partition(".")
        receiver = facts.parameters[0][0] if facts.parameters and owner is not None else ""
        if name and first == receiver and owner is not None:
            return self._of_receiver(instance or owner, rest)
        if not name or first in facts.local or first in {parameter for parameter, *_ in facts.parameters}:
            return Keyword.OPEN
        if first in facts.imports:
            module, imported = facts.imports[first]
            dotted = ".".join(filter(None, (module, imported, rest)))
            found = self.model.resolve(dotted)
        else:
            found = self.model.expression(Where(located.table), name)
        return found.symbol if isinstance(found, Found) and found.symbol.file else Keyword.OPEN

    def _of_receiver(self, owner: Symbol, rest: str) -> Symbol | Keyword:
        """`self.method(**kwargs)`, `cls(**kwargs)`."""
        if not rest:
            return owner
        if "." in rest:
            return Keyword.OPEN
        found = self.members.member(owner, rest)
        known = isinstance(found, Found) and found.symbol.kind is SymbolKind.FUNCTION
        return found.symbol if isinstance(found, Found) and known else Keyword.OPEN

    def _in_order(self, instance: Symbol, owner: Symbol, method: str) -> Symbol | Keyword:
        """`super().method`: the next class after `owner` in the order of the instance's class."""
        ancestors = self.members.lineage(instance).ancestors
        if owner not in ancestors:
            ancestors = self.members.lineage(owner).ancestors
        for ancestor in ancestors[ancestors.index(owner) + 1 :]:
            if isinstance(ancestor, str):
                # Where nothing is known of a class from outside, a plain method that a class of the tree defines is
                # taken to be the one meant, as in `Members.member`
                known = python_class(ancestor)
                may_have = has_member(known, method) if known is not None else method.startswith("__")
                if ancestor not in WITHOUT_CONSTRUCTOR and may_have:
                    return Keyword.OPEN
                continue
            scope = self.model.definitions.scope(ancestor)
            if scope is not None and method in scope.bindings:
                found = self.members.member(ancestor, method)
                return found.symbol if isinstance(found, Found) else Keyword.OPEN
            if method == "__init__" and self.fields.own_style(ancestor) is not None:
                return ancestor
        complete = self.members.lineage(instance).complete
        return Keyword.REFUSED if method in ("__init__", "__init_subclass__") and complete else Keyword.OPEN


def _names(decorator: ast.expr | None, name: str) -> bool:
    """Whether the arguments of a decorator name a keyword: `@deprecated_arguments("old", since="1.2")`."""
    return decorator is not None and any(string_of(node) == name for node in ast.walk(decorator))
