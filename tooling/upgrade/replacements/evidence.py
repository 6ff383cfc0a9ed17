"""Find evidence where a gone name went: the package's importers, and what a shim stands for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from tooling.python.source import alone, definition, dotted_name, parse_expression

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.upgrade.releases import Upstream


Imported = tuple[str, str]
"""(absolute module, name)."""


class ImportIndex:
    """`from a import b` of all modules of a release."""

    def __init__(self, of: Mapping[str, frozenset[Imported]]) -> None:
        """of: what each module imports."""
        self.of = of
        self._by_name: dict[str, list[tuple[str, str]]] = {}
        for importer, imported in of.items():
            for module, name in imported:
                self._by_name.setdefault(name, []).append((importer, module))

    def importers(self, name: str) -> list[tuple[str, str]]:
        """(importing module, module it is imported from) of a name."""
        return sorted(self._by_name.get(name, ()))

    def sources(self, name: str) -> Counter[str]:
        """How often a name is imported from each module; a package that passes on what is in it does not count."""
        return Counter(module for importer, module in self.importers(name) if not module.startswith(f"{importer}."))


@lru_cache(maxsize=8)
def import_index(upstream: Upstream) -> ImportIndex:
    """The index of a release."""
    return ImportIndex(
        {
            importer: frozenset((module, name) for module, names in imported.items() for name in names)
            for importer, imported in upstream.imports().items()
        }
    )


def votes(old: ImportIndex, new: ImportIndex, name: str, modules: frozenset[str]) -> Counter[Imported]:
    """What the importers of a name from these modules import instead in the new release: the same name from elsewhere,
    or, where one import of a module went and one came, another name."""
    found: Counter[Imported] = Counter()
    for importer, module in old.importers(name):
        if module not in modules or importer not in new.of:
            continue
        gone = old.of[importer] - new.of[importer]
        came = new.of[importer] - old.of[importer]
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
    return all(_is_idle(each) for each in before) and (_is_idle(last) or _is_super_call(last))


def _is_super_call(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=function)) | ast.Return(value=ast.Call(func=function)):
            return ast.unparse(function).startswith("super(")
    return False


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
