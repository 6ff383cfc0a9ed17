"""Collectives and process groups: what hangs a job, mixes ranks that should not talk, or is of the whole job where the
code around it is about one group."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, names_in, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import LEAVES, following, neighbours, reached, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

COLLECTIVES = words("""
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list gather gather_object monitored_barrier reduce reduce_scatter reduce_scatter_tensor scatter
    scatter_object_list
""")
_FIRST_RANK = frozenset({"is_main_process", "is_rank_zero", "is_rank_0", "is_main_rank", "is_global_zero", "is_master"})
_RANK = re.compile(r"_*(?P<of>.*?)_?rank")
_PART_OF_A_NODE = frozenset({"local", "node", "in_node"})
_GROUP = re.compile(r"_*(?P<of>.*?)_?(?:process_group|group|pg)")
_OF_A_MESH = re.compile(r"(^|_)(dp|tp|cp|pp|sp|ep|mp|fsdp|hsdp|\w+_parallel|shard|mesh)(_|$)")
"""Names of groups that each rank is in: rank 0 of the job is never alone in one."""
_MEETS_ALL = re.compile(r"^(all_gather|all_reduce|all_to_all|barrier|monitored_barrier|reduce_scatter)")
_OWN_DATA = re.compile(
    r"(^|_)(grads?|gradients|batch|batches|mbs|micro_?batches|samples|rows|tensors|tokens|losses|messages|data|items)($|_)"
)
_OF_ALL = re.compile(r"(^|_)(all|global|gathered|shared|total|meta|config|names?|keys|metadata)($|_)")
"""Names of what each rank has alike."""
_GROUP_PARAMETERS = ("group", "process_group", "pg")
_MAKERS = frozenset({"init_process_group", "new_group", "init_device_mesh", "new_subgroups"})


def collective(module: Module, node: ast.AST) -> str:
    """Return the name of the collective that a call runs; "" for other calls."""
    if not isinstance(node, ast.Call):
        return ""
    name = module.dotted(node.func)
    owner, _, last = name.rpartition(".")
    return last if last in COLLECTIVES and owner in {"torch.distributed", "dist", "distributed_c10d"} else ""


def group_given(call: ast.Call, name: str) -> bool:
    """Whether a call of a collective says its group."""
    if keyword(call, "group", "process_group") is not None or any(each.arg is None for each in call.keywords):
        return True
    if any(isinstance(each, ast.Starred) for each in call.args):
        return True
    positions = {"barrier": 0, "monitored_barrier": 0, "all_reduce": 2, "broadcast": 2, "all_gather": 2, "reduce": 3}
    positions |= {"all_gather_object": 2, "broadcast_object_list": 2, "all_gather_into_tensor": 2, "reduce_scatter": 3}
    return len(call.args) > positions.get(name, 4)


def group_not_forwarded(module: Module, side: Side) -> Iterator[Hit]:
    """Find a collective on the default group in a function that takes a group, and a call of a function of ours that
    would take it too."""
    for function in module.functions():
        given = group_parameter(function)
        for node in own_nodes(function, ast.Call) if given else ():
            if for_none(module, node, given):
                continue
            name, target = collective(module, node), reached(module, side, node)
            if name and not group_given(node, name):
                yield node, f"`{name}` ignores the parameter `{given}` of `{function.name}`"
            if target is None or group_parameter(target) != given:
                continue
            bound = isinstance(node.func, ast.Attribute) and not target.decorator_list
            open_ended = any(isinstance(each, ast.Starred) for each in node.args) or keyword(node, given) is not None
            open_ended |= any(each.arg is None for each in node.keywords)
            if given not in parameters(target)[bound:][: len(node.args)] and not open_ended:
                yield node, f"`{target.name}` is called without the `{given}` that `{function.name}` is given"


def group_parameter(function: Function) -> str:
    """Return the parameter that is a process group, by its name or its annotation; "" if there is none, or several."""
    given = [*function.args.args, *function.args.kwonlyargs]
    said = {each.arg: ast.unparse(each.annotation) if each.annotation else "Any" for each in given}
    named = [name for name in _GROUP_PARAMETERS if re.search(r"Group|Any", said.get(name, ""))]
    named = named or [name for name, annotation in said.items() if re.search(r"\bProcessGroup\b", annotation)]
    return named[0] if len(named) == 1 else ""


def for_none(module: Module, node: ast.AST, name: str) -> bool:
    """Tell whether a branch around the call asks for the parameter."""
    tests = (each.test for each in module.around(node) if isinstance(each, ast.If | ast.IfExp))
    return any(isinstance(part, ast.Name) and part.id == name for test in tests for part in ast.walk(test))


def asked_rank(test: ast.expr) -> str | None:
    """Return whose rank a condition asks for; None when it asks for none.

    "" for the whole job (`rank == 0`, `not is_main_process`), "tp" for `self.tp_rank == 0`, and "=group" for
    `dist.get_rank(group) == 0` and `group.rank() == 0`.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return asked_rank(test.operand)
    called = test.func if isinstance(test, ast.Call) else test
    if isinstance(called, ast.Name | ast.Attribute) and last_name(called) in _FIRST_RANK:
        return ""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    sides = (test.left, test.comparators[0])
    asked = next((each for each in sides if not isinstance(each, ast.Constant)), None)
    if asked is None or not any(isinstance(each, ast.Constant) and type(each.value) is int for each in sides):
        return None
    if isinstance(asked, ast.Call):
        return _called_rank(asked)
    name = _RANK.fullmatch(last_name(asked)) if isinstance(asked, ast.Name | ast.Attribute) else None
    if name is None or name["of"] in _PART_OF_A_NODE:
        return None
    return "" if name["of"] in {"global", "world"} else name["of"]


