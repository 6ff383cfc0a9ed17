"""Find names and modules that stand nowhere: by lazy modules, `__getattr__`, `globals()`, `sys.modules`, finders."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tooling.python.execution import FunctionExit, RaisesError, StatementEvaluator
from tooling.python.once import once
from tooling.python.operations import UNKNOWN, Applied, Closure, Fuel, OutOfFuel, Ref, concrete
from tooling.python.source import REFUSALS, absolute, definition, dotted_name, package_of, parse, parsed
from tooling.python.symbols.definitions import Where
from tooling.python.symbols.symbol import Absent, Found, Open, Provider, Symbol, SymbolKind
from tooling.python.tables import NameBinding

if TYPE_CHECKING:
    from collections.abc import Container

    from tooling.python.source import FunctionNode
    from tooling.python.symbols.definitions import Model
    from tooling.python.symbols.store import TreeStore
    from tooling.python.symbols.symbol import Resolution
    from tooling.python.tables import ModuleTable

_ALL = re.compile(rb"^__all__\s*(?::[^=\n]*)?\+?=\s*[\[(](.*?)[\])]", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(rb"""["']([A-Za-z_]\w*)["']""")
_REQUIRED = re.compile(rb"^@requires\b[^\n]*\n(?:[ \t@)#][^\n]*\n|\n)*(?:class|def|async def)\s+(\w+)", re.MULTILINE)
_ENDS = re.compile(r"""\.endswith\(\s*["'](\w+)["']\s*\)""")
_CUT = re.compile(r"\w\[:-(\d+)\]")
MAX_STEPS = 60_000
"""Of one module's body: the largest lazy module seen takes a tenth of it."""
_UNEXPORTED = ("convert_", "modular_")


@dataclass(frozen=True)
class Folder:
    """Stands for all names that `define_import_structure` finds in a folder, below `prefix`."""

    prefix: str


@dataclass
class RuntimeNames:
    """What running a module's body makes, beside the names it binds. Plain values: it is kept."""

    lazy: dict[str, str] | None = None
    """Names of a lazy module: the sub-module each comes from ("" for the module's own)."""
    submodules: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Prefixes of folders whose files say what is exported."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Modules put into `sys.modules`: what they are; "" for something unknown."""
    names: dict[str, str] = field(default_factory=dict)
    """Names put into `globals()`."""
    finder: bool = False
    lost: bool = False
    """Not all of it was understood."""
    kind: str = ""
    """Dotted path of the class of a lazy module."""

    def plain(self) -> list[Any]:
        """As arguments of the constructor, in order."""
        return [self.lazy, self.submodules, self.folders, self.aliases, self.names, self.finder, self.lost, self.kind]


class Runtime:
    """Follows module bodies and `__getattr__` functions on demand."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.store: TreeStore = model.store
        self._made: dict[str, RuntimeNames] = {}
        self._executions: dict[str, StatementEvaluator] = {}

    def made(self, table: ModuleTable) -> RuntimeNames:
        """Return what importing a module makes."""
        found = self._made.get(table.path)
        if found is None:
            self._made[table.path] = RuntimeNames(lost=True)  # a module that asks for itself
            kept = self.store.answer(("made", table.path), lambda: self._run(table).plain())
            found = self._made[table.path] = RuntimeNames(*kept)
        return found

    def _execution(self, table: ModuleTable) -> StatementEvaluator:
        found = self._executions.get(table.path)
        if found is None:
            package = package_of(table.path)
            found = StatementEvaluator(package=package, apply=_applied, fuel=Fuel(MAX_STEPS))
            found.env.update({"__name__": table.dotted, "__package__": package})
            found.lookup = Ref  # builtins and what star imports bring
            found.read = self._read
            try:
                found.run(parse(self.store.block(table.path, 1, 1 << 30)).body)
            except REFUSALS:
                found.lost = True
            self._executions[table.path] = found
        return found

    def _read(self, dotted: str) -> object:
        """Constants of other modules; with `__dir__` the names that a module binds, with `__dict__` what they are."""
        module, _, name = dotted.rpartition(".")
        if name not in ("__dir__", "__dict__"):
            value = self.model.value_of(dotted)
            return UNKNOWN if value is not UNKNOWN and self._is_written(name) else value
        table = self.store.module(module)
        if name == "__dir__":
            return sorted(table.scope.bindings) if table is not None else UNKNOWN
        if table is None or any(star.where != "typing" for star in table.scope.stars):
            return UNKNOWN
        return dict.fromkeys(table.scope.bindings, UNKNOWN)

    def _is_written(self, name: str) -> bool:
        """Whether some file changes what a name holds after it was bound: `TABLE["x"] = ...`, `global LOADED`."""

        def look() -> bool:
            word = re.escape(name)
            changing = "append|add|clear|discard|extend|insert|pop|popitem|remove|setdefault|update"
            pattern = re.compile(
                rf"\b{word}\s*\[[^\]\n]*\]\s*(?:[-+|&]?=(?!=))|\b{word}\.(?:{changing})\(|\b{word}\s*[-+|&]=|\.{word}\s*=(?!=)"
                rf"|\bglobal\b[^\n]*\b{word}\b|\bdel\s+{word}\b".encode()
            )
            texts = (self.store.source.read(path) for path in self.store.sources.values())
            return any(pattern.search(text) for text in texts if name.encode() in text)

        return bool(self.store.answer(("written", name), look))

    def _around(self, table: ModuleTable) -> StatementEvaluator:
        """Make an evaluation in which names are those of a module."""
        package = package_of(table.path)

        def look(name: str) -> object:
            *before, last = table.scope.bindings.get(name, (None,))
            if before and last is not None and last.kind == "delete" and before[-1].kind == "import":
                last = before[-1]  # `from ._util import tidy; tidy(globals()); del tidy`
                return Ref(f"{last.source}.{last.extra}" if last.extra else last.source)
            value = self.model.name_value(Where(table), name)
            fixed = isinstance(value, Ref | Closure) or value is UNKNOWN
            return value if fixed or not self._is_written(name) else UNKNOWN

        around = StatementEvaluator(look, self._read, package=package)
        around.env.update({"__name__": table.dotted, "__package__": package})
        around.function_of = self._function_of
        return around

    @once(meanwhile=None)  # a value that asks for itself
    def _function_of(self, dotted: str) -> Closure | None:
        """Find the function that a path stands for: one that is defined, or that a call of such a one returns."""
        found = self.model.resolve(dotted) if self.store.owns(dotted) else None
        located = self.model.definitions.locate(found.symbol) if isinstance(found, Found) else None
        return self._function(located.table, located.binding) if located is not None and not located.classes else None

    def _function(self, table: ModuleTable, binding: NameBinding) -> Closure | None:
        if binding.kind == "import":
            return self._function_of(f"{binding.source}.{binding.extra}") if binding.extra else None
        around = self._around(table)
        block = self.store.block(table.path, binding.start, binding.end)
        if binding.kind in ("value", "opaque"):
            # `__getattr__ = make(...)`, `__getattr__, __dir__ = attach(__name__, NAMES)`
            target, value = self._handed_out(around, block)
            if isinstance(target, ast.Tuple) and isinstance(value, tuple):
                value = dict(zip(map(dotted_name, target.elts), value, strict=False)).get("__getattr__")
            return value if isinstance(value, Closure) and value.made_in is not None else None
        node = definition(block)
        if not isinstance(node, ast.FunctionDef):
            return None
        names = {dotted_name(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list}
        kept = names <= {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}
        return Closure(node, around) if kept else None

    def _handed_out(self, around: StatementEvaluator, block: str) -> tuple[ast.expr | None, object]:
        """Find what a statement binds to the result of a call, and that result."""
        tree = parsed(block)  # `except ImportError: __getattr__ = make()` does not stand alone
        statement = tree.body[0] if tree is not None and tree.body else None
        if isinstance(statement, ast.If):
            statement = statement.body[0]
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function = around.evaluate(statement.value.func)
            function = self._function_of(function.dotted) if isinstance(function, Ref) else function
            if isinstance(function, Closure):  # which may put one into the `globals()` that it is given
                given = _given_globals(function.node, statement.value)
                if given and _are_read(function.node, given, ast.Load):
                    return ast.Name("__getattr__"), None
                around.inline(function, *around.arguments(statement.value))
                own = {each.arg for each in (*function.node.args.args, *function.node.args.kwonlyargs)}
                known = not around.lost and _are_read(function.node, own, ast.Load, ast.Store, ast.Del)
                return ast.Name("__getattr__"), around.named.get("__getattr__", None if known else UNKNOWN)
            return None, UNKNOWN
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            return None, UNKNOWN
        try:
            return statement.targets[0], around.evaluate(statement.value)
        except (RaisesError, OutOfFuel):
            return None, UNKNOWN

    def makes_none(self, table: ModuleTable, binding: NameBinding) -> bool:
        """Whether a function that a module hands its `globals()` to surely puts nothing into it."""
        block = self.store.block(table.path, binding.start, binding.end)
        return bool(binding.extra) and self._handed_out(self._around(table), block)[1] is None

    def attached(self, table: ModuleTable, binding: NameBinding) -> Applied | None:
        """Return the call of another package that a module takes its `__getattr__` from."""
        block = self.store.block(table.path, binding.start, binding.end)
        _, value = self._handed_out(self._around(table), block)
        return value if isinstance(value, Applied) else None

    def _run(self, table: ModuleTable) -> RuntimeNames:
        execution = self._execution(table)
        made = RuntimeNames(finder=bool(execution.finders), lost=execution.lost)
        for key, value in execution.stored.items():
            if key == table.dotted:
                self._lazy(value, made)
            else:
                made.aliases[key] = value.dotted if isinstance(value, Ref) else _module_of(value)
        made.names = {name: value.dotted if isinstance(value, Ref) else "" for name, value in execution.named.items()}
        return made

    def _lazy(self, value: object, made: RuntimeNames) -> None:
        """`_LazyModule(name, file, structure, ..., extra_objects=...)`, by the shape of its arguments."""
        if not isinstance(value, Applied):
            made.lost = True
            return
        named = [item for key, item in value.keywords.items() if "structure" in key]
        structure = next((item for item in [*value.args, *named] if isinstance(item, dict)), None)
        if not isinstance(structure, dict):
            made.lost = True
            return
        made.lazy, made.kind = {}, value.callee
        for key, names in structure.items():
            self._entries({key: names} if not isinstance(key, frozenset) else names, made)
        extra = value.keywords.get("extra_objects")
        if isinstance(extra, dict):
            made.lazy.update({name: "" for name in extra if isinstance(name, str)})

    def _entries(self, entries: object, made: RuntimeNames) -> None:
        if not isinstance(entries, dict) or made.lazy is None:
            made.lost = True
            return
        for key, names in entries.items():
            if isinstance(key, Folder):
                made.folders.append(key.prefix)
            elif isinstance(key, str):
                made.submodules.append(key)
                listed = names if isinstance(names, list | set | tuple | frozenset) else ()
                made.lost = made.lost or not isinstance(names, list | set | tuple | frozenset) or UNKNOWN in names
                for name in listed:
                    if isinstance(name, str):
                        made.lazy.setdefault(name, key)  # substitutes for missing packages comes later
            else:
                made.lost = True

    def fallbacks(self, kind: str) -> list[tuple[str, int, bool]]:
        """Return endings that the `__getattr__` of a lazy module's class cuts off from missing names: (ending,
        characters cut, whether it warns)."""

        def find() -> list[tuple[str, int, bool]]:
            found = self.model.resolve(f"{kind}.__getattr__") if self.store.owns(kind) else None
            located = self.model.definitions.locate(found.symbol) if isinstance(found, Found) else None
            if located is None:
                return []
            text = self.store.block(located.table.path, located.binding.start, located.binding.end)
            parts = _ENDS.split(text)[1:]
            cuts = [(ending, _CUT.search(rest), rest) for ending, rest in zip(parts[::2], parts[1::2], strict=True)]
            return [(ending, int(cut[1]), "is deprecated" in rest) for ending, cut, rest in cuts if cut]

        return list(self.store.answer(("fallbacks", kind), find))

    def exported_by(self, package: str) -> dict[str, str]:
        """Names that the files below a package export by `__all__` or `@requires`, with the module of each."""
        return dict(self.store.answer(("structure", package), lambda: self._exports(package)))

    def _exports(self, package: str) -> dict[str, str]:
        found: dict[str, str] = {}
        prefix = f"{package}."
        for dotted, path in self.store.sources.items():
            if not dotted.startswith(prefix) or path.endswith("/__init__.py"):
                continue
            if dotted.rpartition(".")[2].startswith(_UNEXPORTED):
                continue
            data = self.store.source.read(path)
            for match in _ALL.finditer(data) if b"__all__" in data else ():
                found.update(dict.fromkeys((name.decode() for name in _QUOTED.findall(match[1])), dotted))
            if b"@requires" in data:
                found.update(dict.fromkeys((name.decode() for name in _REQUIRED.findall(data)), dotted))
        return found

    def found_by_finder(self, table: ModuleTable, dotted: str) -> str | None:
        """Return the module that a finder on `sys.meta_path` makes of a dotted path: "" if that is not known, None if
        it leaves it alone."""

        def ask() -> str | None:
            answers = [self._ask(finder, dotted, table) for finder in self._execution(table).finders]
            return next((answer for answer in answers if answer is not None), None)

        found = self.store.answer(("finder", table.path, dotted), ask)
        return None if found is None else str(found)

    def _ask(self, finder: object, dotted: str, table: ModuleTable) -> str | None:
        functions = [item for item in finder.args if isinstance(item, Closure)] if isinstance(finder, Applied) else []
        function = functions[0].node if functions else None
        if not isinstance(function, ast.FunctionDef) or not function.args.args:
            return ""
        outer = self._execution(table)
        execution = StatementEvaluator(outer.lookup, outer.read, dict(outer.env), package=outer.package)
        execution.watched = function.args.args[0].arg
        execution.env[execution.watched] = dotted
        if not execution.run(function.body):
            execution.outcomes.append(FunctionExit("", None))
        values = {outcome.value if isinstance(outcome.value, str | None) else "" for outcome in execution.outcomes}
        if execution.lost or len(values) != 1:
            return ""
        value = values.pop()
        return value if value is None or isinstance(value, str) else ""

    def getattr_outcomes(self, table: ModuleTable, binding: NameBinding, name: str) -> StatementEvaluator | None:
        """Follow a module's `__getattr__` for one name; None if there is nothing to follow."""
        function = self._function(table, binding)
        node = function.node if function is not None else None
        if function is None or not isinstance(node, ast.FunctionDef) or not node.args.posonlyargs + node.args.args:
            return None
        around: StatementEvaluator = function.made_in
        execution = StatementEvaluator(around.lookup, around.read, dict(around.env), package=around.package)
        execution.function_of = self._function_of
        execution.watched = (node.args.posonlyargs + node.args.args)[0].arg
        execution.env[execution.watched] = name
        execution.run(node.body)
        return execution


