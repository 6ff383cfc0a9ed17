"""Conditions that ask something else than was meant: broken chains of `elif`, odd names, crossed branches, tests of a
function instead of its result."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in, own_nodes
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_AVAILABLE: Final = re.compile(r"^is_\w+_available$")
_LAZY: Final = frozenset({"filter", "map", "zip"})
_PLAIN_WORDS: Final = frozenset({"enabled", "flag", "is", "model", "only"})
"""Words of a flag's name that say nothing about what it is for."""
_NEGATIONS: Final = frozenset({"no", "not", "without", "missing"})


def branches(node: ast.If) -> list[tuple[ast.expr | None, list[ast.stmt]]]:
    """Return the tests and bodies of `if`, its `elif` and its `else`, whose test is None."""
    found: list[tuple[ast.expr | None, list[ast.stmt]]] = [(node.test, node.body)]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        found.append((node.test, node.body))
    return [*found, (None, node.orelse)] if node.orelse else found


def blocks(module: Module) -> Iterator[list[ast.stmt]]:
    """Yield the lists of two and more statements of a file, in functions and outside of them."""
    for kind in (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.For, ast.While, ast.With, ast.Try):
        for node in module.nodes(kind):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list) and len(block) > 1:
                    yield block


def stored(statements: Iterable[ast.AST]) -> set[str]:
    """Return what statements assign: names, attributes and items, as they are written."""
    nodes = nodes_in(statements, ast.expr)
    return {ast.unparse(each) for each in nodes if isinstance(getattr(each, "ctx", None), ast.Store)}


def is_local(module: Module, node: ast.AST, name: str) -> bool:
    """Whether a function around a node has a local or a parameter of that name."""
    return any(name in module.shadowing[each] for each in module.around(node) if isinstance(each, Function))


