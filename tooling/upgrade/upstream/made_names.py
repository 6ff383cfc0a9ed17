"""Names and modules that stand nowhere: made by lazy modules, `__getattr__`, `globals()`, `sys.modules` and finders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.python.operations import Ref
from tooling.python.tables import NameBinding
from tooling.upgrade.symbols import Absent, Found, Open, Symbol, SymbolKind
from tooling.upgrade.upstream.model import Where
from tooling.upgrade.upstream.runtime import Runtime

if TYPE_CHECKING:
    from tooling.python.tables import ModuleTable
    from tooling.upgrade.symbols import Resolution
    from tooling.upgrade.upstream.model import Model
    from tooling.upgrade.upstream.runtime import RuntimeNames


class MadeNames:
    """Looks up what code makes while a module is imported."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.store = model.store
        self.definitions = model.definitions
        self.runtime = Runtime(model)

    def missing(self, dotted: str) -> Resolution:
        """A module that is in no file may be made at run time, by a package above it."""
        parent, _, name = dotted.rpartition(".")
        above = parent
        while above:
            table = self.store.module(above)
            if table is not None and table.makes_modules:
                answer: Resolution | None
                made = self.runtime.made(table)
                target: str | None = made.aliases.get(dotted)
                if target is None and made.finder:
                    target = self.runtime.found_by_finder(table, dotted)
                if target is None and dotted.rpartition(".")[0] == table.dotted and self._quoted(table, dotted):
                    target = ""
                if target is None:
                    answer = Open(f"{table.dotted} makes modules at run time") if made.lost and made.aliases else None
                elif not target or target == dotted:
                    answer = Open(f"{dotted} is made at run time")
                else:
                    found = self.model.resolve(target)
                    answer = replace(found, through=(dotted, *found.through)) if isinstance(found, Found) else found
                if answer is not None:
                    return answer
            above = above.rpartition(".")[0]
        container = self.model.module(parent) if parent else None
        if isinstance(container, Open):
            return container
        symbol = container.symbol if isinstance(container, Found) else None
        return Absent(parent, name, symbol.file if symbol else "", 1 if symbol and symbol.file else 0)

    def _quoted(self, table: ModuleTable, dotted: str) -> bool:
        """Whether a package that writes `sys.modules` names the module in a string."""
        text = self.store.block(table.path, 1, 1 << 30)
        name = dotted.rpartition(".")[2]
        endings = (f"{name}'", f'{name}"')
        return any(f"{start}{ending}" in text for ending in endings for start in ("'", '"', "."))

    def dynamic(self, table: ModuleTable, name: str) -> Resolution:
        """In a module whose code writes computed names into `globals()`."""
        made = self.runtime.made(table)
        if name in made.names:
            target = made.names[name]
            found = self.model.resolve(target) if "." in target else None
            if isinstance(found, Found):
                return found
            return Found(Symbol(kind=SymbolKind.VALUE, dotted=f"{table.dotted}.{name}", file=table.path, line=1))
        if made.lost or not made.names:
            return Open(f"{table.dotted}: {table.dynamic}")
        return Absent(table.dotted, name, table.path, 1)

    def lazy(self, table: ModuleTable, name: str) -> Resolution | None:
        """In a module that puts another object in its place; None: look at what it binds."""
        made = self.runtime.made(table)
        if made.lazy is None:
            return None if name in table.scope.bindings else Open(f"{table.dotted} replaces itself by another object")
        found = self._structured(table, made, name)
        if found is not None:
            return found
        inner = f"{table.dotted}.{name}"
        if made.lazy.get(name) == "":
            # A value that the module hands to the object in its place
            own = self.definitions.make(table, name, NameBinding("opaque", 1, 1, 1, ""))
            return None if name in table.scope.bindings else Found(own)
        if name.startswith("__") and not made.lost:
            return None
        if self.store.exists(inner):
            return self.model.module(inner)
        missing = self.missing(inner)
        if not isinstance(missing, Absent):
            return missing
        shorter = self._fallback(table, made, name)
        if shorter is None and made.lost:
            return Open(f"{table.dotted} is lazy in a way that is not understood")
        return shorter or Absent(table.dotted, name, table.path, 1)

    def _structured(self, table: ModuleTable, made: RuntimeNames, name: str) -> Resolution | None:
        """By the structure of a lazy module; substitutes for missing packages only if nothing else is there."""
        target = (made.lazy or {}).get(name)
        if target is None or "dummy" in target:
            for prefix in made.folders:
                exported = self.runtime.exported_by(f"{table.dotted}.{prefix}".rstrip("."))
                if name in exported:
                    return self._from_lazy(table, exported[name], name)
        return self._from_lazy(table, f"{table.dotted}.{target}", name) if target else None

    def _fallback(self, table: ModuleTable, made: RuntimeNames, name: str) -> Resolution | None:
        """By a shorter name, where the lazy module's class tries one."""
        for ending, cut, warns in self.runtime.fallbacks(made.kind) if not name.startswith("__") else ():
            shorter = self.model.attribute(table.dotted, name[:-cut]) if name.endswith(ending) else None
            if isinstance(shorter, Found):
                text = f"{name} is deprecated; use {name[:-cut]} instead" if warns else shorter.deprecated
                step = f"{table.dotted}.{name}"
                return replace(shorter, through=(step, *shorter.through), deprecated=text)
        return None

    def _from_lazy(self, table: ModuleTable, module: str, name: str) -> Resolution:
        found = self.model.attribute(module, name) if self.store.exists(module) else self.model.module(module)
        if isinstance(found, Found):
            return replace(found, through=(f"{table.dotted}.{name}", *found.through))
        return found

    def by_getattr(self, table: ModuleTable, binding: NameBinding, name: str) -> Resolution:
        """By the `__getattr__` of a module."""
        execution = self.runtime.getattr_outcomes(table, binding, name)
        if execution is None:
            return Open(f"{table.dotted}.__getattr__ is not understood")
        given = [outcome for outcome in execution.outcomes if not outcome.raised]
        if not given:
            if execution.lost or not execution.outcomes:
                return Open(f"{table.dotted}.__getattr__ is not understood")
            return Absent(table.dotted, name, table.path, binding.line)
        if execution.unsure or execution.lost:
            return Open(f"{table.dotted}.__getattr__ decides by something that is not known")
        absent: Resolution | None = None
        warning = ""
        for outcome in execution.outcomes:
            if outcome.raised:
                continue
            warning = warning or outcome.warning
            if isinstance(outcome.value, Ref):
                # A name as the interpreter gives it: of this release, of the module at hand, or of another distribution
                dotted = outcome.value.dotted
                if self.store.owns(dotted):
                    found = self.model.resolve(dotted)
                else:
                    first = dotted.partition(".")[0]
                    if first in table.scope.bindings:
                        found = self.model.expression(Where(table), dotted)
                    else:
                        found = Found(self.definitions.outside(dotted))
                if isinstance(found, Found):
                    step = f"{table.dotted}.{name}"
                    return replace(found, through=(step, *found.through), deprecated=outcome.warning)
                absent = absent or found
        value = NameBinding("opaque", binding.line, binding.start, binding.end, "")
        symbol = self.definitions.make(table, name, value)
        return absent or Found(symbol, (), warning)
