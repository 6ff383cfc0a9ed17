"""Lines that were copied and not finished: one name that was not renamed, a key that is spelt in two ways, statements
that nothing reaches, an item that may not be there."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in
from tooling.python.source import dotted_name
from tooling.review.records import Rule, Severity
from tooling.review.rules.conditions import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_SEARCHES: Final = frozenset({"re.match", "re.search", "re.fullmatch", "shutil.which", "os.environ.get", "os.getenv"})


_ASKS: Final = (ast.Assert, ast.BoolOp, ast.If, ast.IfExp, ast.Try, ast.While)
"""What may have asked for None before the line inside it."""


def half_renamed(module: Module, _side: Side) -> Iterator[Hit]:
    """Find two statements that differ in one word throughout, but for a name where it was left.

    chosen_logps = logps(chosen_ids, chosen_mask)
    rejected_logps = logps(rejected_ids, chosen_mask)
    """
    for block in blocks(module):
        for one, other in itertools.pairwise(block):
            if not isinstance(one, ast.Assign) or not isinstance(other, ast.Assign):
                continue
            old, new = _words(one.targets[0]), _words(other.targets[0])
            changed = {pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]}
            if len(changed) != 1 or len(old) != len(new) or ast.dump(one.targets[0]) == ast.dump(other.targets[0]):
                continue
            here, there = changed.pop()
            first, second = _words(one.value), _words(other.value)
            if len(first) != len(second) or here in new or there in first or not {here, there}.isdisjoint(_COMMON):
                continue
            pairs = [(a, b) for a, b in zip(first, second, strict=True) if a == here or a != b]
            renamed = [pair for pair in pairs if pair == (here, there)]
            left = [
                each.id
                for each in nodes_in(other.value, ast.Name)
                if "_" in each.id and here in _words(each) and there not in _words(each)
            ]
            shape = re.sub(r"\w+", "w", ast.unparse(one.value)) == re.sub(r"\w+", "w", ast.unparse(other.value))
            named = any(isinstance(each, ast.Name) and there in _words(each) for each in ast.walk(other.value))
            if not shape or len(left) != 1 or not named or not renamed or len(left) + len(renamed) != len(pairs):
                continue
            # The name that was meant has to be there.
            meant = "_".join(there if word == here else word for word in left[0].split("_"))
            if meant in module.bindings or meant in module.shadowing[module.function_of(other) or module.tree]:
                yield other, f"`{left[0]}` beside `{there}`: `{meant}` is there too"


_COMMON: Final = frozenset({"0", "1", "2", "a", "b", "i", "j", "n", "old", "new", "x", "y"})
"""Words that one side of a pair often has to name on purpose."""


def _words(node: ast.expr) -> list[str]:
    return [word for word in re.split(r"[^A-Za-z0-9]+|_", ast.unparse(node)) if word]


def wrapped_another(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `if isinstance(until, str): until = [kwargs]`, which makes a list of something else than was asked about."""
    for node in module.nodes(ast.If):
        asked = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
        first = node.body[0]
        if (
            not isinstance(asked, ast.Call)
            or dotted_name(asked.func) != "isinstance"
            or not isinstance(first, ast.Assign)
        ):
            continue
        name, made = dotted_name(asked.args[0]), first.value
        items = made.elts if isinstance(made, ast.List | ast.Tuple) and len(made.elts) == 1 else []
        other = dotted_name(items[0]) if items else ""
        if name and other and other != name and dotted_name(first.targets[0]) == name and len(node.body) == 1:
            yield first, f"`{name}` is asked about, and `{other}` is put into a list"


_PURE: Final = frozenset(
    {"abs", "bool", "detach", "float", "int", "item", "len", "long", "lower", "strip", "to", "unsqueeze"}
)