def crossed_branches(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `"pool" if is_reward else "pool_reward"`, and two guards of which each sets what the other one asks.

    Only flags that say what something is: `"cpu" if use_gpu else "cpu-gpu"` tells where the rest is kept.
    """
    for choice in module.nodes(ast.IfExp):
        asked, there, other = choice.test, choice.body, choice.orelse
        if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
            asked, there, other = asked.operand, other, there
        flag = last_name(asked).lower().lstrip("_")
        words = set(flag.split("_")) - _PLAIN_WORDS if flag.startswith("is_") else set()
        said_here, said_there = _words(there), _words(other)
        # Two names of one kind, of which one says what was asked for.
        same_kind = said_here & (said_there - words)
        if words and words <= said_there and not words & said_here and same_kind and not _NEGATIONS & said_there:
            yield choice, f"`{ast.unparse(other)}` is what is chosen where `{ast.unparse(asked)}` does not hold"
    for block in blocks(module):
        for first, second in itertools.pairwise(block):
            if isinstance(first, ast.If) and isinstance(second, ast.If):
                if not first.orelse and _broken_chain([(first.test, first.body), *branches(second)]):
                    said = f"`if {ast.unparse(second.test)}` ends the chain that `if {ast.unparse(first.test)}` begins"
                    yield second, said
                name, value = _guarded_value(first)
                if name != value and _guarded_value(second) == (value, name):
                    yield first, f"where `{name}` is there, `{value}` is used"


def _broken_chain(chain: list[tuple[ast.expr | None, list[ast.stmt]]]) -> bool:
    """Whether an `if` belongs to the chain behind it: all ask what one thing is equal to, and the `else` is for the
    rest; or all set the same two and more names."""
    tests, bodies = [each for each, _ in chain if each is not None], [body for _, body in chain]
    if len(tests) < 3 or any(isinstance(each, ast.Return | ast.Raise | ast.Continue) for each in bodies[0]):
        return False
    sides = [each for each in tests if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq)]
    fixed = all(len(each.ops) == 1 and isinstance(each.comparators[0], ast.Constant) for each in sides)
    one = len(sides) == len(tests) and fixed and len({ast.unparse(each.left) for each in sides}) == 1
    plain = [each for each in bodies if all(isinstance(one, ast.Assign | ast.If) for one in each)]
    alike = len(plain) == len(bodies) > 4 and len({frozenset(stored(each)) for each in bodies[:-1]}) == 1
    left = one and not stored([each.left for each in sides]) and ast.unparse(sides[0].left) not in stored(bodies[0])
    return (left and len(chain) > len(tests)) or (alike and len(stored(bodies[0])) > 1)


def _words(node: ast.expr) -> set[str]:
    """Return the words of the strings in an expression."""
    texts = (each.value for each in nodes_in(node, ast.Constant) if isinstance(each.value, str))
    return {word for text in texts for word in re.split(r"[\W_]+", text.lower()) if word}


def _guarded_value(node: ast.If) -> tuple[str, str]:
    """Return "a" and "b" of `if a: x = b`; empty strings for everything else."""
    plain = not node.orelse and len(node.body) == 1 and isinstance(node.test, ast.Name | ast.Attribute)
    value = node.body[0].value if plain and isinstance(node.body[0], ast.Assign) else None
    return (ast.unparse(node.test), ast.unparse(value)) if isinstance(value, ast.Name | ast.Attribute) else ("", "")


def truth_of_function(module: Module, side: Side) -> Iterator[Hit]:
    """Find a condition on a function, or on a lazy iterator, which holds whatever is asked."""
    for node in _asked(module):
        asked = node.func if isinstance(node, ast.Call) else None
        if asked is not None:
            lock = last_name(asked).endswith(("FileLock", "get_lock"))
            ours = isinstance(asked, ast.Name) and not is_local(module, node, asked.id)
            target = side.named(module, asked.id) if isinstance(asked, ast.Name) and ours else None
            marks = target[1].decorator_list if target is not None and isinstance(target[1], Function) else []
            if lock or (len(marks) == 1 and last_name(marks[0]) in {"contextmanager", "asynccontextmanager"}):
                yield node, f"`{ast.unparse(asked)}(...)` is always true: it is for `with`, which enters it"
        if _is_lock(module, node):
            yield node, f"`{ast.unparse(node)}` is a lock: it is always true, and not taken"
        if not isinstance(node, ast.Name):
            continue
        if _is_function(module, side, node):
            yield node, f"`{node.id}` is a function, and is not called: it is always true"
        function = module.function_of(node)
        stores = own_nodes(function, ast.Name)
        before = [each for each in stores if isinstance(each.ctx, ast.Store) and each.id == node.id]
        before = [each for each in before if each.lineno < node.lineno]
        made = module.parents.get(max(before, key=lambda each: each.lineno)) if before else None
        # In one block: no branch or loop in between may have set it.
        together = made is not None and module.parents.get(made) in list(module.around(node))[:3]
        value = made.value if isinstance(made, ast.Assign) and together and made.targets[0] in before else None
        called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _LAZY
        if called or isinstance(value, ast.GeneratorExp):
            yield node, f"`{node.id}` is an iterator, which is true even when it is empty"


_LOCKS: Final = frozenset({"BoundedSemaphore", "Condition", "Lock", "RLock", "Semaphore"})


def _is_lock(module: Module, node: ast.expr) -> bool:
    """Whether the file makes nothing but locks of a name."""
    name = last_name(node)
    if "lock" not in name.lower() and "semaphore" not in name.lower():
        return False
    stores = list(module.nodes(ast.Assign, ast.AnnAssign))
    targets = {each: each.targets if isinstance(each, ast.Assign) else [each.target] for each in stores}
    made = [each.value for each in stores if any(last_name(one) == name for one in targets[each])]
    return bool(made) and all(isinstance(each, ast.Call) and last_name(each.func) in _LOCKS for each in made)


def _is_function(module: Module, side: Side, node: ast.Name) -> bool:
    """Whether a name stands for a function of ours, or is one that says whether another package is there."""
    found = module.bindings.get(node.id, [])
    if len(found) != 1 or is_local(module, node, node.id):
        return False
    name = module.imported.get(node.id, f"{module.package}.{node.id}")
    target = side.definition(name)
    if target is not None:
        return isinstance(target[1], Function) and not target[1].decorator_list
    foreign = isinstance(found[0], ast.ImportFrom) and not found[0].level and name.partition(".")[0] not in side.roots
    return foreign and bool(_AVAILABLE.match(node.id))


def _asked(module: Module) -> Iterator[ast.expr]:
    """Yield expressions of which only the truth is asked."""
    yield from (node.test for node in module.nodes(ast.If, ast.While))
    yield from (node.test for node in module.nodes(ast.IfExp, ast.Assert))
    yield from (node.operand for node in module.nodes(ast.UnaryOp) if isinstance(node.op, ast.Not))
    for both in module.nodes(ast.BoolOp):
        yield from both.values if isinstance(module.parents.get(both), ast.If | ast.While | ast.Assert) else ()


RULES: Final = (
    Rule("crossed-branches", Severity.MEDIUM, in_file=crossed_branches),
    Rule("always-true", Severity.HIGH, in_file=truth_of_function),
)