def _given_globals(function: FunctionNode | ast.Lambda, call: ast.Call) -> set[str | None]:
    """Return the parameters that get the `globals()` of a call."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    given = [*zip(names, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
    return {name for name, value in given if isinstance(value, ast.Call) and dotted_name(value.func) == "globals"}


def _are_read(
    function: FunctionNode | ast.Lambda, names: Container[str | None], *contexts: type[ast.expr_context]
) -> bool:
    """Whether a function only goes through what names hold, or takes items of it in these contexts.

    def set_modules(module, names):                 # does nothing else with `names`, and something with `module`
        for each in names.values():
            each.__module__ = module
    """
    read = {
        id(part.value)
        for part in ast.walk(function)
        if (isinstance(part, ast.Attribute) and part.attr in ("items", "keys", "values", "get", "copy"))
        or (isinstance(part, ast.Subscript) and isinstance(part.ctx, contexts))
    }
    named = (part for part in ast.walk(function) if isinstance(part, ast.Name) and part.id in names)
    return all(id(part) in read for part in named)


def _applied(call: Applied) -> object:
    if call.callee.rpartition(".")[2] == "define_import_structure":
        prefix = call.keywords.get("prefix", call.args[1] if len(call.args) > 1 else "")
        return {frozenset(): {Folder(prefix if isinstance(prefix, str) else ""): ()}}
    return call


def _module_of(value: object) -> str:
    """`types.ModuleType("x")` and other made modules are unknown."""
    if isinstance(value, Applied) and value.callee.endswith("import_module") and value.args:
        name = value.args[0]
        return absolute("", 0, name) if isinstance(name, str) else ""
    return ""


class MadeNames:
    """Looks up what code makes while a module is imported."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.store = model.store
        self.definitions = model.definitions
        self.runtime = Runtime(model)

    def missing(self, dotted: str) -> Resolution:
        """Look for a module that is in no file: a package above it may make it at run time."""
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
        """Whether a package that writes `sys.modules` names the module in a string: by its path or an end of that."""
        name = re.escape(dotted.rpartition(".")[2])
        written = re.findall(rf"""["']([\w.{{}}]*\b{name})["']""", self.store.block(table.path, 1, 1 << 30))
        return any(f".{dotted}".endswith(f".{each.rpartition('}')[2].lstrip('.')}") for each in written)

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
            absent = Absent(table.dotted, name, table.path, 1, provider=Provider.COMPUTED)
            return Open(f"{table.dotted}: {table.dynamic}", absent)
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
        """By the `__getattr__` of a module; a class of that name gives its members: `@caching_module_getattr`."""
        if binding.kind == "class":
            if name not in table.classes[binding.line].bindings:
                return Absent(table.dotted, name, table.path, binding.line)
            return Found(self.definitions.make(table, name, binding._replace(kind="opaque", source="")))
        execution = self.runtime.getattr_outcomes(table, binding, name)
        if execution is None:
            none = Absent(table.dotted, name, table.path, 1) if self.runtime.makes_none(table, binding) else None
            return none or self._attached(table, binding, name) or Open(f"{table.dotted}.__getattr__ is not understood")
        given = [outcome for outcome in execution.outcomes if not outcome.raised]
        if not given:
            if execution.lost or not execution.outcomes:
                return Open(f"{table.dotted}.__getattr__ is not understood")
            said = execution.outcomes[0].said if len(execution.outcomes) == 1 else ""
            return Absent(table.dotted, name, table.path, binding.line, said)
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

    def _attached(self, table: ModuleTable, binding: NameBinding, name: str) -> Resolution | None:
        """By the package `lazy_loader`: `__getattr__, __dir__, _ = lazy.attach_stub(__name__, __file__)` gives what the
        stub beside it has, `lazy.attach(__name__, ["io"], {"io": ["load"]})` the names in it; None for others."""
        told = self.runtime.attached(table, binding)
        if told is None or not told.callee.startswith("lazy_loader.attach"):
            return None
        absent = Absent(table.dotted, name, table.path, binding.line)
        if told.callee == "lazy_loader.attach_stub":
            return absent if self.store.stub(table.dotted) is not None else None
        if not all(map(concrete, (*told.args, *told.keywords.values()))):
            return None
        given = {**dict(zip(("", "submodules", "submod_attrs"), told.args, strict=False)), **told.keywords}
        modules, listed = given.get("submodules") or (), given.get("submod_attrs") or {}
        if not isinstance(modules, list | tuple | set) or not isinstance(listed, dict):
            return None
        home = next((module for module, names in listed.items() if name in names), "")
        if home:
            return self.model.resolve(f"{table.dotted}.{home}.{name}")
        return self.model.module(f"{table.dotted}.{name}") if name in modules else absent
