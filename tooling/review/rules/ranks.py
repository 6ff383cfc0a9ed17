"""Finds numbers and barriers of the whole job where the code around them talks to one group."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, names_in, nodes_in, own_nodes
from tooling.review.records import Rule, Severity
from tooling.review.rules.distributed import collective, for_none, group_given, group_parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_ASKED = {"torch.distributed.get_rank": "get_rank", "torch.distributed.get_world_size": "get_world_size"}
_PLACING = (ast.Mod, ast.Mult, ast.FloorDiv)


def default_group_rank(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a rank or size of the whole job, in a function that is about one group."""
    for function in module.functions():
        given = group_parameter(function)
        calls = own_nodes(function, ast.Call) if given else []
        asked = [(node, _ASKED[module.dotted(node.func)]) for node in calls if module.dotted(node.func) in _ASKED]
        of_the_group = {name for node, name in asked if node.args or node.keywords}
        for node, name in asked:
            # A rank of the whole job is right as `src` of a collective, and where both are asked for.
            plain = not node.args and not node.keywords and name not in of_the_group
            meant = plain and (name == "get_world_size" or _places(module, function, node))
            if meant and not for_none(module, node, given):
                yield node, f"`{name}()` is that of the whole job, `{function.name}` is about `{given}`"


def _places(module: Module, function: Function, call: ast.Call) -> bool:
    """Whether a rank says where something is: `parts[rank]`, `rank * size`."""
    parent = module.parents.get(call)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        uses = [node for node in own_nodes(function, ast.Name) if node.id == name]
        return any(_is_place(module.parents.get(node), node) for node in uses)
    return _is_place(parent, call)


def _is_place(parent: ast.AST | None, node: ast.AST) -> bool:
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, _PLACING)
    return isinstance(parent, ast.Subscript) and parent.slice is node


def group_unnamed(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a collective on all ranks in a file, or a class, of which nearly all others name their group, and a barrier
    in a class of which another barrier names it."""
    owners: dict[tuple[ast.AST | None, bool], list[ast.Call]] = {}
    for node in module.nodes(ast.Call):
        name = collective(module, node)
        function = module.function_of(node) if name else None
        owner = module.class_of(function) if function is not None else None
        # Barriers of different classes may be for different ranks.
        for each in dict.fromkeys([owner] if name == "barrier" else [None, owner, function]) if name else ():
            owners.setdefault((each, name == "barrier"), []).append(node)
    found: dict[ast.Call, ast.Call] = {}
    for (within, barrier), calls in owners.items():
        named = [each for each in calls if group_given(each, collective(module, each))]
        most = MOST_NAMED - isinstance(within, Function)
        few = not named if barrier else len(named) < most or len(named) < most / (most + 1) * len(calls)
        if not few and not (barrier and within is None):
            found |= {each: named[0] for each in calls if each not in named}
    for node, other in found.items():
        name, function = collective(module, node), module.function_of(node)
        # A function that asks for the rank or size of all ranks means all of them.
        text = ast.unparse(function) if function is not None and name != "barrier" else ""
        if "get_rank()" not in text and "get_world_size()" not in text:
            yield node, f"`{name}` meets all ranks of the job; others here name their group", other


_OF_AN_AXIS: Final = re.compile(
    r"(?<![a-z])(?:tp|cp|sp|ep|pp|tensor|context|sequence|expert|pipeline|ulysses|ring_attn)"
    r"(?:_model)?(?:_parallel)?_(?:(?:world_)?size|(?:first_|last_)?rank)\b|data_parallel_world_size\(\)|_in_\w+_group\b"
)


def group_of_axis_unnamed(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a collective of all ranks whose list has one entry for each rank of one axis, which runs where that axis is
    longer than one, or beside a group that the function looks up and does not use."""
    for function in module.functions():
        nodes = own_nodes(function)
        calls = [each for each in nodes if isinstance(each, ast.Call) and collective(module, each)]
        for call in calls:
            if collective(module, call) == "barrier" or group_given(call, collective(module, call)):
                continue
            around = list(module.around(call, function))
            tests = [ast.unparse(each.test) for each in around if isinstance(each, ast.If)]
            sent = names_in(call)
            made = [each for each in nodes if isinstance(each, ast.Assign) and last_name(each.targets[0]) in sent]
            lists = [ast.unparse(each.value) for each in made if isinstance(each.value, ast.ListComp | ast.BinOp)]
            lists += [ast.unparse(each) for each in (keyword(call, "src"), keyword(call, "dst")) if each is not None]
            axis = next((found[0] for text in (*tests, *lists) if (found := _OF_AN_AXIS.search(text))), "")
            over = [each.target for each in around if isinstance(each, ast.For)]
            axis = axis or next((last_name(each) for each in over if last_name(each).endswith("group")), "")
            names = [each for each in nodes_in(function, ast.Name) if each.id.endswith("group")]
            read = {each.id for each in names if isinstance(each.ctx, ast.Load)}
            unused = next((each.id for each in names if each.id not in read and "old" not in each.id), "")
            if axis or unused:
                said = f"is about `{axis}`" if axis else f"looks up `{unused}`"
                name = collective(module, call)
                yield call, f"`{name}` meets all ranks of the job; the code around it {said}"


def barrier_on_devices(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `barrier(device_ids=[...])` of all ranks: it waits on the device, and hangs where one rank is not there."""
    for node in module.nodes(ast.Call):
        devices = keyword(node, "device_ids") if collective(module, node) == "barrier" else None
        if devices is not None and not group_given(node, "barrier"):
            yield node, "a barrier of all ranks on their devices; a group of CPUs is cheaper"


MOST_NAMED = 3
"""Collectives with a group from which a file is taken to name all its groups."""


def sampler_without_epoch(module: Module, side: Side) -> Iterator[Hit]:
    """Find a DistributedSampler whose epoch nobody sets."""
    for node in module.nodes(ast.Call):
        if last_name(node.func) != "DistributedSampler" or "set_epoch" in module.text:
            continue
        shuffle = keyword(node, "shuffle")
        if isinstance(shuffle, ast.Constant) and shuffle.value is False:
            continue
        epochs = any("epoch" in ast.unparse(each.target) for each in module.nodes(ast.For))
        loaded = isinstance(module.parents.get(node), ast.keyword)
        if module.class_of(module.function_of(node) or node) is None and not epochs and not loaded:
            continue
        if not side.grep(["set_epoch"], "*.py"):
            yield node, "nobody calls `set_epoch`: every epoch has the same order"


RULES = (
    Rule("default-group-rank", Severity.HIGH, in_file=default_group_rank),
    Rule("barrier-on-devices", Severity.LOW, in_tests=False, in_file=barrier_on_devices),
    Rule("group-unnamed", Severity.MEDIUM, in_tests=False, in_file=group_unnamed),
    Rule("group-of-axis-unnamed", Severity.MEDIUM, in_tests=False, in_file=group_of_axis_unnamed),
    Rule("sampler-without-epoch", Severity.MEDIUM, in_tests=False, in_file=sampler_without_epoch),
)
