"""Attributes of modules: bindings, re-exports, star imports, stubs, lazy structures, `__getattr__`, sub-modules."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.python.source import dotted_name, parse_expression
from tooling.python.symbols.definitions import Where
from tooling.python.symbols.made_names import MadeNames
from tooling.python.symbols.symbol import Absent, Found, Open, Provider, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.symbols.definitions import Model
    from tooling.python.symbols.symbol import Resolution
    from tooling.python.tables import ModuleTable, NameBinding, Star

MAX_HOPS = 60
_SECONDARY = (".setter", ".deleter", ".getter", ".register", "overload", "typing.overload")
_PLACEHOLDERS = ("None", "object", "False", "...")
_DUNDERS = ("__name__", "__doc__", "__file__", "__path__", "__spec__", "__loader__", "__package__", "__dict__")


def candidates(items: Sequence[NameBinding]) -> list[NameBinding]:
    """Return the bindings of a name that may be in force after all of them ran, the most telling first.

    Definitions before placeholders, a `try` before its `except`; setters and overloads only if nothing else is there.
    """
    found: list[NameBinding] = []
    secondary: list[NameBinding] = []
    for item in reversed(items):
        if item.where == "typing":
            continue
        if item.kind == "delete":
            if not item.where:
                break
            continue
        if any(decorator.split("(")[0].endswith(_SECONDARY) for decorator in item.decorators):
            secondary.append(item)
            continue
        found.append(item)
        if not item.where:
            break
    found.reverse()
    found.sort(key=lambda item: (item.source in _PLACEHOLDERS and item.kind == "value", item.where == "except"))
    return found or list(reversed(secondary))


class ModuleFollower:
    """Looks names up in modules. Answers are kept for the run; circles are open."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.store = model.store
        self.definitions = model.definitions
        self.made = MadeNames(model)
        self._answers: dict[tuple[str, str], Resolution] = {}
        self._active: set[tuple[str, str]] = set()

    # Modules themselves

    def module(self, dotted: str) -> Resolution:
        """Find a module by its full name, as an import statement finds it."""
        if self.store.exists(dotted) or self.store.above(dotted):
            path = self.store.sources.get(dotted) or self.store.stubs.get(dotted) or ""
            return Found(self.definitions.module(dotted, path))
        if not self.store.owns(dotted):
            return Open(f"{dotted} is not part of this distribution")
        return self.made.missing(dotted)

    # Attributes

    def resolve(self, dotted: str) -> Resolution:
        """Follow a dotted path as `import` reads it: the longest module, then attributes of it.

        A package may give the name of one of its modules to something else (`from .tqdm import tqdm`): what is not in
        the module is looked for there.
        """
        parts = dotted.split(".")
        longest = next(
            (depth for depth in range(len(parts) - 1, 0, -1) if self.store.exists(".".join(parts[:depth]))), 1
        )
        found = self._walk(parts, longest)
        if isinstance(found, Found) or longest == 1:
            return found
        shadowed = self._walk(parts, 1)
        return shadowed if isinstance(shadowed, Found) else found

    def _walk(self, parts: list[str], depth: int) -> Resolution:
        """From the module of the first `depth` parts on, by attributes."""
        while depth < len(parts) and self.store.above(".".join(parts[:depth])):
            depth += 1
        found = self.module(".".join(parts[:depth]))
        through: tuple[str, ...] = ()
        deprecated = ""
        for part in parts[depth:]:
            if not isinstance(found, Found):
                return found
            through += found.through
            deprecated = deprecated or found.deprecated
            found = self.model.member(found.symbol, part)
        if isinstance(found, Found):
            return replace(found, through=through + found.through, deprecated=deprecated or found.deprecated)
        return found

    def attribute(self, module: str, name: str) -> Resolution:
        """Find an attribute of a module of the tree."""
        key = (module, name)
        found = self._answers.get(key)
        if found is not None:
            return found
        if key in self._active or len(self._active) > MAX_HOPS:
            return Open(f"{module}.{name} refers to itself")
        self._active.add(key)
        try:
            found = self._attribute(module, name)
        finally:
            self._active.discard(key)
        if not self._active or not isinstance(found, Open):
            self._answers[key] = found
        return found

    def _attribute(self, module: str, name: str) -> Resolution:
        table = self.store.module(module)
        if table is None:
            return self._in_folder(module, name)
        if table.problem:
            return Open(f"{table.path} cannot be read: {table.problem}")
        if table.replaced:
            answer = self.made.lazy(table, name)
            if answer is not None:
                return answer
        found = self._bound(table, name)
        # Of a value of unknown nature a stub may say more
        if isinstance(found, Found) and (found.symbol.kind is not SymbolKind.VALUE or found.symbol.file != table.path):
            return found
        stub = self.store.stub(module)
        from_stub = self._bound(stub, name) if stub is not None and not stub.problem else None
        if isinstance(from_stub, Found):
            return from_stub
        if found is None:
            return self._made(table, name)
        if isinstance(found, Open):  # a star import that may bring it; a sub-module is certain
            made = self._made(table, name)
            absent = Absent(module, name, table.path, 1, provider=Provider.STAR)
            return made if isinstance(made, Found) else replace(found, beside=absent)
        return found

    def _in_folder(self, module: str, name: str) -> Resolution:
        inner = f"{module}.{name}"
        if self.store.exists(inner) or self.store.above(inner):
            return self.module(inner)
        if module in self.store.native:
            return Open(f"{module} is compiled and has no stub", compiled=inner)
        return self.made.missing(inner) if self.store.owns(inner) else Open(f"{inner} is not part of this distribution")

    def _bound(self, table: ModuleTable, name: str) -> Resolution | None:
        """By bindings and star imports of one file; None if neither has the name."""
        items = table.scope.bindings.get(name)
        if items:
            found = self.of_bindings(Where(table), name, items)
            if found is not None:
                return found
        return self._starred(table, name, typing=table.path.endswith(".pyi"))

    def _made(self, table: ModuleTable, name: str) -> Resolution:
        """Names that are in no binding."""
        inner = f"{table.dotted}.{name}"
        if table.package and (self.store.exists(inner) or self.store.above(inner)):
            return self.module(inner)
        if name in _DUNDERS:
            return Found(replace(self.definitions.outside(f"types.ModuleType.{name}")))
        hooks = table.scope.bindings.get("__getattr__", ())
        binding = next((item for item in hooks if item.kind == "def"), hooks[0] if hooks else None)
        found = self.made.by_getattr(table, binding, name) if binding is not None else None
        if found is not None and not (isinstance(found, Absent) and table.dynamic):
            return found
        if table.dynamic:
            written = self.made.dynamic(table, name)
            return found if found is not None and isinstance(written, Absent) else written
        if table.path.endswith(".pyi"):
            return Open(f"{table.dotted} is compiled, and its stub may lack something")
        if table.package:
            missing = self.made.missing(inner)
            if not isinstance(missing, Absent):
                return missing
        return Absent(table.dotted, name, table.path, 1)

    # Bindings

    def of_bindings(self, where: Where, name: str, items: Sequence[NameBinding]) -> Resolution | None:
        """Return what the name is after all these bindings; None if none of them counts."""
        best: Resolution | None = None
        for binding in candidates(items):
            found = self._of_binding(where, name, binding, list(items).index(binding))
            if isinstance(found, Found) and found.symbol.file and not found.symbol.refuses:
                return found
            if best is None or _better(found, best):
                best = found
        return best

    def _of_binding(self, where: Where, name: str, binding: NameBinding, index: int) -> Resolution:
        if binding.kind == "import":
            return self._imported(where, name, binding)
        if binding.kind == "value":
            target = self._alias(replace(where, name=name, before=index), binding)
            if isinstance(target, Found) and target.symbol.file:
                step = f"{where.table.dotted}.{name}"
                own = target.symbol.dotted == step
                return target if own else replace(target, through=(step, *target.through))
        return Found(self.definitions.make(where.table, name, binding, where.classes))

    def _imported(self, where: Where, name: str, binding: NameBinding) -> Resolution:
        module = binding.source
        if not (self.store.owns(module) or self.store.above(module)):
            return Found(self.definitions.outside(f"{module}.{binding.extra}" if binding.extra else module))
        found = self.module(module)
        if binding.extra and isinstance(found, Found):
            source, inner = found.symbol.dotted, f"{found.symbol.dotted}.{binding.extra}"
            busy = (source, binding.extra) in self._active and self.store.exists(inner)
            found = self.module(inner) if busy else self.attribute(source, binding.extra)
        if isinstance(found, Found):
            step = f"{where.table.dotted}.{name}"
            return found if found.symbol.dotted == step else replace(found, through=(step, *found.through))
        return found

    def _alias(self, where: Where, binding: NameBinding) -> Resolution | None:
        """Return what `A = B`, `A = keeps_it(B)` or `A = B if x else C` is another name for."""
        node = parse_expression(binding.source)
        if isinstance(node, ast.IfExp):
            parts = [part for part in (node.body, node.orelse) if dotted_name(part)]
        else:
            parts = [node] if node is not None else []
        for part in parts:
            if isinstance(part, ast.Call):
                return self._wrapped(where, part)
            source = dotted_name(part)
            found = self.model.expression(where, source) if source else None
            if isinstance(found, Found) and found.symbol.file:
                return found
        return None

    def _wrapped(self, where: Where, call: ast.Call) -> Resolution | None:
        inner = dotted_name(call.args[0]) if call.args else ""
        if not inner:
            return None
        found = self.model.expression(where, inner)
        wanted = (SymbolKind.CLASS, SymbolKind.FUNCTION)
        if isinstance(found, Found) and found.symbol.file and found.symbol.kind in wanted:
            callee = ast.unparse(call.func)
            return found if self.model.keeps(where, callee) else None
        return None

    # Stars

    def by_star(self, table: ModuleTable, name: str) -> Resolution | None:
        """Find a name that a star import brings, those for type checkers included."""
        return self._starred(table, name, typing=True)

    def _starred(self, table: ModuleTable, name: str, *, typing: bool) -> Resolution | None:
        unknown: Resolution | None = None
        for star in reversed(table.scope.stars):
            if star.where == "typing" and not typing:
                continue
            found = self._by_star(table, star, name)
            if isinstance(found, Found):
                step = f"{table.dotted}.{name}"
                return replace(found, through=(step, *found.through))
            unknown = unknown or found
        return unknown

    def _by_star(self, table: ModuleTable, star: Star, name: str) -> Resolution | None:
        module = star.module
        if star.copies:
            source = self.model.expression(Where(table), star.module)
            if not isinstance(source, Found):
                return source
            module = source.symbol.dotted
        elif name.startswith("_") and not self._exports(module, name):
            return None
        if not self.store.owns(module):
            return Open(f"{table.dotted} has a star import of {module}")
        if not star.copies and not self._exports(module, name):
            return None
        found = self.attribute(module, name) if self.store.exists(module) else Open(f"{module} is not there")
        compiled = self.store.stubs.get(module) if module not in self.store.sources else None
        if isinstance(found, Open) and compiled and not name.startswith("_"):
            return None  # stubs of compiled modules are complete in what is public
        return None if isinstance(found, Absent) else found

    def _exports(self, module: str, name: str) -> bool:
        """Whether `from module import *` brings a name, if the module has it."""
        table = self.store.module(module)
        if table is None:
            return not name.startswith("_")
        names, complete = self.model.exports(table)
        if complete:
            return name in names
        return name in names or not name.startswith("_")


def _better(found: Resolution, best: Resolution) -> bool:
    order = (Absent, Open, Found)
    if isinstance(found, Found) and isinstance(best, Found):
        return bool(found.symbol.file) and not best.symbol.file
    return order.index(type(found)) > order.index(type(best))