def _called_rank(call: ast.Call) -> str | None:
    """Return "" for `dist.get_rank()`, "=group" for `dist.get_rank(group)` and `group.rank()`."""
    if last_name(call.func) == "get_rank":
        given = call.args[0] if call.args else keyword(call, "group")
        return f"={ast.unparse(given)}" if given is not None else ""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "rank" and not call.args:
        return f"={ast.unparse(call.func.value)}"
    return None


def _is_of_group(whose: str, call: ast.Call, name: str, *, alone: bool) -> bool:
    """Tell whether the ranks that a condition tells apart all belong to the group of a collective.

    `if tp_rank == 0: broadcast(x, group=dp_group)` is right: whole groups come, or none of their ranks.
    """
    group = keyword(call, "group", "process_group")
    if group is None and not group_given(call, name):
        return whose == ""
    if group is None:
        return False
    said = ast.unparse(group)
    if (
        whose == ""
        and (alone or _MEETS_ALL.match(name))
        and _OF_A_MESH.search(said.replace(".", "_").replace('"', "_"))
    ):
        return True
    if whose.startswith("="):
        return said == whose[1:]
    if said == "None" or said.endswith(".WORLD"):
        return whose == ""
    if isinstance(group, ast.Call):
        group = group.func
    of = _GROUP.fullmatch(last_name(group)) if isinstance(group, ast.Name | ast.Attribute) else None
    return of is not None and of["of"] == whose


def _is_one_rank(test: ast.expr, *, holds: bool) -> bool:
    """Whether one rank of the whole job is alone where a condition holds, or does not: `dist.get_rank() == 0`."""
    asked = test.left if isinstance(test, ast.Compare) and asked_rank(test) == "" else None
    one = isinstance(asked, ast.Call) and last_name(asked.func) == "get_rank"
    return one and isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq if holds else ast.NotEq)


def _collectives_in(module: Module, body: list[ast.stmt]) -> dict[str, ast.Call]:
    nodes = (node for statement in body for node in [statement, *own_nodes(statement)])
    return {collective(module, node): node for node in nodes if isinstance(node, ast.Call) and collective(module, node)}


