"""Tests that cannot fail, and changed code that no changed test names."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.module import Function, last_name
from tooling.review.records import Place, Rule, Severity, is_test

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

_CHECKING = re.compile(
    r"^_?(raises|warns|fail|skip|xfail|exit|run|main|launch|spawn|torchrun|smoke)|assert|check|expect|verify|test",
    re.IGNORECASE,
)
_TEST_FILES = tuple(
    f":(top,glob)**/{each}" for each in ("tests/**/*.py", "test/**/*.py", "test_*.py", "*_test.py", "conftest.py")
)
_NO_FAILURE = re.compile(
    r"accept|allow|permit|no_longer|not_rais|no_(error|exception|crash|op)|does_?n.?t|does_not|valid|smoke|surviv|tolerat|"
    r"without_(error|exception|crash|rais)|is_(ok|fine)|idempotent|harmless",
    re.IGNORECASE,
)
"""Names of tests that hold when nothing is raised: `test_an_empty_batch_is_accepted`."""
_TEST = re.compile(r"(^|/)test_[^/]*\.py$|(^|/)[^/]*_test\.py$")


def toothless(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a test in which nothing can fail."""
    if not _TEST.search(module.path):
        return
    for function in module.functions():
        if function.name.startswith("test_") and module.function_of(function) is None and not _can_fail(function):
            yield function, f"`{function.name}` checks nothing"


def _can_fail(function: Function) -> bool:
    """Whether it asserts, raises, or calls something that says it checks."""
    if any(re.search(r"skip|xfail|fixture", ast.unparse(each)) for each in function.decorator_list):
        return True
    if any(each.arg == "benchmark" for each in function.args.args):
        return True  # it measures
    if _NO_FAILURE.search(function.name):
        return True
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call) and _CHECKING.search(last_name(node.func)):
            return True
    return False


def untested(comparison: Comparison) -> Iterator[Place]:
    """Find a new public function in a module whose functions tests name one by one, in a change without any test."""
    if any(is_test(file.path) for file in comparison.files):
        return
    for file in comparison.files:
        module = comparison.head.module(file.path) if file.status == "M" else None
        before = comparison.base.module(file.old_path) if module is not None else None
        if module is None or before is None:
            continue
        known, now = _public_functions(before), _public_functions(module)
        used = {each.id for each in module.nodes(ast.Name)}
        new = [name for name in now.keys() - known if name not in used] if len(known) >= 2 else []
        tested = comparison.head.mentioned({*known, *new}, *_TEST_FILES) if new else set()
        if len(tested & known.keys()) * 5 >= len(known) * 4:
            for name in sorted(set(new) - tested):
                yield Place(file.path, now[name], f"no test names `{name}`; those beside it are tested")


def _public_functions(module: Module) -> dict[str, int]:
    functions = (node for node in module.tree.body if isinstance(node, Function))
    return {node.name: node.lineno for node in functions if not node.name.startswith("_")}


RULES = (
    Rule("toothless-test", Severity.LOW, in_file=toothless),
    Rule("untested-symbol", Severity.LOW, in_change=untested),
)
