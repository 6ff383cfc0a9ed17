"""Loops and lists that lead elsewhere than was meant: an index that is scaled twice, a bound that moves towards its
count, a reference that the loop itself rewrites, the first item of nothing."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tooling.review.records import Place, Rule, Severity
from tooling.review.repository.module import last_name, own_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.review.repository.module import Module
    from tooling.review.repository.side import Side

_GROWS: Final = frozenset({"append", "extend", "add", "update", "insert"})
_OF_ALL: Final = frozenset({"mean", "std", "var", "max", "min", "sum", "norm", "amax", "amin", "median"})
_PICKS: Final = frozenset({"max", "min", "choice"})


def stride_twice(module: Module, _side: Side) -> Iterator[Place]:
    """Find `i * size` in a loop over `range(0, n, size)`, where `i` is a multiple of the size already."""
    for loop in module.nodes(ast.For):
        call = loop.iter
        ranged = isinstance(call, ast.Call) and last_name(call.func) == "range" and len(call.args) == 3
        if not ranged or not isinstance(loop.target, ast.Name) or isinstance(call.args[2], ast.Constant):  # type: ignore[attr-defined]  # `ranged` says what it is
            continue
        step = ast.unparse(call.args[2])  # type: ignore[attr-defined]  # `ranged` says what it is
        for node in (each for one in loop.body for each in ast.walk(one)):
            factors = [ast.unparse(node.left), ast.unparse(node.right)] if isinstance(node, ast.BinOp) else []
            if factors and isinstance(node.op, ast.Mult) and sorted(factors) == sorted([loop.target.id, step]):  # type: ignore[attr-defined]  # only a BinOp has factors
                said = f"`{loop.target.id}` advances by `{step}` and is multiplied by it again"
                yield Place(module.path, loop.lineno, said)
                break


def bound_moved(module: Module, _side: Side) -> Iterator[Place]:
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
            length = isinstance(counted, ast.Call) and last_name(counted.func) == "len" and len(counted.args) == 1
            names = {ast.unparse(bound)}
            if isinstance(bound, ast.Attribute) and isinstance(bound.value, ast.Name):
                function = module.function_of(loop)
                for each in own_nodes(function) if function is not None else ():
                    if isinstance(each, ast.Assign) and last_name(each.targets[0]) == bound.value.id:
                        names.add(f"{ast.unparse(each.value)}.{bound.attr}")
            if length and ast.unparse(counted.args[0]) in grown and names & lessened:  # type: ignore[attr-defined]  # `length` says what it is
                said = f"`{ast.unparse(bound)}` is lessened in the loop while `{ast.unparse(counted)}` grows"
                yield Place(module.path, test.lineno, said)


def reference_rewritten(module: Module, _side: Side) -> Iterator[Place]:
    """Find a loop that asks what it has rewritten in an earlier round.

    for k, v in d.items():                       # once d["mask"] was cut, nothing else has its shape
        if v.shape == d["mask"].shape:
            d[k] = v[:, :n]
    for i in range(n):                           # the mean is one of changed and unchanged rows
        x[i] = x[i] - x.mean()
    """
    for loop in module.nodes(ast.For):
        targets = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
        inside = [each for one in loop.body for each in ast.walk(one)]
        replaced = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        tests = [part for each in inside if isinstance(each, ast.If | ast.IfExp) for part in ast.walk(each.test)]
        shapes = [each.value for each in tests if isinstance(each, ast.Attribute) and each.attr == "shape"]
        fixed = [each for each in shapes if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant)]
        stored = [
            (each, target)
            for each in inside
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
        ]
        for assign, target in stored:
            used = {each.id for each in ast.walk(target.slice) if isinstance(each, ast.Name)}
            name = target.value.id  # type: ignore[attr-defined]  # filtered above
            if not used & targets or name in replaced:
                continue
            whole = _aggregate(assign.value, name)
            items = last_name(loop.iter.func) == "items" if isinstance(loop.iter, ast.Call) else False
            over = items and ast.unparse(loop.iter.func.value) == name  # type: ignore[attr-defined]  # `items` says it is a call
            constant = next((each for each in fixed if ast.unparse(each.value) == name), None)
            found = constant if over and last_name(target.slice) in targets else whole
            if found is not None:
                said = f"`{ast.unparse(found)}` is read again after `{ast.unparse(target)}` was rewritten"
                yield Place(module.path, found.lineno, said)
                break


def _aggregate(value: ast.expr, name: str) -> ast.expr | None:
    """Return `x.mean()` of the whole `x` in a value."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_ALL:
            of = node.args[0] if last_name(node.func.value) in {"torch", "np", "numpy"} and node.args else None
            of = of if of is not None else node.func.value
            if isinstance(of, ast.Name) and of.id == name:
                return node
    return None


