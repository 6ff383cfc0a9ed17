"""Modules of the repository that a program of a release loads, because a value of its command line names them.

A program of another environment gets copies of them, so what they import of the repository belongs to it too.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.python.source import module_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.upgrade.interfaces.code import RepositoryCode
    from tooling.upgrade.interfaces.commands import CommandUse


def loaded_modules(code: RepositoryCode, use: CommandUse) -> Iterator[tuple[str, int, str]]:
    """(path, line, dotted name) of each module that a command's words name, and of those it imports when it runs."""
    for text in use.values:
        dotted = text.replace(":", ".")
        path = code.path(dotted) or code.path(dotted.rpartition(".")[0])
        if path is not None and "." in dotted:
            for each in imported_closure(code, path):
                yield each, 1, module_name(each)[0]


def imported_closure(code: RepositoryCode, path: str) -> list[str]:
    """A file and those of the repository that it imports when it runs, directly or not. Packages around them and
    imports for type checkers are left out."""
    found: list[str] = []
    waiting = [path]
    while waiting:
        current = waiting.pop(0)
        module = code.at(current)
        if current in found or module is None:
            continue
        found.append(current)
        for node in _run_imports(module.tree.body):
            names = [alias.name for alias in node.names]
            base = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            asked = [f"{base}.{name}" for name in names] if base else names
            for each in asked:
                named = code.path(each, current) or (code.path(base, current) if base else None)
                if named is not None:
                    waiting.append(named)
    return found


def _run_imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _run_imports(node.orelse)
        else:
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(node, name, [])
                if isinstance(inner, list):
                    yield from _run_imports([each for each in inner if isinstance(each, ast.stmt)])