def same_twice(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `x - x`, `a and a`, `x if c else x`, and `x[:, 1:] = x[:, 1:]`."""
    pairs: list[tuple[ast.expr, ast.expr, ast.AST]] = []
    # `done ^ done` makes zeros of that shape.
    operators = (ast.Sub, ast.BitAnd, ast.BitOr, ast.FloorDiv, ast.Mod)
    pairs += [(each.left, each.right, each) for each in module.nodes(ast.BinOp) if isinstance(each.op, operators)]
    pairs += [(one, other, each) for each in module.nodes(ast.BoolOp) for one, other in itertools.pairwise(each.values)]
    pairs += [(each.body, each.orelse, each) for each in module.nodes(ast.IfExp)]
    pairs += [(each.targets[0], each.value, each) for each in module.nodes(ast.Assign)]
    for one, other, node in pairs:
        calls = nodes_in(one, ast.Call)
        pure = all(last_name(each.func) in _PURE for each in calls) or isinstance(node, ast.IfExp)
        plain = isinstance(one, ast.Constant) or (isinstance(node, ast.Assign) and not isinstance(one, ast.Subscript))
        if type(one) is type(other) and pure and not plain and ast.unparse(one) == ast.unparse(other):
            yield one, f"`{ast.unparse(one)}` stands on both sides"


def never_reached(module: Module, _side: Side) -> Iterator[Hit]:
    """Find the first statement behind one that always leaves."""
    for block in blocks(module):
        for one, other in itertools.pairwise(block):
            # `return` before `yield` makes a generator; a text or `pass` does nothing anyway.
            kept = isinstance(other, ast.Pass) or (
                isinstance(other, ast.Expr) and not isinstance(other.value, ast.Call)
            )
            stub = isinstance(one, ast.Raise) and "NotImplemented" in ast.unparse(one)
            # A function that begins with an exit is switched off as a whole, for now.
            function = module.function_of(one)
            off = isinstance(function, Function) and one in function.body[:2]
            if isinstance(one, _LEAVES) and not kept and not stub and not off:
                yield other, f"nothing reaches this line behind `{type(one).__name__.lower()}`"


def maybe_missing(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `re.match(...).group()`, `os.environ.get(...).split()` and `row.get("a")["b"]`: nothing asks for None; and
    `row.get("a") > 1`."""
    for compared in module.nodes(ast.Compare):
        call, written = compared.left, ast.unparse(compared.left)
        # `ray.get(ref)` and `requests.get(url)` look nothing up.
        gets = (
            isinstance(call, ast.Call)
            and last_name(call.func) == "get"
            and len(call.args) == 1
            and not call.keywords
            and dotted_name(call.func).partition(".")[0] not in module.imported
            and "tensordict" not in module.text
        )
        holder = next((each for each in module.around(compared) if isinstance(each, ast.stmt)), compared)
        if gets and isinstance(compared.ops[0], _ORDERS) and ast.unparse(holder).count(written) == 1:
            yield compared, f"`{written}` may be None, which has no order"
    nodes = list(module.nodes(ast.Attribute, ast.Subscript))
    for node in nodes:
        call = node.value
        if not isinstance(call, ast.Call) or call.keywords or not isinstance(call.func, ast.Attribute):
            continue
        name = module.dotted(call.func)
        first = call.args[0] if len(call.args) == 1 else None
        text = first.value if isinstance(first, ast.Constant) else None
        # `client.get("/info")["x"]` asks a server, and a TensorDict raises where a key is missing.
        looks_up = call.func.attr == "get" and "TensorDict" not in module.text
        keyed = looks_up and isinstance(text, str) and "/" not in text and name not in _SEARCHES
        found = name in _SEARCHES and len(call.args) <= 2 and (name.startswith("re.") or len(call.args) == 1)
        asked = any(isinstance(each, _ASKS) for each in module.around(node))
        asked |= any(part.ifs for each in module.around(node) for part in getattr(each, "generators", ()))
        if (found or (keyed and isinstance(node, ast.Subscript))) and not asked:
            yield node, f"`{ast.unparse(call)}` may be None"


_ORDERS: Final = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)

RULES: Final = (
    Rule("half-renamed", Severity.MEDIUM, in_file=half_renamed),
    Rule("wrapped-another", Severity.HIGH, in_file=wrapped_another),
    Rule("same-twice", Severity.MEDIUM, in_tests=False, in_file=same_twice),
    Rule("never-reached", Severity.MEDIUM, in_tests=False, in_file=never_reached),
    Rule("maybe-missing", Severity.MEDIUM, in_tests=False, in_file=maybe_missing),
)
