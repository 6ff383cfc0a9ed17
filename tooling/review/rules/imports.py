"""Finds imports that cost or demand too much in their place."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

from tooling.review.records import Place, Rule, Severity, is_test

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
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


def heavy_root(module: Module, side: Side) -> Iterator[Hit]:
    """Find a package that loads its parts on demand, and a heavy package at once."""
    if not module.path.endswith("__init__.py") or "__getattr__" not in module.top_level:
        return
    for node, name in _at_import(module):
        if name in HEAVY and name not in side.roots:
            yield node, f"`{name}` is loaded with the package; its other parts on demand"


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


def relative_in_script(module: Module, side: Side) -> Iterator[Hit]:
    """Find a relative import in a main program outside of packages that a document or a script runs as a file: it has
    no parent there. `python -m examples.search.run` gives it one, `__init__.py` or not."""
    # A folder below a package is run as `-m package.folder.program`.
    folders = ["", *itertools.accumulate(module.path.split("/")[:-1], "{}/{}".format)]
    if "__main__" not in module.text or any(f"{each}/__init__.py".lstrip("/") in side.paths for each in folders):
        return
    tests = (each.test for each in module.nodes(ast.If) if module.parents.get(each) is module.tree)
    if not any("__name__ == '__main__'" in ast.unparse(each) for each in tests):
        return
    relative = [each for each in module.nodes(ast.ImportFrom) if each.level and module.parents.get(each) is module.tree]
    told = _run_as_file(module.path, side) if relative else ""
    for node in relative if told else ():
        yield node, f"`{ast.unparse(node)[:60]}` fails where this file is run as {told} says", told


def _run_as_file(path: str, side: Side) -> str:
    """Return the first document, workflow or script that says `python3 -u examples/run.py`, or
    `python -m some.launcher examples/run.py`; "" for none."""
    gap = r"(?:[ \t]|\\\n)+"
    option = rf"{gap}-m{gap}[\w.]*(?:launch|distributed\.run)[\w.]*|{gap}-(?!m)[^\s`]+"
    run = re.compile(rf"(?:python[\d.]*|torchrun)(?:{option})*{gap}(?:\./)?{re.escape(path)}(?![\w/])")
    return next((each for each in side.grep([path], *_TELLING) if run.search(side.text(each) or "")), "")


_TELLING = ("*.md", "*.rst", "*.txt", "*.sh", "*.yml", "*.yaml", "*.toml", "*.py", "*Makefile", "*Dockerfile")


def test_in_library(module: Module, side: Side) -> Iterator[Hit]:
    """Find a module of a package that needs tests of the same package to be imported."""
    if is_test(module.path) or not module.path.endswith(".py") or "test" in module.path.lower():
        return
    for node in module.nodes(ast.ImportFrom):
        origin = module.absolute(node)
        path = side.packages.get(origin, "")
        at_top = all(isinstance(each, ast.Module) for each in module.around(node))
        root = origin.partition(".")[0]
        same = root in side.roots and module.package.partition(".")[0] == root
        # `pkg/test_time.py` is installed like the modules beside it.
        if at_top and same and {"test", "tests"} & set(path.split("/")[:-1]):
            yield node, f"`{origin}` is a test: it is not there where this is installed", path


RULES = (
    Rule("heavy-package-root", Severity.MEDIUM, in_file=heavy_root),
    Rule("heavy-import", Severity.MEDIUM, in_change=heavy_outlier),
    Rule("relative-in-script", Severity.HIGH, in_tests=False, in_file=relative_in_script),
    Rule("test-in-library", Severity.HIGH, in_tests=False, in_file=test_in_library),
)
