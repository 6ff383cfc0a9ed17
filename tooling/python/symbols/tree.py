"""A tree of source as symbols: the parts of this package put together."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Generic, TypeVar

from tooling.python.once import once
from tooling.python.source import alone, definition
from tooling.python.standard_library import is_builtin
from tooling.python.symbols import text_search
from tooling.python.symbols.constants import ConstantReader
from tooling.python.symbols.decorators import Decorators
from tooling.python.symbols.definitions import SymbolDefinitions, Where
from tooling.python.symbols.fields import Fields
from tooling.python.symbols.follow import PathFollower
from tooling.python.symbols.inference import TypeInference
from tooling.python.symbols.keywords import Keywords
from tooling.python.symbols.members import Members
from tooling.python.symbols.modules import ModuleFollower
from tooling.python.symbols.operators import Operators
from tooling.python.symbols.signatures import Signatures
from tooling.python.symbols.store import TreeStore
from tooling.python.symbols.symbol import Absent, Definite, Found, Open, SymbolKind, Values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tooling.python.access_paths import AccessPath
    from tooling.python.source import DefinitionNode, SourceTree
    from tooling.python.symbols.symbol import Resolution, Symbol
    from tooling.python.symbols.text_search import NameTable
    from tooling.python.tables import BodyTable, ModuleTable

MAX_DEPTH = 80
MAX_LINES = 4000
"""Of a definition; longer ones are data."""


Source = TypeVar("Source", bound="SourceTree")


class SymbolTree(Generic[Source]):
    """One tree of source; several that share a namespace are several, `owns` tells whose a name is.

    Answers are kept. No method raises for what the tree contains: a file that Python's parser refuses is open. It is
    `definitions.Model` for its parts.
    """

    def __init__(self, source: Source, cache: Path | None = None) -> None:
        """cache: folder for facts that are kept between runs, written when the object goes; None keeps nothing."""
        self.source = source
        self.store = TreeStore(source, cache)
        self.definitions = SymbolDefinitions(self.store)
        self.modules = ModuleFollower(self)
        self.members = Members(self, self.modules)
        self.values = ConstantReader(self)
        self.decorators = Decorators(self)
        self.fields = Fields(self, self.members, self.values)
        self.signatures = Signatures(self, self.members, self.fields, self.decorators, self.values)
        self.keywords = Keywords(self, self.members, self.fields, self.decorators, self.values)
        self.inference = TypeInference(self, self.members, self.fields)
        self.operators = Operators(self.members, self.fields)
        self.follower = PathFollower(self, self.inference)
        self._depth = 0
        # What the parts know, under one roof
        self.save, self.owns = self.store.save, self.store.owns
        self.module, self.attribute = self.modules.module, self.modules.attribute
        self.name_value, self.value_of, self.exports = self.values.name_value, self.values.value_of, self.values.exports
        self.keeps, self.signature = self.decorators.keeps, self.signatures.signature
        self.keyword, self.follow = self.keywords.keyword, self.follower.follow
        self.unpacked = self.follower.unpacked
        self.goes, self.setting_refused = self.operators.goes, self.operators.refusal
        self.as_python = self.operators.as_python

    @property
    def modules_read(self) -> int:
        """How many modules were looked into so far, be it their text or the facts that were kept of it."""
        return self.store.modules_read

    def resolve(self, dotted: str) -> Resolution:
        """Return what `import`-style access to a dotted path gives."""
        if not all(part.isidentifier() for part in dotted.split(".")):
            return Open(f"{dotted!r} is not a dotted name")
        return self.modules.resolve(dotted)

    def member(self, symbol: Symbol, name: str) -> Resolution:
        """Attribute of a module, class or instance."""
        if symbol.kind is SymbolKind.MODULE:
            return self.modules.attribute(symbol.dotted, name)
        if symbol.kind is SymbolKind.CLASS:
            return self.members.member(symbol, name)
        if symbol.kind is SymbolKind.VALUE and symbol.file:
            values, absent = self.inference.attribute(Values((Definite(symbol),)), name)
            known = values.types[0] if len(values.types) == 1 and not values.open and not absent else None
            if isinstance(known, Definite):
                return Found(known.symbol)
            if absent and not values.types and not values.open:
                return absent[0]
            return Open(f"attributes of {symbol.dotted} are not known")
        if symbol.kind is SymbolKind.FUNCTION and symbol.file and not symbol.owner and not hasattr(FunctionType, name):
            located = self.definitions.locate(symbol)
            if located is not None and not located.binding.decorators and not located.table.patches:
                return Absent(symbol.dotted, name, symbol.file, symbol.line)
        return Open(f"attributes of {symbol.dotted} are not known")

    def bases(self, symbol: Symbol) -> tuple[Sequence[Symbol], bool]:
        """Return the method resolution order of a class as far as the tree goes, and whether that is all."""
        if symbol.kind is not SymbolKind.CLASS:
            return (), False
        lineage = self.members.lineage(symbol)
        return lineage.classes, lineage.complete

    def source_of(self, symbol: Symbol) -> str:
        """Return the lines of a definition, without its decorators and what is beyond `MAX_LINES`; "" where they are
        not known."""
        if not symbol.file or not symbol.line:
            return ""
        return self.store.text(symbol.file, symbol.line, min(symbol.end_line or symbol.line, symbol.line + MAX_LINES))

    @once()
    def tree_of(self, symbol: Symbol) -> DefinitionNode | None:
        """Return a function or class as a syntax tree without decorators; None for anything else, and for source that
        cannot be parsed."""
        return definition(alone(self.source_of(symbol)))

    def function_of(self, symbol: Symbol) -> Symbol | None:
        """Return the function that a call runs: of a class its constructor; None where nobody wrote one."""
        if symbol.kind is not SymbolKind.CLASS:
            return symbol if symbol.kind is SymbolKind.FUNCTION else None
        found = self.member(symbol, "__init__")
        return found.symbol if isinstance(found, Found) and found.symbol.kind is SymbolKind.FUNCTION else None

    def keyword_reads(self, symbol: Symbol) -> Sequence[str]:
        """List the keywords that the body of a function or constructor looks up in its `**kwargs`."""
        function = self.function_of(symbol)
        facts = self.definitions.facts(function) if function is not None else None
        return facts.keyword_reads if facts is not None else ()

    def body_names(self, symbol: Symbol) -> Sequence[str]:
        """Names that a class's own body binds, without those of its bases."""
        scope = self.definitions.scope(symbol)
        return tuple(scope.bindings) if scope is not None else ()

    def value(self, access_path: AccessPath) -> Values | None:
        """Return what an expression of a client is worth, names replaced by the values behind them; None if it is not
        known."""
        outcome = self.follow(access_path)
        return self.inference.settled(outcome) if isinstance(outcome, Values) else None

    def calls_of(self, name: str) -> Sequence[tuple[str, int, str]]:
        """(file, line, source) of calls `<anything>.name(...)` in the release."""
        found = self.store.answer(("calls", name), lambda: text_search.calls_of(self.store, name))
        return [(path, line, source) for path, line, source in found]

    def imports(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """Return what its modules take from others by `from a import b`: importing module -> module -> names."""
        found: Mapping[str, Mapping[str, Sequence[str]]] = self.store.answer(
            ("imports",), lambda: text_search.imports_of(self.store)
        )
        return found

    @once()
    def imported_modules(self) -> frozenset[str]:
        """Modules that some module of the release imports, or names from."""
        pairs = [pair for modules in self.imports().values() for pair in modules.items()]
        return frozenset(
            [*(module for module, _ in pairs), *(f"{module}.{each}" for module, names in pairs for each in names)]
        )

    def member_names(self) -> Mapping[str, Mapping[str, int]]:
        """By name of an attribute: the dotted paths of classes that define it, each with a checksum of how."""
        found: Mapping[str, Mapping[str, int]] = self.store.answer(
            ("members", "1"), lambda: text_search.member_names(self.store)
        )
        return found

    def base_names(self) -> Mapping[str, Sequence[str]]:
        """By last name of a class: the last names of its bases, by text; of classes of one name those of all."""
        found: Mapping[str, Sequence[str]] = self.store.answer(
            ("bases", "1"), lambda: text_search.base_names(self.store)
        )
        return found

    def parameter_names(self) -> Mapping[str, Sequence[str]]:
        """By parameter of several words: names of the functions and methods that have it."""
        found: Mapping[str, Sequence[str]] = self.store.answer(
            ("parameters", "1"), lambda: text_search.parameter_names(self.store)
        )
        return found

    def speaks_of(self, word: str) -> bool:
        """Whether a word stands anywhere in the text of the release."""
        return bool(self.store.answer(("word", word), lambda: text_search.speaks_of(self.store, word)))

    def reads_name(self, name: str) -> bool:
        """Whether code of the release reads a name, or asks for it by a string."""
        return bool(self.store.answer(("reads", name), lambda: text_search.reads_name(self.store, name)))

    @once()
    def names(self) -> NameTable:
        """Where each top-level name is defined."""
        return text_search.name_table(self.store)

    # definitions.Model

    def expression(self, where: Where, source: str) -> Resolution:
        """Return what a plain chain of names stands for, in a class body or module."""
        first, *rest = source.split(".")
        if self._depth > MAX_DEPTH or not all(part.isidentifier() for part in (first, *rest)):
            return Open(f"{source!r} is not followed")
        self._depth += 1
        try:
            found = self._first(where, first)
            for position, part in enumerate(rest):
                if not isinstance(found, Found):
                    return found
                if not found.symbol.file and found.symbol.kind is SymbolKind.VALUE:
                    return Found(self.definitions.outside(".".join([found.symbol.dotted, *rest[position:]])))
                found = self.member(found.symbol, part)
            return found
        finally:
            self._depth -= 1

    def _first(self, where: Where, name: str) -> Resolution:
        for line in where.classes[-1:]:
            found = self._in_scope(where, where.table.classes[line], name)
            if found is not None:
                return found
        outer = Where(where.table, (), where.name if not where.classes else "", where.before)
        found = self._in_module(outer, name)
        if found is not None:
            return found
        if is_builtin(name):
            return Found(self.definitions.outside(f"builtins.{name}"))
        return Open(f"{name} is not known in {where.table.dotted}")

    def _in_scope(self, where: Where, scope: BodyTable, name: str) -> Resolution | None:
        items = scope.bindings.get(name, [])
        if name == where.name and where.before >= 0:
            items = items[: where.before]
        found = self.modules.of_bindings(where, name, items) if items else None
        if found is None and items:
            told = [item._replace(where="") for item in items if item.where == "typing"]
            found = self.modules.of_bindings(where, name, told) if told else None
        return found

    def _in_module(self, where: Where, name: str) -> Resolution | None:
        table: ModuleTable = where.table
        # Code of a module does not reach its `__getattr__`: what only type checkers import is meant by annotations
        told = {item.where for item in table.scope.bindings.get(name, ())} == {"typing"}
        whole = (where.before < 0 or name != where.name) and not told
        if whole and not table.replaced and self.store.module(table.dotted) is table:
            found = self.modules.attribute(table.dotted, name)
            if isinstance(found, Found):
                return found
            own = self._in_scope(where, table.scope, name)
            return own or (found if isinstance(found, Open) and not is_builtin(name) else None)
        return self._in_scope(where, table.scope, name) or self.modules.by_star(table, name)
