"""Who uses what a change touches: the files outside of it that import a changed function or class, with the lines."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.review.records import is_test
from tooling.review.repository.comparison import top_level
from tooling.review.repository.module import Function

if TYPE_CHECKING:
    from tooling.review.repository.comparison import ChangedFile, Comparison
    from tooling.review.repository.module import Module

MOST_NAMES, MOST_FILES, MOST_PLACES = 200, 80, 8
"""What is looked up, read and listed; a change of more is not understood by lists."""


def users(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    """ "areal/utils/text.py::shorten" -> places that use it, "path:line"; tests last."""
    wanted = dict(list(_changed(comparison).items())[:MOST_NAMES])
    paths = comparison.head.grep({name.rpartition(".")[2] for name in wanted}, "*.py") if wanted else []
    paths = sorted((path for path in paths if path not in comparison.by_path), key=lambda path: (is_test(path), path))
    comparison.head.load(paths)
    stems = {name.split(".")[-2] for name in wanted}
    read = [path for path in paths if any(stem in (comparison.head.text(path) or "") for stem in stems)]
    found: dict[str, list[str]] = {}
    for path in read[:MOST_FILES]:
        module = comparison.head.module(path)
        for name, line in _uses(module) if module is not None else ():
            if name in wanted:
                found.setdefault(wanted[name], []).append(f"{path}:{line}")
    return {symbol: tuple(places[:MOST_PLACES]) for symbol, places in sorted(found.items())}


def _changed(comparison: Comparison) -> dict[str, str]:
    """Dotted name of a changed function or class of the top level -> "path::name"."""
    found: dict[str, str] = {}
    for file in comparison.files:
        module = comparison.head.module(file.path) if file.path.endswith(".py") and not is_test(file.path) else None
        if module is not None:
            found |= {f"{_package(module)}.{name}": f"{file.path}::{name}" for name in _touched(module, file)}
    return {name: symbol for name, symbol in found.items() if name.count(".")}


def _touched(module: Module, file: ChangedFile) -> list[str]:
    spans = {
        name: range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for name, node in top_level(module).items()
        if isinstance(node, Function | ast.ClassDef)
    }
    return [name for name, lines in spans.items() if not file.added.isdisjoint(lines)]


def _package(module: Module) -> str:
    return module.package.removeprefix("src.")


def _uses(module: Module) -> list[tuple[str, int]]:
    """Dotted names that a module uses, with the first line of each; an import counts where nothing else does."""
    first: dict[str, int] = {}
    nodes: list[ast.Name | ast.Attribute] = [*module.nodes(ast.Name), *module.nodes(ast.Attribute)]
    for node in sorted(nodes, key=lambda each: each.lineno):
        name = module.dotted(node)
        if "." in name:
            first.setdefault(name, node.lineno)
    for source in module.nodes(ast.ImportFrom):
        for alias in source.names:
            first.setdefault(f"{module.absolute(source)}.{alias.name}", source.lineno)
    return list(first.items())
