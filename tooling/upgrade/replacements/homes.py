"""New homes of functions, classes and values: every candidate with the evidence for it.

The commonest case by far is a definition that was moved and kept its name; its body is often edited on the way, so
equal bodies confirm but are not asked for. Copies that were there before (one class per model, say) are no new homes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from tooling.python.source import alone, definition, dotted_name, parse_expression
from tooling.python.symbols.symbol import Found, SymbolKind
from tooling.upgrade import advice
from tooling.upgrade.replacements.candidates import (
    SIMILAR,
    Candidate,
    Reason,
    best,
    is_compatible,
    is_similar_name,
    similarity,
    tokens,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tooling.python.symbols.symbol import Symbol
    from tooling.python.symbols.text_search import TopLevelName
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.replacements.candidates import GoneSymbol


Imported = tuple[str, str]
"""(absolute module, name)."""


@lru_cache(maxsize=8)
def importers(upstream: Upstream) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Each name that modules of a release take by `from a import b`, with (importing module, module it is from)."""
    found: dict[str, set[tuple[str, str]]] = {}
    for importer, imported in upstream.imports().items():
        for module, names in imported.items():
            for name in names:
                found.setdefault(name, set()).add((importer, module))
    return {name: sorted(each) for name, each in found.items()}


def _imported(upstream: Upstream, importer: str) -> set[Imported]:
    return {(module, name) for module, names in upstream.imports()[importer].items() for name in names}


def votes(old: Upstream, new: Upstream, name: str, modules: frozenset[str]) -> Counter[Imported]:
    """What the importers of a name from these modules import instead in the new release: the same name from elsewhere,
    or, where one import of a module went and one came, another name."""
    found: Counter[Imported] = Counter()
    for importer, module in importers(old).get(name, ()):
        if module not in modules or importer not in new.imports():
            continue
        before, after = _imported(old, importer), _imported(new, importer)
        gone, came = before - after, after - before
        if (module, name) not in gone:
            continue
        same = [each for each in came if each[1] == name]
        if same:
            found.update(same)
        elif len([each for each in gone if each[0] == module]) == 1:
            renamed = [each for each in came if each[0] == module]
            found.update(renamed if len(renamed) == 1 else [])
    return found


_LONGEST_SHIM = 20_000
_OLD_TIMES = re.compile(r"deprecat|warn|alias|backward|legacy|compat|renamed", re.IGNORECASE)


def stands_for(source: str) -> str:
    """The dotted name that a piece of code passes on to, as it writes it; "" if it does something of its own.

    old = deprecated("old", New)       New, the only name among the arguments
    class Old(New): only warnings      New
    def old(*args, **kw): only warnings; return new(*args, **kw)          new
    """
    if len(source) > _LONGEST_SHIM or not _OLD_TIMES.search(source):
        return ""
    match definition(alone(source)) or parse_expression(source):
        case ast.ClassDef() as node:
            if len(node.bases) != 1 or not all(_is_idle_member(statement) for statement in node.body):
                return ""
            return dotted_name(node.bases[0])
        case ast.FunctionDef() | ast.AsyncFunctionDef() as node:
            return _callee(node.body)
        case ast.Call() as call:
            names = [name for argument in call.args if (name := dotted_name(argument))]
            return names[0] if len(names) == 1 else ""
    return ""


def _is_idle_member(statement: ast.stmt) -> bool:
    """A docstring, `pass`, or a method that warns and hands everything to the base."""
    if not isinstance(statement, ast.FunctionDef):
        return _is_idle(statement)
    *before, last = statement.body
    match last:
        case ast.Expr(value=ast.Call(func=function)) | ast.Return(value=ast.Call(func=function)):
            if ast.unparse(function).startswith("super("):
                return all(map(_is_idle, before))
    return all(map(_is_idle, statement.body))


def _callee(body: list[ast.stmt]) -> str:
    *before, last = body
    if not all(_is_idle(statement) for statement in before):
        return ""
    match last:
        case ast.Return(value=ast.Call(func=function)) | ast.Return(value=ast.Await(value=ast.Call(func=function))):
            return dotted_name(function)
    return ""


