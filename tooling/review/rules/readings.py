"""What several rules read off a file: blocks of statements, names that are stored, defaults, the class of a value."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, nodes_in, own_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.module import Module
    from tooling.review.repository.side import Side


def words(text: str) -> frozenset[str]:
    """Return the words of a list that is written as a text."""
    return frozenset(text.split())


LOGGER: Final = re.compile(r"^_?log(ger|ging)?$", re.IGNORECASE)
LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
STRICTER: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
}
"""Comparison -> the one that differs where both sides are equal."""
NEGATED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.NotEq: ast.Eq,
    ast.NotIn: ast.In,
}
"""Comparison -> the one that holds where it does not."""


def blocks(module: Module) -> Iterator[list[ast.stmt]]:
    """Yield the lists of two and more statements of a file, in functions and outside of them."""
    for kind in (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.For, ast.While, ast.With, ast.Try):
        for node in module.nodes(kind):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list) and len(block) > 1:
                    yield block


def neighbours(module: Module) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Yield each two statements of which one follows the other."""
    return (pair for block in blocks(module) for pair in itertools.pairwise(block))


def following(module: Module, node: ast.AST) -> list[ast.stmt]:
    """Return the statements of a block behind one of them."""
    parent = module.parents.get(node)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and node in block:
            return block[block.index(node) + 1 :]
    return []


def stored(statements: Iterable[ast.AST]) -> set[str]:
    """Return what statements assign: names, attributes and items, as they are written."""
    nodes = nodes_in(statements, ast.expr)
    return {ast.unparse(each) for each in nodes if isinstance(getattr(each, "ctx", None), ast.Store)}


def is_local(module: Module, node: ast.AST, name: str) -> bool:
    """Whether a function around a node has a local or a parameter of that name."""
    return any(name in module.shadowing[each] for each in module.around(node) if isinstance(each, Function))


LIBRARIES: Final = frozenset({"F", "functional", "jnp", "np", "numpy", "torch"})
_ALONG: Final = words("""
    all amax amin any argmax argmin argsort cat concat cumsum gather log_softmax logsumexp mean softmax stack sum
""")
"""Operations of tensors whose first argument, behind the tensor, is a dimension."""


def key_of(node: ast.expr | None) -> str:
    """Return "input_ids" of `batch["input_ids"]`, `batch.input_ids` and `input_ids`; "" of everything else."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return last_name(node)


def operand(call: ast.Call) -> ast.expr | None:
    """Return `x` of `x.sum(1)`, `torch.sum(x, 1)` and `softmax(x)`."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    return (*call.args, None)[0] if of is None or last_name(of) in LIBRARIES else of


def dimension(call: ast.Call) -> int | None:
    """Return 1 of `x.sum(dim=1)`, `x.sum(1)` and `torch.sum(x, 1)`; None where it is not a number."""
    by_name = keyword(call, "dim", "axis")
    behind = call.args[1:] if operand(call) in call.args else call.args
    return number_of(by_name or (*behind, None)[0]) if by_name or last_name(call.func) in _ALONG else None


def number_of(node: ast.expr | None) -> int | None:
    """Return the whole number that is written down."""
    try:
        number = ast.literal_eval(node or ast.Constant(None))
    except ValueError:
        return None
    return number if type(number) is int else None


def reached(module: Module, side: Side, call: ast.Call) -> Function | None:
    """Return the function of ours, or the method of the same class, that a call reaches for certain."""
    func = call.func
    target: ast.AST | None
    if isinstance(func, ast.Name):
        bound = module.bindings.get(func.id, [])
        found = side.named(module, func.id) if len(bound) == 1 and not is_local(module, call, func.id) else None
        target = found[1] if found is not None else None
        holder = module.parents[bound[0]] if len(bound) == 1 and isinstance(bound[0], Function) else None
        # A function of the one around, which nothing else there is called
        if isinstance(holder, Function) and any(each is holder for each in module.around(call)):
            given = any(each.arg == func.id for each in module.nodes(ast.arg))
            target = None if given else bound[0]
    else:
        methods = module.methods_called(call)
        stored = (each for each in module.nodes(ast.Attribute) if isinstance(each.ctx, ast.Store)) if methods else ()
        target = methods[0] if len(methods) == 1 and last_name(func) not in {each.attr for each in stored} else None
    return target if isinstance(target, Function) else None


def is_expected(module: Module, node: ast.AST) -> bool:
    """Whether a test expects that something fails: `with pytest.raises(...)`."""
    withs = (each for each in module.around(node) if isinstance(each, ast.With))
    return any("raises" in ast.unparse(each.items[0]).lower() for each in withs)


def defaults_of(spec: ast.arguments) -> list[tuple[str, ast.expr | None]]:
    """Return the parameters that may have a default, with it."""
    positional = list(zip([*spec.posonlyargs, *spec.args][::-1], spec.defaults[::-1], strict=False))
    named = list(zip(spec.kwonlyargs, spec.kw_defaults, strict=True))
    return [(each.arg, default) for each, default in (*positional, *named)]


def class_of_value(module: Module, call: ast.Call, owner: ast.expr) -> str:
    """Return the class of `self.lock`, which the class sets to `asyncio.Lock()` alone, of a name that is set once, and
    of an annotated parameter; "" where it is not known."""
    function = module.function_of(call)
    if isinstance(owner, ast.Name) and isinstance(function, Function):
        given = _annotated(module, function, owner.id)
        scope = function if owner.id in module.shadowing[function] else module.tree
        stores = [each for each in own_nodes(scope, ast.Name) if each.id == owner.id]
        made = {_class_made(module, each) for each in stores if isinstance(each.ctx, ast.Store)}
        return given if given or len(made) != 1 else made.pop()
    around = module.class_of(function) if function is not None else None
    if around is None or not isinstance(owner, ast.Attribute) or ast.unparse(owner.value) != "self":
        return ""
    stored = [each for each in nodes_in(around, ast.Attribute) if each.attr == owner.attr]
    made = {_class_made(module, each) for each in stored if isinstance(each.ctx, ast.Store)}
    return made.pop() if len(made) == 1 else ""


def _annotated(module: Module, function: Function, name: str) -> str:
    given = [*function.args.args, *function.args.kwonlyargs]
    annotation = next((each.annotation for each in given if each.arg == name), None)
    return module.dotted(annotation) if annotation is not None else ""


def _class_made(module: Module, stored: ast.expr) -> str:
    """Return the class of what is stored: `x: Lock = ...`, `x = Lock()`, `with Session() as x`, and `x = lock` of a
    parameter `lock: Lock`."""
    statement, function = module.parents[stored], module.function_of(stored)
    value = statement.context_expr if isinstance(statement, ast.withitem) else getattr(statement, "value", None)
    if isinstance(statement, ast.AnnAssign):
        return module.dotted(statement.annotation)
    if isinstance(value, ast.Name) and isinstance(function, Function):
        return _annotated(module, function, value.id)
    plain = isinstance(value, ast.Call) and isinstance(statement, ast.Assign | ast.withitem)
    return module.dotted(value.func) if isinstance(value, ast.Call) and plain else ""
