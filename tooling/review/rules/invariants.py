"""Invariants of RL runs: versions of prompts do not count, episodes share a workflow, denominators are a step's."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.module import Function, last_name, names_in, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_VERSIONS = re.compile(r"(^|_)versions$")
_GUARDS = re.compile(r"NO_VERSION|>= ?0|> ?-1|!= ?-1|versions? ?<|mask|clamp|where|max\(0")
_EPISODE = re.compile(r"^_?a?run_episode$")
_CHANGING = frozenset({"append", "extend", "insert", "update", "setdefault", "add", "pop", "clear", "remove"})
_OF_ALL = frozenset({"client", "config", "engine", "self", "session"})
"""Parameters that are the same for all episodes."""
_MICRO = re.compile(r"micro|(^|_)mbs?($|_)|(^|_)mini_?batch")
_COUNT = frozenset({"sum", "count_nonzero", "numel"})
_FAULT_NAMES = re.compile(r"reward|score")


def minimum_of_versions(module: Module, _side: Side) -> Iterator[Hit]:
    """Find the oldest version of a trajectory taken over prompt tokens too, which carry -1."""
    if "versions" not in module.text:
        return
    for function in module.functions():
        for node in own_nodes(function, ast.Call):
            if last_name(node.func) not in {"min", "amin"}:
                continue
            taken = next(iter(node.args), None)
            if isinstance(node.func, ast.Attribute) and not module.dotted(node.func).startswith(("torch", "numpy")):
                taken = node.func.value
            name = ""
            if isinstance(taken, ast.Subscript) and isinstance(taken.slice, ast.Constant):
                name = str(taken.slice.value)
            elif isinstance(taken, ast.Name | ast.Attribute):
                name = last_name(taken)
            if _VERSIONS.search(name) and not _GUARDS.search(ast.unparse(function)):
                yield node, f"`{ast.unparse(node)}` counts tokens that were not sampled"


def state_on_workflow(module: Module, _side: Side) -> Iterator[Hit]:
    """Find what an episode keeps on its workflow, which serves other episodes at the same time."""
    for owner in module.nodes(ast.ClassDef):
        methods = {each.name: each for each in owner.body if isinstance(each, Function)}
        episode = next((each for name, each in methods.items() if _EPISODE.match(name)), None)
        if not isinstance(episode, ast.AsyncFunctionDef):
            continue
        called = {_own_method(node) for node in own_nodes(episode)} & set(methods)
        for function in (episode, *(methods[name] for name in sorted(called) if name != episode.name)):
            for name, line in _kept_of_episode(module, owner, function):
                yield line, f"`{function.name}` writes `self.{name}`, which episodes that run at once share"


def _own_method(node: ast.AST) -> str:
    """Return "step" of `self.step(...)`; "" of everything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_self(node.func.value):
        return node.func.attr
    return ""


def _kept_of_episode(module: Module, owner: ast.ClassDef, function: Function) -> Iterator[tuple[str, int]]:
    """Yield attributes to which a method writes what comes from its parameters, or an empty container, and which the
    class reads, with lines. What is made once, of what the object has, may be shared."""
    nodes = list(own_nodes(function))
    withs = [each for each in nodes if isinstance(each, ast.With | ast.AsyncWith)]
    if any("lock" in ast.unparse(each.items[0]).lower() for each in withs):
        return
    data = set(parameters(function)) - _OF_ALL
    for made in sorted((each for each in nodes if isinstance(each, ast.Assign)), key=lambda each: each.lineno):
        if data & _names(made.value) or any(isinstance(each, ast.Await) for each in ast.walk(made.value)):
            data |= names_in(made.targets)
    data.discard("self")
    attributes = [each for each in nodes_in(owner, ast.Attribute) if _is_self(each.value)]
    read = {each.attr for each in attributes if isinstance(each.ctx, ast.Load)}
    for node in nodes:
        name = _written_on_self(node)
        asked = [ast.unparse(each.test) for each in module.around(node, function) if isinstance(each, ast.If)]
        # `self.done += 1`: a number that all episodes add to is meant to be shared.
        counted = isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant)
        if name not in read or any(name in each for each in asked) or counted:
            continue
        value = getattr(node, "value", node)
        afresh = isinstance(value, ast.List | ast.Dict) and not ast.unparse(value).strip("[]{}")
        if afresh or data & _names(value):
            yield name, getattr(node, "lineno", 1)


def _written_on_self(node: ast.AST) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        targets = [node.func.value]
    return next((each.attr for each in targets if isinstance(each, ast.Attribute) and _is_self(each.value)), "")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def denominator_of_part(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a loss that is divided by the count of one micro-batch before its backward pass."""
    for loop in module.nodes(ast.For):
        names = names_in(loop.target)
        if not any(_MICRO.search(each) for each in (*names, ast.unparse(loop.iter))):
            continue
        nodes = [node for statement in loop.body for node in [statement, *own_nodes(statement)]]
        if not any(isinstance(node, ast.Call) and last_name(node.func) == "backward" for node in nodes):
            continue
        own = set(names)
        for node in nodes:  # names that are made from the micro-batch
            if isinstance(node, ast.Assign) and own & _names(node.value):
                own |= names_in(node.targets)
        for node in nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _counts_mask(node.right, own):
                yield node, f"`{ast.unparse(node)}` is divided by the count of one micro-batch"


def _names(node: ast.AST) -> set[str]:
    return names_in(node)


def _counts_mask(node: ast.expr, own: set[str]) -> bool:
    """`mb["loss_mask"].sum()`, also inside of clamp or max, where `mb` is of the loop."""
    for each in ast.walk(node):
        counts = isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _COUNT
        if counts and "mask" in ast.unparse(each) and own & _names(each):
            return True
    return False


def failure_as_score(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a failure that becomes a reward of a number: `except TimeoutError: reward = 0.0`."""
    for handler in module.nodes(ast.ExceptHandler):
        caught = ast.unparse(handler.type) if handler.type is not None else ""
        if not re.search(r"Timeout|Fault|Cancelled|Connection|BrokenProcess|ClientError", caught):
            continue
        for node in (each for statement in handler.body for each in [statement, *own_nodes(statement)]):
            if not isinstance(node, ast.Assign):
                continue
            signed = isinstance(node.value, ast.UnaryOp) and isinstance(node.value.op, ast.USub)
            number = node.value.operand if isinstance(node.value, ast.UnaryOp) and signed else node.value
            value, target = getattr(number, "value", None), node.targets[0]
            named = isinstance(target, ast.Name | ast.Attribute) and _FAULT_NAMES.search(last_name(target))
            if named and isinstance(value, int | float) and not isinstance(value, bool):
                yield node, f"`{caught}` becomes `{ast.unparse(node)}`"


RULES = (
    Rule("minimum-of-versions", Severity.HIGH, in_tests=False, in_file=minimum_of_versions),
    Rule("state-on-workflow", Severity.HIGH, in_tests=False, in_file=state_on_workflow),
    Rule("denominator-of-part", Severity.HIGH, in_tests=False, in_file=denominator_of_part),
    Rule("failure-as-score", Severity.MEDIUM, in_tests=False, in_file=failure_as_score),
)
