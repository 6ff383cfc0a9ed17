"""Facts of one file, from its bytes alone.

    facts = scan(path.read_bytes())

One walk over `ast`, in the order of execution: module level first, then the bodies of functions, which see what names
around them finally hold. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys

from tooling.python.bound_names import bound_names
from tooling.python.source import REFUSALS, calm
from tooling.upgrade.usage.facts import FileFacts
from tooling.upgrade.usage.scan.annotations import AnnotationWalk
from tooling.upgrade.usage.scan.arguments import ArgumentReader
from tooling.upgrade.usage.scan.calls import CallReader
from tooling.upgrade.usage.scan.core import WalkState
from tooling.upgrade.usage.scan.definitions import DefinitionReader
from tooling.upgrade.usage.scan.expressions import ExpressionReader
from tooling.upgrade.usage.scan.statements import StatementReader

__all__ = ["scan"]

_DEPTH = 20_000
"""Of the walk: sums of hundreds of strings are nested as deep."""
_GLOBAL = re.compile(rb"^[ \t]*global[ \t]+([\w, \t]+)", re.MULTILINE)


class _Walk:
    """The parts of a walk over one file, put together; each knows those below it, and asks this for those above."""

    def __init__(self, state: WalkState) -> None:
        annotations = AnnotationWalk(state)
        expressions = ExpressionReader(state, annotations)
        arguments = ArgumentReader(state, expressions)
        calls = CallReader(state, annotations, expressions, arguments)
        self.statements = StatementReader(state, annotations, expressions, arguments, calls)
        self.definitions = DefinitionReader(state, annotations, expressions, arguments, self.statements)
        self.expression = expressions.expression
        self.call, self.used_call, self.awaited_call = calls.call, calls.used_call, calls.awaited_call
        self.quiet_value, self.target_called = arguments.quiet_value, calls.target_called
        self.keys_of, self.keys_in, self.strings = arguments.keys_of, arguments.keys_in, arguments.strings
        self.assign = self.statements.assign
        self.definition, self.skip_condition = self.definitions.definition, self.definitions.skip_condition
        state.visit = self


def scan(source: bytes) -> FileFacts:
    """What a file says. A file that Python's parser refuses has a `problem` and nothing else."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEPTH))
    try:
        with calm():  # trees are kept while they are walked: collections in between find nothing
            return _scanned(source)
    except REFUSALS as error:
        return FileFacts(problem=_problem(error))
    finally:
        sys.setrecursionlimit(limit)


def _scanned(source: bytes) -> FileFacts:
    tree = _parsed(source)
    state = WalkState(source)
    walk = _Walk(state)
    state.context()  # number 0: module level, unconditional
    frame = state.frame
    declared = {name.strip().decode() for found in _GLOBAL.findall(source) for name in found.split(b",")}
    frame.bound = frozenset(bound_names(tree.body, walrus=state.has_walrus).names | declared)
    state.future_annotations = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body
    )
    state.never_back = frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.body[-1], ast.Raise)
        and not any(isinstance(each, ast.Return | ast.Yield | ast.YieldFrom) for each in ast.walk(node))
    )
    walk.statements.block(tree.body)
    walk.definitions.finish(frame)
    return state.facts


def _parsed(source: bytes) -> ast.Module:
    """The tree, with comments that name types where there are any; a broken one is not a fault of the file."""
    if b"# type:" in source:
        with contextlib.suppress(SyntaxError, ValueError):
            return ast.parse(source, type_comments=True)
    return ast.parse(source)


def _problem(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    if isinstance(error, RecursionError):
        return "nested too deeply to be read"
    return f"{type(error).__name__}: {error}"
