"""Checks what an episode hands on, and what belongs together in a batch: shared rows, versions, groups, pairs."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_ROW = frozenset({"data", "row", "example", "sample", "task", "item", "input_data", "batch"})
_CHANGING = frozenset({"pop", "update", "setdefault", "clear", "popitem"})
_IN_PLACE = re.compile(r"^[a-z]\w*[a-z]_$")
_MADE_PER_STEP = re.compile(r"loss|reward|advantage")
_UPDATES = re.compile(r"^_?update_weights(_\w+)?$")
_SIZE = re.compile(r"group_size|n_samples|num_generations|samples_per_prompt|rollout_n")


def mutated_row(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an episode that changes its dataset row; a loss that changes the batch it reads."""
    for function in module.functions():
        named = [name for name in parameters(function) if name in _ROW]
        nodes = list(own_nodes(function)) if named else []
        for name in named:
            uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
            stored = [node for node in uses if isinstance(node.ctx, ast.Store | ast.Del)]
            shallow = len(stored) == 1 and _is_shallow_copy(module.parents[stored[0]], name)
            if stored and not shallow:
                continue  # a copy, most of the time
            if function.name.endswith(("run_episode", "run_agent")):
                yield from _changed_keys(module, function, nodes, name, own=shallow)
            elif not shallow and _MADE_PER_STEP.search(function.name):
                yield from _changed_tensors(module, function, nodes, name)


def _is_shallow_copy(node: ast.AST, name: str) -> bool:
    """Whether it is `data = dict(data)`, `data.copy()` or `{**data}`: lists in it are still those of the row."""
    value = node.value if isinstance(node, ast.Assign) else None
    if isinstance(value, ast.Dict):
        return value.keys == [None] and _is(value.values[0], name)
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and _is(value.func.value, name):
        return value.func.attr == "copy"
    return last_name(value.func) in {"copy", "dict"} and len(value.args) == 1 and _is(value.args[0], name)


def _changed_keys(module: Module, function: Function, nodes: list[ast.AST], name: str, *, own: bool) -> Iterator[Hit]:
    """own: the function has a shallow copy, whose keys are its own."""
    for node in nodes:
        changed = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _is(node.value, name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = node.func.attr in _CHANGING and _is(node.func.value, name)
        if changed and not own:
            message = f"`{function.name}` changes `{name}`, which all samples of the group share"
            yield getattr(node, "lineno", 1), message
        alias = _held(nodes, node, name)
        if not alias:
            continue
        stored = [each for each in nodes if _is(each, alias) and isinstance(getattr(each, "ctx", None), ast.Store)]
        grown = (each.func for each in nodes if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute))
        added = any(each.attr in _GROWING and _is(each.value, alias) for each in grown)
        if len(stored) == 1 and added:
            message = f"`{alias}` is the row's own list: what is added stays for all samples of the group"
            yield getattr(node, "lineno", 1), message


def _held(nodes: list[ast.AST], node: ast.AST, name: str) -> str:
    """Return "messages" of `messages = data["messages"]`, unless the function put the list there itself."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript):
        return ""
    target = node.targets[0]
    if not isinstance(target, ast.Name) or not _is(node.value.value, name) or _is_stored(nodes, node.value):
        return ""
    return target.id


_GROWING = frozenset({"append", "extend", "insert"})


def _changed_tensors(module: Module, function: Function, nodes: list[ast.AST], name: str) -> Iterator[Hit]:
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        target = node.func.value
        held = isinstance(target, ast.Subscript) and _is(target.value, name) and isinstance(target.slice, ast.Constant)
        if held and _IN_PLACE.match(node.func.attr) and not _is_stored(nodes, target):
            yield node, f"`.{node.func.attr}()` changes `{ast.unparse(target)}` for whoever reads the batch next"


def _is_stored(nodes: list[ast.AST], target: ast.expr) -> bool:
    """Whether the function put the tensor there itself."""
    text = ast.unparse(target)
    stores = (node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
    return any(ast.unparse(node) == text for node in stores)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def without_versions(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a trajectory with log-probabilities and no versions, in a repository whose trajectories have them."""
    for function in module.nodes(ast.AsyncFunctionDef):
        owner = module.class_of(function)
        if owner is None or not owner.name.endswith("Workflow"):
            continue
        for node in own_nodes(function):
            keys = _keys(node)
            if not keys >= {"input_ids", "loss_mask", "logprobs"}:
                continue
            stores = own_nodes(function, ast.Subscript)
            keys_set = (each.slice for each in stores if isinstance(each.ctx, ast.Store))
            later = {str(each.value) for each in keys_set if isinstance(each, ast.Constant)}
            if "versions" not in keys | later:
                message = f"`{owner.name}.{function.name}` returns log-probabilities without `versions`"
                yield getattr(node, "lineno", 1), message


