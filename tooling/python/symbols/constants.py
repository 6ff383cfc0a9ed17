"""Constants of a release: what names are bound to, `__all__`, and defaults compared by value."""

from __future__ import annotations

import ast
from functools import partial
from typing import TYPE_CHECKING

from tooling.python.operations import UNKNOWN, Applied, Closure, OutOfFuel, Ref, concrete
from tooling.python.source import definition, parse_expression
from tooling.python.symbols.definitions import Where
from tooling.python.symbols.modules import candidates
from tooling.python.symbols.symbol import Found, SymbolKind
from tooling.python.values import ValueEvaluator

if TYPE_CHECKING:
    from tooling.python.symbols.definitions import Model
    from tooling.python.tables import ModuleTable

MAX_DEPTH = 12


class ConstantReader:
    """Evaluates expressions in the scope they stand in."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.store = model.store
        self._depth = 0
        self._exports: dict[str, tuple[frozenset[str], bool]] = {}

    def constant(self, where: Where, source: str) -> object:
        """Return the value of an expression."""
        node = parse_expression(source) if source else None
        if node is None or self._depth > MAX_DEPTH:
            return UNKNOWN
        self._depth += 1
        try:
            return ValueEvaluator(partial(self.name_value, where), self.value_of).evaluate(node)
        except OutOfFuel:
            return UNKNOWN
        finally:
            self._depth -= 1

    def name_value(self, where: Where, name: str) -> object:
        """Return what a name is bound to in a class body or module."""
        inner = [where.table.classes[line] for line in reversed(where.classes[-1:])]
        for scope in [*inner, where.table.scope]:
            items = scope.bindings.get(name)
            if items and name == where.name and where.before >= 0:
                items = items[: where.before]
            for binding in candidates(items or ()):
                if binding.kind == "import":
                    return Ref(f"{binding.source}.{binding.extra}" if binding.extra else binding.source)
                if binding.kind == "def":
                    node = definition(self.store.block(where.table.path, binding.start, binding.end))
                    return Closure(node) if isinstance(node, ast.FunctionDef) else UNKNOWN
                if binding.kind == "value":
                    found = self.constant(Where(where.table, where.classes, name, 0), binding.source)
                    return (
                        Ref(f"{where.table.dotted}.{name}") if isinstance(found, Applied) or found is UNKNOWN else found
                    )
                if binding.kind == "class":
                    return Ref(f"{where.table.dotted}.{name}")
                return UNKNOWN
        return Ref(f"{where.table.dotted}.{name}" if where.table.scope.stars else name)

    def value_of(self, dotted: str) -> object:
        """Return the constant that a dotted path stands for; members of enums stay names."""
        if self._depth > MAX_DEPTH or "." not in dotted:
            return UNKNOWN
        if dotted.endswith(".__all__"):
            table = self.store.module(dotted.removesuffix(".__all__"))
            names, complete = self.exports(table) if table is not None else (frozenset(), False)
            return sorted(names) if complete else [*sorted(names), UNKNOWN]
        self._depth += 1
        try:
            found = self.model.resolve(dotted) if self.store.owns(dotted) else None
        finally:
            self._depth -= 1
        if not isinstance(found, Found) or found.symbol.kind is not SymbolKind.VALUE or not found.symbol.file:
            return UNKNOWN
        located = self.model.definitions.locate(found.symbol)
        if located is None or found.symbol.owner:
            return Ref(found.symbol.dotted) if located else UNKNOWN
        value = self.constant(Where(located.table, located.classes), located.binding.source)
        return value if not isinstance(value, Ref | Applied) else UNKNOWN

    def folded(self, where: Where, source: str) -> str | None:
        """Return the value of a default as text that is equal for equal values; None if it is not known."""
        if not source or source == "...":
            return None
        value = self.constant(where, source)
        if isinstance(value, Ref):
            read = self.value_of(value.dotted)
            value = value if read is UNKNOWN or read is ... else read  # `_NoValue: Final = ...` in a stub
        return render(value)

    def exports(self, table: ModuleTable) -> tuple[frozenset[str], bool]:
        """Names in `__all__`, and whether all are known."""
        found = self._exports.get(table.path)
        if found is None:
            self._exports[table.path] = (frozenset(), False)  # a circle of star imports sees no names
            names: set[str] = set()
            complete = bool(table.exports)
            if not table.exports and any(each.kind == "import" for each in table.scope.bindings.get("__all__", ())):
                imported = self.model.resolve(f"{table.dotted}.__all__")
                path = imported.symbol.file if isinstance(imported, Found) else ""
                if path:
                    found = self._exports[table.path] = self.exports(self.store.table(path))
                    return found
            for action, source in table.exports:
                value = self.constant(Where(table), source)
                if isinstance(value, Ref):
                    value = self.value_of(value.dotted)
                if not isinstance(value, list | tuple | set | frozenset):
                    complete = False
                    continue
                if action == "perhaps" and names and "__all__" not in source:
                    complete = False  # one of several branches: which one runs is not known
                elif action != "add" and "__all__" not in source:
                    names.clear()
                names.update(item for item in value if isinstance(item, str))
                complete = complete and all(isinstance(item, str) for item in value)
            found = self._exports[table.path] = frozenset(names), complete
        return found


def render(value: object) -> str | None:
    """Write a constant as text."""
    if isinstance(value, Ref):
        return f"<{value.dotted}>" if "." in value.dotted else None
    if isinstance(value, set | frozenset) and concrete(value):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return repr(value) if concrete(value) else None
