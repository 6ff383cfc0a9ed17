"""Checks reward functions, which are recognised by their parameters, not by their folder."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.module import Function, last_name, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_PARAMETERS = frozenset({"prompt", "completions", "prompt_ids", "completion_ids"})
_NO_NUMBERS = (ast.List, ast.Dict, ast.Tuple, ast.JoinedStr, ast.Set)
_NAMED = re.compile(
    r"^(?!.*(?:^|_)(?:load|save|log|read|write|parse|count|num|max|min|plot|print|format|fetch|update|port|time)(?:_|$))"
    r"(?:.*_)?(?:reward|score|grade|verify)s?(?:_(?:fn|func|function|async|sync))*$|"
    r"^_?(?:score|grade|verify|compute_score|reward)_(?:answer|completion|item|one|output|response|row|sample|solution)s?$"
)
"""Names that say that a reward is returned, and not something about one: `score_port`, `load_scores`."""
_FAILURES = frozenset(
    [
        "BaseException",
        "ClientError",
        "ConnectionError",
        "Exception",
        "HTTPError",
        "ImportError",
        "OSError",
        "OutOfMemoryError",
        "RequestException",
        "RuntimeError",
        "Timeout",
        "TimeoutError",
        "TimeoutException",
        "TimeoutExpired",
    ]
)
"""What happens to the process that scores, whatever the answer is."""
_PARSING = frozenset(
    ["strip", "split", "findall", "search", "match", "group", "parse", "loads", "lower", "replace", "index"]
)


def rewards_of(module: Module) -> Iterator[Function]:
    """Yield functions that take what the reward contract hands over."""
    for function in module.functions():
        stub = all(isinstance(each, ast.Pass | ast.Raise | ast.Expr) for each in function.body)
        if len(_PARAMETERS & set(parameters(function))) >= 3 and not stub:
            yield function


def swallows(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an exception of any kind that becomes a score."""
    named = [each for each in module.functions() if _NAMED.search(each.name)]
    for function in dict.fromkeys((*rewards_of(module), *named)):
        for node in own_nodes(function, ast.ExceptHandler):
            kinds = {last_name(each) for each in nodes_in(node.type, ast.expr)} if node.type else set()
            broad = node.type is None or bool(kinds & _FAILURES)
            last = node.body[-1]
            number = last.value if isinstance(last, ast.Return) else None
            number = number.operand if isinstance(number, ast.UnaryOp) else number
            scored = isinstance(number, ast.Constant) and type(number.value) in {int, float}
            if broad and scored and not any(isinstance(each, ast.Raise) for each in ast.walk(node)):
                yield node, f"any failure of `{function.name}` becomes a score"


def unguarded(module: Module, _side: Side) -> Iterator[Hit]:
    """Find parsing of what a model wrote, with nothing that handles an answer in no known form."""
    for function in rewards_of(module):
        nodes = list(own_nodes(function))
        # Whether it returns numbers that it made, instead of handing on what another function returns
        plain = (ast.Constant, ast.Name, ast.BinOp)
        returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
        numbers = (isinstance(each, ast.Call) and last_name(each.func) in {"float", "int"} for each in returned)
        scores = any(isinstance(each, plain) for each in returned) or any(numbers)
        if not scores or any(isinstance(node, ast.Try) for node in nodes):
            continue
        parsing = [node for node in nodes if _is_parsing(node)]
        if parsing or _handed_on(module, function, nodes):
            yield function, f"`{function.name}` parses what a model wrote, unguarded"


def _handed_on(module: Module, function: Function, nodes: list[ast.AST]) -> bool:
    """Whether the answer goes to a function of the same file that parses it, or gives it to another package, with no
    `try` either."""
    own = {each.name: each for each in module.tree.body if isinstance(each, Function)}
    for call in (each for each in nodes if isinstance(each, ast.Call)):
        target = own.get(last_name(call.func)) if isinstance(call.func, ast.Name) else None
        answers = [each for each in call.args if last_name(each) in {"completions", "completion"}]
        inside = list(own_nodes(target)) if target is not None and target is not function and answers else []
        guarded = any(isinstance(each, ast.Try) for each in inside)
        parses = (isinstance(each, ast.Call) and _is_parsing(each) for each in inside)
        foreign = (isinstance(each, ast.Call) and last_name(each.func) in module.imported for each in inside)
        if not guarded and (any(parses) or any(foreign)):
            return True
    return False


def _is_parsing(node: ast.AST) -> bool:
    """`.strip()` and the like; `float(x)`, `int(x)`; `found[0]`."""
    if isinstance(node, ast.Call):
        convert = isinstance(node.func, ast.Name) and node.func.id in {"float", "int"} and node.args
        converted = bool(convert) and not isinstance(node.args[0], ast.Compare | ast.BoolOp)
        return (isinstance(node.func, ast.Attribute) and node.func.attr in _PARSING) or converted
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant)


def no_number(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a path that returns text, None or a tuple."""
    for function in rewards_of(module):
        for node in own_nodes(function, ast.Return):
            other = node.value is None or isinstance(node.value, _NO_NUMBERS)
            if other or (isinstance(node.value, ast.Constant) and not isinstance(node.value.value, int | float)):
                shown = ast.unparse(node.value) if node.value is not None else "nothing"
                yield node, f"`{function.name}` returns {shown} instead of a number"


RULES = (
    Rule("reward-swallows", Severity.MEDIUM, in_file=swallows),
    Rule("reward-unguarded", Severity.MEDIUM, in_file=unguarded),
    Rule("reward-no-number", Severity.HIGH, in_file=no_number),
)