def first_of_nothing(module: Module, _side: Side) -> Iterator[Place]:
    """Find an item, or a number of items less one, of a list that the lines above made empty."""
    for function in module.functions():
        for owner in (function, *own_nodes(function)):
            block = getattr(owner, "body", None)
            for number, statement in enumerate(block if isinstance(block, list) else ()):
                target = (
                    statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
                )
                value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
                empty = isinstance(value, ast.List) and not value.elts
                name = ast.unparse(target) if empty and isinstance(target, ast.Name | ast.Attribute) else ""
                place = _picked(block[number + 1 :], name) if name else None  # type: ignore[index]  # it is a list
                if place is not None:
                    yield Place(module.path, place.lineno, f"`{name}` is empty here: `{ast.unparse(place)}`")


def _picked(following: Sequence[ast.stmt], name: str) -> ast.expr | None:
    """Return the first use in straight-line code that needs an item, if nothing may have added one before it."""
    for statement in following:
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return):
            return None
        for node in ast.walk(statement):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == name and isinstance(node.ctx, ast.Load):
                return node if not isinstance(node.slice, ast.Slice) else None
            less = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and ast.unparse(node.right) == "1"
            if less and ast.unparse(node.left) == f"len({name})":  # type: ignore[attr-defined]  # `less` says what it is
                return node  # type: ignore[return-value]  # `less` says what it is
            calls = isinstance(node, ast.Call) and last_name(node.func) in _PICKS and not node.keywords
            if calls and [ast.unparse(each) for each in node.args] == [name]:  # type: ignore[attr-defined]  # `calls` says what it is
                return node  # type: ignore[return-value]  # `calls` says what it is
        names = {ast.unparse(each) for each in ast.walk(statement) if isinstance(each, ast.Name | ast.Attribute)}
        if name in names or (name.startswith("self.") and any(isinstance(n, ast.Await) for n in ast.walk(statement))):
            return None
    return None


RULES: Final = (
    Rule(
        id="stride-twice",
        severity=Severity.HIGH,
        title="Index of a strided loop that is multiplied by the stride again",
        why="All rounds but the first read far behind their rows, or past the end: most groups are empty.",
        fix="Loop over `range(n // size)`, or use the index as it is.",
        example="for i in range(0, n, size):\n    group = rows[i * size : (i + 1) * size]",
        in_file=stride_twice,
    ),
    Rule(
        id="bound-moved",
        severity=Severity.HIGH,
        title="Loop whose bound shrinks while its count grows",
        why="What was produced is subtracted from the bound and counted too: the loop ends halfway.",
        fix="Keep the first value of the bound in a name of its own.",
        example="while len(out) < spec.most:\n    out.extend(new)\n    spec.most -= len(new)",
        in_file=bound_moved,
    ),
    Rule(
        id="reference-rewritten",
        severity=Severity.HIGH,
        title="Loop that rewrites what its later rounds compare with",
        why="Rounds before and after the rewriting see different references: the result depends on the order.",
        fix="Take the reference before the loop.",
        example='for k, v in d.items():\n    if v.shape == d["mask"].shape:\n        d[k] = v[:, :n]',
        in_file=reference_rewritten,
    ),
    Rule(
        id="first-of-nothing",
        severity=Severity.HIGH,
        title="Item of a list that is still empty",
        why="It raises IndexError or ValueError on every run.",
        fix="Take it after the list is filled.",
        example="addresses = []\nfirst = random.randint(0, len(addresses) - 1)",
        in_file=first_of_nothing,
    ),
)
