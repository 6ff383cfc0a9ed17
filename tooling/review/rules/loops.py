"""Loops and lists that lead elsewhere than was meant: an index that is scaled twice, a bound that moves towards its
count, a reference that the loop itself rewrites, the first item of nothing."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tooling.python.module import last_name, names_in, nodes_in, own_nodes
from tooling.python.source import dotted_name
from tooling.review.records import Rule, Severity
from tooling.review.rules.conditions import stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_GROWS: Final = frozenset({"append", "extend", "add", "update", "insert"})
_OF_ALL: Final = frozenset({"mean", "std", "var", "max", "min", "sum", "norm", "amax", "amin", "median"})


def stride_twice(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `i * size` in a loop over `range(0, n, size)`, where `i` is a multiple of the size already."""
    for loop in module.nodes(ast.For):
        call = loop.iter
        if not isinstance(call, ast.Call) or last_name(call.func) != "range" or len(call.args) != 3:
            continue
        named = any(isinstance(each, ast.Name) for each in ast.walk(call.args[2]))
        if not named or not isinstance(loop.target, ast.Name):
            continue
        step = ast.unparse(call.args[2])
        for node in (each for one in loop.body for each in ast.walk(one)):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
                continue
            if sorted([ast.unparse(node.left), ast.unparse(node.right)]) == sorted([loop.target.id, step]):
                yield loop, f"`{loop.target.id}` advances by `{step}` and is multiplied by it again"
                break


def bound_moved(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `while len(out) < spec.most:` whose body lengthens `out` and lessens `spec.most`, perhaps under another
    name: each item counts twice.

    spec = request.spec
    while len(out) < spec.most:
        out += sample(request)
        request.spec.most -= 1
    """
    for loop in module.nodes(ast.While):
        inside = [each for one in loop.body for each in ast.walk(one)]
        lessened = {
            ast.unparse(each.target)
            for each in inside
            if isinstance(each, ast.AugAssign)
            and isinstance(each.op, ast.Sub)
            and isinstance(each.target, ast.Attribute)
        }
        grown = {
            ast.unparse(each.func.value)
            for each in inside
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _GROWS
        }
        grown |= {ast.unparse(each.target) for each in inside if isinstance(each, ast.AugAssign)} - lessened
        for test in ast.walk(loop.test) if lessened else ():
            if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Lt | ast.LtE):
                continue
            counted, bound = test.left, test.comparators[0]
            names = {ast.unparse(bound)}
            if isinstance(bound, ast.Attribute) and isinstance(bound.value, ast.Name):
                function = module.function_of(loop)
                for each in own_nodes(function, ast.Assign):
                    if last_name(each.targets[0]) == bound.value.id:
                        names.add(f"{ast.unparse(each.value)}.{bound.attr}")
            of = counted.args if isinstance(counted, ast.Call) and last_name(counted.func) == "len" else []
            if len(of) == 1 and ast.unparse(of[0]) in grown and names & lessened:
                yield test, f"`{ast.unparse(bound)}` is lessened in the loop while `{ast.unparse(counted)}` grows"


def changed_while_iterating(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `xs.remove(x)` in a loop over `xs` that goes on, and a loop over `sys.modules`, which any import changes."""
    loops = list(module.nodes(ast.For, ast.AsyncFor))
    for loop in loops:
        over = loop.iter
        if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and over.args:
            over = over.args[0]
        if isinstance(over, ast.Call) and last_name(over.func) in {"items", "keys", "values"} and not over.args:
            over = over.func.value if isinstance(over.func, ast.Attribute) else over
        name = dotted_name(over)
        if module.dotted(over) == "sys.modules":
            yield loop, "an import in another thread, or in the loop, changes `sys.modules`"
        nodes = [each for one in loop.body for each in (one, *own_nodes(one))] if name else []
        if name in stored(loop.body):
            continue
        for node in nodes:
            func = node.func if isinstance(node, ast.Call) else None
            gone = [each for each in getattr(node, "targets", ()) if isinstance(each, ast.Subscript)]
            owners = [each.value for each in gone] if isinstance(node, ast.Delete) else []
            if isinstance(func, ast.Attribute) and func.attr in _SHRINKS:
                owners = [func.value]
            if any(dotted_name(each) == name for each in owners) and not _left_after(module, node, loop):
                yield getattr(node, "lineno", 1), f"`{name}` is changed while the loop goes over it"


_SHRINKS: Final = frozenset({"clear", "discard", "insert", "pop", "popitem", "popleft", "remove"})


def _left_after(module: Module, node: ast.AST, loop: ast.AST) -> bool:
    """Whether a loop ends in one of the blocks around a node, behind it."""
    inner = node
    for holder in (*module.around(node, loop), loop):
        blocks = (getattr(holder, field, None) for field in ("body", "orelse", "finalbody"))
        block = next((each for each in blocks if isinstance(each, list) and inner in each), [])
        after = block[block.index(inner) :] if block else []
        if any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in after):
            return True
        inner = holder
    return False


def reference_rewritten(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a loop that asks what it has rewritten in an earlier round.

    for k, v in d.items():                       # once d["mask"] was cut, nothing else has its shape
        if v.shape == d["mask"].shape:
            d[k] = v[:, :n]
    for i in range(n):                           # the mean is one of changed and unchanged rows
        x[i] = x[i] - x.mean()
    """
    for loop in module.nodes(ast.For):
        targets = names_in(loop.target)
        inside = [each for one in loop.body for each in ast.walk(one)]
        replaced = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        tests = [part for each in inside if isinstance(each, ast.If | ast.IfExp) for part in ast.walk(each.test)]
        shapes = [each.value for each in tests if isinstance(each, ast.Attribute) and each.attr == "shape"]
        fixed = [each for each in shapes if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant)]
        stored = [
            (each, target, target.value.id)
            for each in inside
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
        ]
        for assign, target, name in stored:
            used = names_in(target.slice)
            if not used & targets or name in replaced:
                continue
            # What is changed little by little is read there too: `df[c + "_mean"] = df.mean()` adds a column.
            whole = _aggregate(assign.value, name)
            items = nodes_in(assign.value, ast.Subscript) if whole else []
            if all(ast.unparse(each) != ast.unparse(target) for each in items):
                whole = None
            method = loop.iter.func if isinstance(loop.iter, ast.Call) else None
            over = isinstance(method, ast.Attribute) and method.attr == "items" and ast.unparse(method.value) == name
            constant = next((each for each in fixed if ast.unparse(each.value) == name), None)
            found = constant if over and last_name(target.slice) in targets else whole
            if found is not None:
                yield found, f"`{ast.unparse(found)}` is read again after `{ast.unparse(target)}` was rewritten"
                break


def _aggregate(value: ast.expr, name: str) -> ast.expr | None:
    """Return `x.mean()` or `torch.mean(x)` of the whole `x` in a value."""
    for node in nodes_in(value, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_ALL:
            given = [*node.args, *node.keywords]
            of = node.func.value
            if last_name(of) in {"torch", "np", "numpy"} and len(node.args) == 1:
                of, given = node.args[0], given[1:]
            if isinstance(of, ast.Name) and of.id == name and not given:
                return node
    return None


RULES: Final = (
    Rule("stride-twice", Severity.HIGH, in_file=stride_twice),
    Rule("bound-moved", Severity.HIGH, in_file=bound_moved),
    Rule("changed-while-iterating", Severity.MEDIUM, in_file=changed_while_iterating),
    Rule("reference-rewritten", Severity.HIGH, in_file=reference_rewritten),
)