def _is_idle(statement: ast.stmt) -> bool:
    """A docstring, `pass`, an import, or a call whose value nobody takes and that speaks of deprecation."""
    match statement:
        case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return any(word in ast.unparse(function).lower() for word in ("warn", "deprecat"))
    return False


_LEAST = Reason.SIMILAR_BODY.weight
"""Weight that a candidate must have."""
_ASIDE = frozenset({"tests", "test", "testing", "third_party", "vendor", "_vendor", "examples", "benchmarks"})
_COMMON = frozenset({"main", "run", "logger", "parse_args", "get_parser", "register", "setup", "T", "P"})
"""Names that say nothing: definitions that bear them are many and strangers to each other."""
_DEFINED = (SymbolKind.CLASS, SymbolKind.FUNCTION)
_ALIKE = 0.6
"""Share of equal letters or tokens from which another name may be the old one's."""
_MOST_NEW_NAMES = 60
"""Definitions with another name that are compared by their bodies."""


class Homes:
    """Looks for new homes of one symbol."""

    def __init__(self, subject: GoneSymbol, old: Upstream, new: Upstream, texts: Iterable[str]) -> None:
        """texts: what old releases say about its end."""
        self._subject = subject
        self._old = old
        self._new = new
        self._source = old.source_of(subject.symbol)
        own = advice.texts_about(self._source, subject.name)
        self._texts = [text for text in (*texts, *own) if text]
        self._found: dict[str, Candidate] = {}
        self._symbols: dict[str, Symbol] = {}

    def best(self) -> tuple[Candidate, Symbol] | None:
        """The candidate that most speaks for, with its definition; None where nothing does, or for two alike."""
        self._by_advice()
        if self._subject.symbol.dotted != self._subject.path and not self._is_one_of_several():
            self._add(self._subject.symbol.dotted, Reason.STAYED)
        own = self._subject.symbol
        wrapped = stands_for(own.value if own.kind is SymbolKind.VALUE else self._source)
        stood = self._old.resolve(f"{self._subject.module}.{wrapped}") if wrapped else None
        if isinstance(stood, Found) and stood.symbol.kind in (SymbolKind.CLASS, SymbolKind.FUNCTION):
            behind = self._add(stood.symbol.dotted, Reason.STOOD_FOR)
            if behind and own.kind is SymbolKind.VALUE:
                self._found[behind].is_doubtful = True  # what the wrapper changed is not known
        modules = frozenset({self._subject.module, self._subject.path.rpartition(".")[0]})
        found = votes(self._old, self._new, self._subject.name, modules)
        for (module, name), _ in found.most_common(5):
            if name == self._subject.name or self._is_renamed(module, name):
                self._add(f"{module}.{name}", Reason.IMPORTERS)
        self._by_name()
        if not any(candidate.weight >= _LEAST for candidate in self._found.values()):
            self._by_body()
        for dotted, candidate in self._found.items():
            home = self._symbols[dotted]
            if self._has_same_body(home):
                candidate.reasons.add(Reason.SAME_BODY)
            if self._has_same_value(home):
                candidate.reasons.add(Reason.SAME_VALUE)
            if is_compatible(self._old, self._subject.symbol, self._new, home):
                candidate.reasons.add(Reason.COMPATIBLE)
        chosen = best(self._found.values(), _LEAST)
        if chosen is None:
            return None
        symbol = next(self._symbols[dotted] for dotted, candidate in self._found.items() if candidate is chosen)
        chosen.text = self._public_path(symbol, chosen.text)
        # What became private is where it went, and nothing to send people to.
        chosen.is_doubtful |= _is_private(f"{chosen.text}.") and not _is_private(f"{self._subject.path}.")
        return chosen, symbol

    # ------------------------------------------------------------------------------------------------------- evidence

    def _by_advice(self) -> None:
        package = self._subject.path.partition(".")[0]
        for text in self._texts:
            paths = [path for name in advice.advised(text) if (path := self._advised_path(name, package))]
            if paths:
                dotted = self._add(paths[0], Reason.ADVICE)
                if dotted and len(set(paths)) > 1:
                    self._found[dotted].is_doubtful = True

    def _is_one_of_several(self) -> bool:
        """Whether the old module takes the name from one place or another: which of them a caller meant is not known.

        if is_flash_attn_available():
            from flash_attn import flash_attn_func
        if is_npu_available():
            from .npu import npu_flash_attn_func as flash_attn_func
        """
        module, _, name = self._subject.path.rpartition(".")
        table = self._old.store.module(module)
        bound = table.scope.bindings.get(name, ()) if table is not None else ()
        return len({each.source for each in bound if each.kind == "import"}) > 1

    def _advised_path(self, name: str, package: str) -> str:
        """The path that a name in a text means: as it stands, beside the old one, or wherever it is defined."""
        container = self._subject.path.rpartition(".")[0]
        called, _, short = name.partition(".")  # "use `np.float64`": what people call the package
        alias = self._new.resolve(f"{package}.{called}")
        if short and isinstance(alias, Found) and alias.symbol.dotted == package:
            name = f"{package}.{short}"  # and what it calls itself
        homes = (container, self._subject.module, package)
        for path in (name, *(f"{each}.{name}" for each in homes), f"{package}.{short or name}"):
            found = self._new.resolve(path) if path != self._subject.path else None
            inside = f"{path}.{self._subject.name}"
            if isinstance(found, Found) and found.symbol.kind is SymbolKind.MODULE:  # "import it from `up.layers`"
                if isinstance(self._new.resolve(inside), Found):
                    return inside
            elif isinstance(found, Found) and "." in path:
                return path
        rows = [row for row in self._new.names().by_name.get(name, ()) if not _is_aside(row.module)]
        return f"{rows[0].module}.{name}" if len(rows) == 1 else ""

    def _is_renamed(self, module: str, name: str) -> bool:
        """Whether another name that importers take now may be the old one's new name: it is new there, and looks like
        it by its letters or its body. Importers also drop one helper and take another."""
        resolution = self._new.resolve(f"{module}.{name}")
        if not isinstance(resolution, Found) or isinstance(self._old.resolve(f"{module}.{name}"), Found):
            return False
        if resolution.symbol.kind is not self._subject.symbol.kind:
            return False
        own = tokens(self._source, self._subject.name)
        other = tokens(self._new.source_of(resolution.symbol), name)
        return (
            is_similar_name(name, self._subject.name, _ALIKE)
            or similarity(own, other) >= _ALIKE
            or self._has_same_body(resolution.symbol)
        )

    def _by_name(self) -> None:
        name = self._subject.name
        before = {row.module for row in self._old.names().by_name.get(name, ())}
        rows = [row for row in self._new.names().by_name.get(name, ()) if not _is_aside(row.module)]
        copies = [row for row in rows if row.module in before]
        added = [
            dotted
            for row in rows
            if row not in copies and (dotted := self._add(f"{row.module}.{name}")) and self._is_alike(dotted)
        ]
        if len(set(added)) == 1 and not copies and name not in _COMMON:
            self._found[added[0]].reasons.add(Reason.SAME_NAME)
        if len(copies) == 1:
            # A copy that was there before may have taken its place; only its body can tell.
            dotted = self._add(f"{copies[0].module}.{name}")
            if dotted and self._has_same_body(self._symbols[dotted]):
                self._found[dotted].is_doubtful = not self._found[dotted].reasons
            elif dotted:
                self._forget(dotted)

    def _by_body(self) -> None:
        """Definitions under new names, those near the old place first."""
        own = tokens(self._source, self._subject.name)
        for row, name in self._new_names():
            dotted = self._add(f"{row.module}.{name}")
            if not dotted:
                continue
            symbol = self._symbols[dotted]
            text = self._new.source_of(symbol)
            if self._has_same_body(symbol):
                self._found[dotted].reasons.add(Reason.SAME_BODY)
            elif row.module == self._subject.module and similarity(own, tokens(text, name)) >= SIMILAR:
                self._found[dotted].reasons.add(Reason.SIMILAR_BODY)
            elif not self._has_same_value(symbol):
                self._forget(dotted)

    def _new_names(self) -> list[tuple[TopLevelName, str]]:
        """Definitions whose name the old release lacks, of the same kind: of the same module, then of the same folder,
        then those whose name shares a word."""
        kind = {SymbolKind.CLASS: "class", SymbolKind.FUNCTION: "function"}.get(self._subject.symbol.kind, "value")
        module, folder = self._subject.module, self._subject.module.rpartition(".")[0]
        words = words_of(self._subject.name)

        def distance(row: TopLevelName, name: str) -> int:
            if row.module == module:
                return 0
            if kind == "value":
                return 9
            shares = bool(words & words_of(name))
            return 1 if shares and row.module.rpartition(".")[0] == folder else 2 if shares else 9

        added = _additions(self._old, self._new).get(kind, ())
        rows = [(distance(row, name), row, name) for row, name in added]
        near = sorted((each for each in rows if each[0] < 9), key=lambda each: (each[0], each[1].module, each[2]))
        return [(row, name) for _, row, name in near[:_MOST_NEW_NAMES]]

    # ------------------------------------------------------------------------------------------------------ candidates

    def _add(self, path: str, reason: Reason | None = None) -> str:
        """Count a path of the new release as a candidate; the dotted path of its definition, "" if there is none."""
        found = self._new.resolve(path)
        if not isinstance(found, Found) or found.symbol.kind is SymbolKind.MODULE:
            return ""
        if found.symbol.kind is SymbolKind.VALUE and not found.symbol.value and self._subject.symbol.kind in _DEFINED:
            return ""  # whatever a `__getattr__` may give for any word
        dotted = found.symbol.dotted
        candidate = self._found.setdefault(dotted, Candidate(path))
        self._symbols[dotted] = found.symbol
        if reason is not None:
            candidate.reasons.add(reason)
        return dotted

    def _forget(self, dotted: str) -> None:
        if not self._found[dotted].reasons:
            del self._found[dotted]

    def _is_alike(self, dotted: str) -> bool:
        """Whether a definition of the same name may be the same thing at all."""
        symbol, own = self._symbols[dotted], self._subject.symbol
        if SymbolKind.VALUE in (symbol.kind, own.kind):
            return symbol.kind is own.kind and (self._has_same_value(symbol) or self._subject.name.isupper())
        return True

    def _has_same_body(self, symbol: Symbol) -> bool:
        own = self._subject.symbol
        return bool(own.digest) and own.digest == symbol.digest and own.kind is symbol.kind

    def _has_same_value(self, symbol: Symbol) -> bool:
        own = self._subject.symbol
        both_values = own.kind is symbol.kind is SymbolKind.VALUE
        return both_values and own.value == symbol.value and len(own.value) > 2

    # ------------------------------------------------------------------------------------------------------------ path

    def _public_path(self, symbol: Symbol, path: str) -> str:
        """How to write it: from the package's root if it is there, else as most of the package's own modules import
        it, else the shortest way; never through a private module if there is another way. Who took the old one from a
        package that passed it on is not sent to a module inside another."""
        name = path.rpartition(".")[2]
        parts = symbol.dotted.split(".")
        ways = [".".join([*parts[:depth], name]) for depth in range(1, len(parts))]
        # A package that passes on what is in it does not count
        rows = importers(self._new).get(name, ())
        imported = Counter(module for importer, module in rows if not module.startswith(f"{importer}."))
        used = [f"{module}.{name}" for module, count in imported.most_common() if count > 1]
        was_passed_on = self._subject.path != self._subject.symbol.dotted
        for way in [*ways[:1], *([] if was_passed_on else used), *ways, symbol.dotted, path]:
            end = None if _is_private(way) else self._new.resolve(way)
            if isinstance(end, Found) and end.symbol.dotted == symbol.dotted and not end.deprecated:
                return way
        return symbol.dotted


@lru_cache(maxsize=4)
def _additions(old: Upstream, new: Upstream) -> dict[str, list[tuple[TopLevelName, str]]]:
    """Definitions that the old release does not have in that module, by their kind."""
    old_names = old.names().by_name
    found: dict[str, list[tuple[TopLevelName, str]]] = {}
    for name, homes in new.names().by_name.items():
        before = {row.module for row in old_names.get(name, ())}
        for row in homes:
            if row.module not in before:
                found.setdefault(row.kind, []).append((row, name))
    return found


def _is_aside(module: str) -> bool:
    return not _ASIDE.isdisjoint(module.split("."))


def _is_private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split(".")[:-1])
