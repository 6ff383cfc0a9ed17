"""Finds imports that cost or demand too much in their place."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING

from tooling.review.records import Place, Rule, Severity, is_test

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

HEAVY = frozenset(
    [
        "datasets",
        "deepspeed",
        "flash_attn",
        "jax",
        "megatron",
        "ray",
        "sglang",
        "tensorflow",
        "torch",
        "transformers",
        "vllm",
    ]
)
"""Packages whose import takes seconds, or that are there only where they can run."""
_ENOUGH = 3
"""Files that import a package late, before one that does not is an outlier."""


def heavy_root(module: Module, side: Side) -> Iterator[Place]:
    """Find a package that loads its parts on demand, and a heavy package at once."""
    if not module.path.endswith("__init__.py") or "__getattr__" not in module.top_level:
        return
    for node, name in _at_import(module):
        if name in HEAVY and name not in side.roots:
            yield Place(module.path, node.lineno, f"`{name}` is loaded with the package; its other parts on demand")


def heavy_outlier(comparison: Comparison) -> Iterator[Place]:
    """Find a heavy package imported with the module, when all other files of the repository import it late or
    guarded."""
    suspects = [
        (file.path, node, name)
        for file in comparison.files
        if (module := comparison.head.module(file.path)) is not None and not is_test(file.path)
        for node, name in _at_import(module)
        if name in HEAVY and node.lineno in file.added and name not in comparison.head.roots
    ]
    for path, node, name in suspects:
        late = _late(comparison.base, name, path)
        if len(late) >= _ENOUGH:
            message = f"`{name}` is imported with the module; all {len(late)} other files import it late or guarded"
            yield Place(path, node.lineno, message, late[0])


def _late(side: Side, name: str, besides: str) -> list[str]:
    """Return the files that import a package late; none if one of the package's folder does not."""
    top = besides.partition("/")[0]
    paths = [path for path in side.grep([name], "*.py") if path != besides and path.partition("/")[0] == top]
    side.load(paths)
    found: list[str] = []
    for path in paths:
        module = None if is_test(path) else side.module(path)
        if module is None or not any(name in set(_packages(node)) for node in _all(module)):
            continue
        if any(each == name for _, each in _at_import(module)):
            return []
        found.append(path)
    return found


def _all(module: Module) -> Iterator[ast.Import | ast.ImportFrom]:
    yield from module.nodes(ast.Import)
    yield from module.nodes(ast.ImportFrom)


def _packages(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif not node.level and node.module:
        yield node.module.partition(".")[0]


def _at_import(module: Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Yield imports that run when the module is imported, and must not fail."""
    for node in _all(module):
        if all(isinstance(each, ast.Module | ast.With) for each in module.around(node)):
            yield from ((node, name) for name in _packages(node))


def relative_in_script(module: Module, side: Side) -> Iterator[Place]:
    """Find a relative import in a main program outside of packages: run as a file, it has no parent."""
    # A folder below a package is run as `-m package.folder.program`.
    folders = ["", *itertools.accumulate(module.path.split("/")[:-1], "{}/{}".format)]
    if "__main__" not in module.text or any(f"{each}/__init__.py".lstrip("/") in side.paths for each in folders):
        return
    tests = (each.test for each in module.nodes(ast.If) if module.parents.get(each) is module.tree)
    if any("__name__ == '__main__'" in ast.unparse(each) for each in tests):
        for node in module.nodes(ast.ImportFrom):
            if node.level and module.parents.get(node) is module.tree:
                said = f"`{ast.unparse(node)[:60]}` fails where this file is run, outside of packages"
                yield Place(module.path, node.lineno, said)


def test_in_library(module: Module, side: Side) -> Iterator[Place]:
    """Find a module that needs the tests of its package to be imported."""
    if is_test(module.path) or not module.path.endswith(".py") or "test" in module.path.lower():
        return
    for node in module.nodes(ast.ImportFrom):
        origin = module.absolute(node)
        path = side.packages.get(origin, "")
        at_top = all(isinstance(each, ast.Module) for each in module.around(node))
        if at_top and path and origin.partition(".")[0] in side.roots and is_test(path):
            yield Place(
                module.path, node.lineno, f"`{origin}` is a test: it is not there where this is installed", path
            )


RULES = (
    Rule("heavy-package-root", Severity.MEDIUM, in_file=heavy_root),
    Rule("heavy-import", Severity.MEDIUM, in_change=heavy_outlier),
    Rule("relative-in-script", Severity.HIGH, in_tests=False, in_file=relative_in_script),
    Rule("test-in-library", Severity.HIGH, in_tests=False, in_file=test_in_library),
)