def rank_branch(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a collective that only some ranks of its group reach."""
    for node in module.nodes(ast.If):
        met = _collectives_in(module, node.body[-1:]) if not node.orelse and "rank" in ast.unparse(node.test) else {}
        again = [each for each in following(module, node) if met and ast.unparse(each) == ast.unparse(node.body[-1])]
        for each in again[:1]:
            yield each, f"`{min(met)}` is met once more by ranks that were in `if {ast.unparse(node.test)}`", node
        whose = asked_rank(node.test)
        if whose is None:
            continue
        first, second = _collectives_in(module, node.body), _collectives_in(module, node.orelse)
        paired = {"gather", "gather_object", "scatter", "scatter_object_list"}
        for name, call in (*first.items(), *second.items()):
            if (name in first and name in second) or (paired & {name} and second):
                continue
            alone = _is_one_rank(node.test, holds=call in first.values())
            if _is_of_group(whose, call, name, alone=alone):
                yield call, f"`{name}` runs under `if {ast.unparse(node.test)}` only"


def rank_return(module: Module, _side: Side) -> Iterator[Hit]:
    """`if rank != 0: return` in front of a collective of the same ranks."""
    for function in module.functions():
        for body in _bodies(function):
            yield from _left_before(module, body)


def _bodies(function: Function) -> Iterator[list[ast.stmt]]:
    for node in (function, *own_nodes(function)):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _left_before(module: Module, body: list[ast.stmt]) -> Iterator[Hit]:
    leaving: ast.If | None = None
    empty: ast.If | None = None
    for statement in body:
        if empty is not None:
            met = _collectives_in(module, [statement])
            if met:
                yield _left(empty, min(met))
                empty = None
        whose = asked_rank(leaving.test) if leaving is not None else None
        calls = _collectives_in(module, [statement]).items() if whose is not None else ()
        for name, call in calls:
            if leaving is None or whose is None:
                continue
            alone = _is_one_rank(leaving.test, holds=False)
            if (alone and _MEETS_ALL.match(name)) or _is_of_group(whose, call, name, alone=alone):
                yield _left(leaving, name)
        ends = isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[-1], LEAVES)
        alone = isinstance(statement, ast.If) and ends and _nothing_of_its_own(statement)
        if isinstance(statement, ast.If) and alone and not _collectives_in(module, statement.body):
            empty = empty or statement
        # A collective in the branch could be the partner of a later one.
        if isinstance(statement, ast.If) and ends and asked_rank(statement.test) is not None:
            leaving = leaving if _collectives_in(module, statement.body) else leaving or statement


def _left(leaving: ast.If, name: str) -> Hit:
    return leaving, f"ranks that leave at `if {ast.unparse(leaving.test)}` miss `{name}`"


def _nothing_of_its_own(branch: ast.If) -> bool:
    """`if not grads: return`: other ranks may have some. What is counted has to be of this rank: not the names of all
    parameters, nor what was gathered from all ranks."""
    test = branch.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        zero = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value == 0
        call = test.left if zero else None
        if not isinstance(call, ast.Call):
            return False
        counted = call.args[0] if last_name(call.func) == "len" and call.args else None
        if counted is None and isinstance(call.func, ast.Attribute) and call.func.attr == "numel":
            counted = call.func.value
    else:
        counted = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else None
    named = isinstance(counted, ast.Name) and bool(_OWN_DATA.search(counted.id)) and not _OF_ALL.search(counted.id)
    return named and isinstance(branch.body[-1], ast.Return | ast.Continue)


def rank_assertion(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an assertion on a value of this rank, just before the ranks meet: one fails, the others wait for ever."""
    for function in module.functions():
        for here, after in zip(function.body, function.body[1:], strict=False):
            names = names_in(here)
            met = _collectives_in(module, [after])
            shared = names_in(met.values())
            if isinstance(here, ast.Assert) and met and names & shared - set(module.imported):
                yield here, f"assertion on a rank's own value before `{min(met)}`"


def module_group(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a process group made when a module is imported."""
    for node in module.nodes(ast.Call):
        if last_name(node.func) not in _MAKERS or not module.dotted(node.func).startswith(
            ("torch.distributed", "dist.")
        ):
            continue
        tests = (ast.unparse(each.test) for each in module.around(node) if isinstance(each, ast.If))
        if module.function_of(node) is None and not any("__name__" in test for test in tests):
            yield node, f"`{ast.unparse(node.func)}` runs at import"


def group_timeout(module: Module, _side: Side) -> Iterator[Hit]:
    """`new_group` without a timeout although other groups of the file have one."""
    calls = [node for node in module.nodes(ast.Call) if module.dotted(node.func) in _TIMED]
    timed = [node for node in calls if keyword(node, "timeout") is not None]
    for node in calls if timed else ():
        if keyword(node, "timeout") is None and not any(each.arg is None for each in node.keywords):
            yield node, f"`{ast.unparse(node.func)}` has no timeout; other groups here have"


_TIMED = ("torch.distributed.new_group", "torch.distributed.init_process_group")


def update_without_pause(module: Module, _side: Side) -> Iterator[Hit]:
    """Find the trainer's side of a distributed weight update that does not stop generation meanwhile."""
    for function in module.functions():
        if not function.name.endswith(("update_weights_from_distributed", "update_weights_from_disk")):
            continue
        owner = module.class_of(function) or module.tree
        nodes = list(own_nodes(function))
        meets = any(collective(module, node) for node in nodes)
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        named = {last_name(each) for each in called}
        if any(each.startswith("load_") for each in named):
            continue  # the receiving side, which its server has stopped
        paused = owner is module.tree and "pause" in module.text
        if function.name.endswith("disk"):
            # The engine that generates is another object, which loads what this one has written.
            asks = [ast.unparse(each) for each in called if last_name(each) == "update_weights_from_disk"]
            meets = meets and any(re.search(r"rollout|infer|generat", each.rpartition(".")[0]) for each in asks)
            held = [each.context_expr for each in nodes if isinstance(each, ast.withitem)]
            paused = any(_STOPS.search(each) for each in (*named, *map(last_name, held)))
        callers = [each for each in owner.body if isinstance(each, Function) and _calls(each, function.name)]
        paused |= any("pause" in name for name in named) or any(_calls(each, "pause") for each in callers)
        if meets and "bucket" not in function.name and not paused:
            yield function, f"`{function.name}` changes weights while generation goes on"


_STOPS = re.compile(r"abort|pause|stop|sleep|suspend")


def _calls(function: Function, part: str) -> bool:
    calls = own_nodes(function, ast.Call)
    return any(part in last_name(node.func) for node in calls)


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
    longer than one, or beside a group that the function looks up and does not use; and one that sends what only
    `if mesh.get_local_rank() == 0` has set."""
    for one, other in neighbours(module):
        test = ast.unparse(one.test) if isinstance(one, ast.If) else ""
        for name, call in _collectives_in(module, [other]).items() if "get_local_rank()" in test else ():
            if not group_given(call, name) and names_in(call.args[:1]) & names_in(one):
                yield call, f"`{name}` meets all ranks, where `{test}` asks for one of a mesh"
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


RULES: Final = (
    Rule("group-not-forwarded", Severity.HIGH, in_file=group_not_forwarded),
    Rule("collective-under-rank", Severity.CRITICAL, in_file=rank_branch),
    Rule("return-before-collective", Severity.CRITICAL, in_file=rank_return),
    Rule("rank-local-assert", Severity.HIGH, in_file=rank_assertion),
    Rule("module-level-group", Severity.HIGH, in_file=module_group),
    Rule("group-without-timeout", Severity.MEDIUM, in_file=group_timeout),
    Rule("update-without-pause", Severity.MEDIUM, in_file=update_without_pause),
    Rule("default-group-rank", Severity.HIGH, in_file=default_group_rank),
    Rule("barrier-on-devices", Severity.LOW, in_tests=False, in_file=barrier_on_devices),
    Rule("group-unnamed", Severity.MEDIUM, in_tests=False, in_file=group_unnamed),
    Rule("group-of-axis-unnamed", Severity.MEDIUM, in_tests=False, in_file=group_of_axis_unnamed),
    Rule("sampler-without-epoch", Severity.MEDIUM, in_tests=False, in_file=sampler_without_epoch),
)