def _keys(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Dict):
        if None in node.keys:
            return set()
        return {str(each.value) for each in node.keys if isinstance(each, ast.Constant)}
    if isinstance(node, ast.Call) and _is(node.func, "dict") and all(each.arg for each in node.keywords):
        return {str(each.arg) for each in node.keywords}
    return set()


def version_not_set(module: Module, _side: Side) -> Iterator[Hit]:
    """Find the only one of several ways to update weights that leaves the version as it was."""
    for owner in module.nodes(ast.ClassDef):
        ways = [each for each in owner.body if isinstance(each, Function) and _UPDATES.match(each.name)]
        called = {each.name: {last_name(node.func) for node in own_nodes(each, ast.Call)} for each in ways}
        setting = {name for name, calls in called.items() if "set_version" in calls}
        for way in ways:
            calls = called[way.name]
            others = any(way.name in calls_of for name, calls_of in called.items() if name != way.name)
            stub = len(calls) < 2
            if len(setting) >= 2 and way.name not in setting and not calls & setting and not others and not stub:
                yield way, f"`{way.name}` sets no version; {', '.join(sorted(setting)[:2])} do"


def order_lost(module: Module, _side: Side) -> Iterator[Hit]:
    """Find rows that are shuffled, filtered or sorted one by one, and then taken in groups by their position."""
    for function in module.functions():
        mixed: dict[str, int] = {}
        located = own_nodes(function, ast.stmt, ast.expr)
        for node in sorted(located, key=lambda each: each.lineno):
            for name in _mixed(node):
                mixed[name] = node.lineno
            for name, line in list(mixed.items()):
                if node.lineno > line and _by_position(node, name):
                    message = f"`{name}` is mixed row by row, and then taken in groups by position"
                    yield node, message, f"{module.path}:{line}"
                    del mixed[name]


def _mixed(node: ast.AST) -> Iterator[str]:
    """Yield names that lose their order here: `random.shuffle(x)`, `x = x[torch.randperm(n)]`, `x = sorted(x)`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) == "shuffle":
        yield from (each.id for each in node.value.args[:1] if isinstance(each, ast.Name))
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        value = node.value
        by_chance = isinstance(value, ast.Subscript) and "randperm" in ast.unparse(value.slice)
        if isinstance(value, ast.Call) and _is(value.func, "sorted") and keyword(value, "key") is not None:
            by_chance = _is(value.args[0], node.targets[0].id)
        if by_chance:
            yield node.targets[0].id


def _by_position(node: ast.AST, name: str) -> bool:
    """`x.view(-1, group_size)`, `x[::2]`, `x[i : i + group_size]`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"view", "reshape"}:
        return _is(node.func.value, name) and any(_SIZE.search(ast.unparse(each)) for each in node.args)
    if isinstance(node, ast.Subscript) and _is(node.value, name) and isinstance(node.slice, ast.Slice):
        by_two = isinstance(node.slice.step, ast.Constant) and node.slice.step.value == 2
        return by_two or bool(node.slice.upper is not None and _SIZE.search(ast.unparse(node.slice.upper)))
    return False


def equal_halves(module: Module, _side: Side) -> Iterator[Hit]:
    """`chosen = x[::2]` and `rejected = x[::2]`, `left = x[0].text()` and `right = x[0].text()`: both halves of the
    pairs are the same one."""
    for function in module.functions():
        halves: dict[str, ast.Assign] = {}
        for node in own_nodes(function):
            taken = [each.slice for each in nodes_in(node, ast.Subscript)]
            counted = [each for each in taken if isinstance(each, ast.Constant) and type(each.value) is int]
            if isinstance(node, ast.Assign) and (counted or any(isinstance(each, ast.Slice) for each in taken)):
                halves[last_name(node.targets[0])] = node
        for (name, node), (half, other) in itertools.product(halves.items(), _HALVES.items()):
            twin = halves.get(name.replace(half, other)) if half in name else None
            if twin is not None and ast.unparse(twin.value) == ast.unparse(node.value):
                yield node, f"`{name}` is the same half as `{last_name(twin.targets[0])}`"


_HALVES: Final = {"rejected": "chosen", "right": "left", "second": "first", "lose": "win", "neg_": "pos_"}


RULES = (
    Rule("shared-row-changed", Severity.MEDIUM, in_tests=False, in_file=mutated_row),
    Rule("trajectory-without-versions", Severity.HIGH, in_tests=False, in_file=without_versions),
    Rule("version-not-set", Severity.HIGH, in_tests=False, in_file=version_not_set),
    Rule("group-order-lost", Severity.HIGH, in_tests=False, in_file=order_lost),
    Rule("pair-halves-equal", Severity.HIGH, in_file=equal_halves),
)
