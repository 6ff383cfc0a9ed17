"""Compares the versions of a statement: what protected it and was taken away, while the statement stayed."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING, Final, TypeVar

from tooling.python.module import Function, keyword, last_name, names_in, nodes_in, own_nodes
from tooling.review.records import Place, Rule, Severity
from tooling.review.repository.pairs import PairedNodes, dumped, pair_modules
from tooling.review.rules.distributed import collective, group_given
from tooling.review.rules.readings import LOGGER, NEGATED, STRICTER, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.repository.comparison import ChangedFile, Comparison

Old = TypeVar("Old", bound=ast.AST)
New = TypeVar("New", bound=ast.AST)

_SAFEGUARDS: Final = {
    "check": "a command that fails is not noticed",
    "strict": "a mismatch is not noticed",
    "timeout": "it may wait for ever",
    "weights_only": "before torch 2.6 the file can run code",
}
"""Keyword -> what happens without it."""
_GRADIENTS: Final = frozenset({"torch.no_grad", "torch.inference_mode"})
_MASK: Final = re.compile(r"mask")
_LOCK: Final = re.compile(r"(?<![bcn])lock|mutex|semaphore", re.IGNORECASE)
"""Not `block`, `clock` and `unlock`."""
_FLOORS: Final = frozenset({"clamp", "clamp_min", "clip", "max", "maximum"})


def _matches(comparison: Comparison) -> Iterator[tuple[ChangedFile, Module, Module, PairedNodes]]:
    """Yield changed Python files that both sides have, with the nodes that differ."""
    for file, before, after in comparison.modified():
        kept = vars(after.tree)  # a dozen rules ask: the tree keeps what the first of them found
        if kept.get("paired_with") is not before.tree:
            kept.update(paired=pair_modules(before, after), paired_with=before.tree)
        yield file, before, after, kept["paired"]


def _versions(comparison: Comparison, was: type[Old], now: type[New]) -> Iterator[tuple[str, Module, Module, Old, New]]:
    """Yield two versions of a node, of these types, with their path and the file before and after."""
    for file, before, after, found in _matches(comparison):
        for old, new in found.pairs:
            if isinstance(old, was) and isinstance(new, now):
                yield file.path, before, after, old, new


def _calls(comparison: Comparison) -> Iterator[tuple[str, ast.Call, ast.Call]]:
    """Yield two versions of a call of one function."""
    for path, _, _, old, new in _versions(comparison, ast.Call, ast.Call):
        if dumped(old.func) == dumped(new.func):
            yield path, old, new


def safeguard_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find a call that was limited or checked by an argument, and is no longer."""
    for path, old, new in _calls(comparison):
        for name, effect in _SAFEGUARDS.items():
            given = keyword(old, name)
            open_ended = isinstance(given, ast.Constant) and given.value in {None, False}
            kept = keyword(new, name, f"{name}s") is not None or any(each.arg is None for each in new.keywords)
            if given is not None and not open_ended and not kept and len(new.args) <= len(old.args):
                said = f"`{ast.unparse(new.func)}` lost `{name}={ast.unparse(given)}`: {effect}"
                yield Place(path, new.lineno, said)
    for path, _, after, call, left in _versions(comparison, ast.Call, ast.expr):
        inner = call.args[0] if last_name(call.func) == "wait_for" and call.args else call
        if inner is not call and dumped(inner) == dumped(left) and not _wrapped(after, left, "timeout"):
            yield Place(path, left.lineno, "`wait_for` is gone: it may wait for ever")


def _wrapped(module: Module, node: ast.AST, word: str) -> bool:
    """Whether a `with` around a node speaks of something: `async with asyncio.timeout(5)`."""
    withs = (each for each in module.around(node) if isinstance(each, ast.With | ast.AsyncWith))
    return any(word in ast.unparse(item) for each in withs for item in each.items)


def group_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find a collective of a group that became one of all ranks."""
    for path, before, after, old, new in _versions(comparison, ast.Call, ast.Call):
        name, given = collective(before, old), keyword(old, "group", "process_group")
        same = bool(name) and collective(after, new) == name
        if same and given is not None and ast.unparse(given) != "None" and not group_given(new, name):
            yield Place(path, new.lineno, f"`{name}` was for `{ast.unparse(given)}`, and is for all ranks now")


def await_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find a call that was awaited, and is only made now."""
    made_plain = _made_plain(comparison)
    for path, _, after, old, new in _versions(comparison, ast.Await, ast.Call):
        was, function, name = old.value, after.function_of(new), last_name(new.func)
        if not isinstance(was, ast.Call):
            continue
        plain = name in made_plain or any(each.name == name for each in after.nodes(ast.FunctionDef))
        same = isinstance(function, ast.AsyncFunctionDef) and dumped(was.func) == dumped(new.func) and not plain
        if same and not _is_taken_up(after, function, new):
            yield Place(path, new.lineno, f"`{ast.unparse(new.func)}(...)` was awaited, and is not any more")
        if last_name(was.func) == "to_thread" and was.args and dumped(was.args[0]) == dumped(new.func):
            said = f"`{ast.unparse(new.func)}` ran in a thread, and blocks the event loop now"
            yield Place(path, new.lineno, said)


_TAKERS: Final = words("""
    as_completed create_task ensure_future gather run_coroutine_threadsafe shield start_soon wait
""")
"""Calls that coroutines are collected for."""


def _is_taken_up(module: Module, function: ast.AST | None, call: ast.Call) -> bool:
    """Whether a coroutine is awaited later, or entered: `a = load(1)` ... `await gather(a, b)`."""
    parent = module.parents.get(call)
    if isinstance(parent, ast.withitem | ast.AsyncFor) or (isinstance(parent, ast.comprehension) and parent.is_async):
        return True
    nodes = own_nodes(function)
    awaited = {each.value.id for each in nodes if isinstance(each, ast.Await) and isinstance(each.value, ast.Name)}
    named = isinstance(parent, ast.Assign) and last_name(parent.targets[0]) in awaited
    taken = any(isinstance(each, ast.Call) and last_name(each.func) in _TAKERS for each in nodes)
    return named or (taken and not isinstance(parent, ast.Expr))


def _made_plain(comparison: Comparison) -> set[str]:
    """Return names of coroutines that the change turned into plain functions."""
    names: set[str] = set()
    for file in comparison.files:
        before = comparison.base.module(file.old_path) if file.path.endswith(".py") else None
        if before is not None and file.status != "A":
            after = comparison.head.module(file.path) if file.status != "D" else None
            kept = {each.name for each in after.nodes(ast.AsyncFunctionDef)} if after is not None else set()
            names |= {each.name for each in before.nodes(ast.AsyncFunctionDef)} - kept
    return names


def floor_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find a denominator that could not be zero, and can be now."""
    for path, before, after, old, new in _versions(comparison, ast.BinOp, ast.BinOp):
        if not all(isinstance(each.op, ast.Div | ast.FloorDiv) for each in (old, new)):
            continue
        was, inner = old.right, list[ast.expr]()
        if isinstance(was, ast.BinOp) and isinstance(was.op, ast.Add):
            # `n + 1e-8`, `n + self.eps`; a whole number may have counted something
            small = isinstance(was.right, ast.Constant) and isinstance(was.right.value, float)
            inner = [was.left] if small or "eps" in ast.unparse(was.right) else []
        elif isinstance(was, ast.Call) and last_name(was.func) in _FLOORS:
            # `max(n, 1)`, `n.clamp(min=1)`
            inner = [*was.args, *([was.func.value] if isinstance(was.func, ast.Attribute) else [])]
        inner = [each for each in inner if not isinstance(each, ast.Constant)]
        tests = _tests(after, new) - _tests(before, old)
        if dumped(new.right) in map(dumped, inner) and not any(_words(new.right) & words for words in tests):
            said = f"`{ast.unparse(was)}` became `{ast.unparse(new.right)}`, which may be zero"
            yield Place(path, new.lineno, said)


def _tests(module: Module, node: ast.AST) -> set[frozenset[str]]:
    """Return the names in each condition of the function around a node."""
    function = module.function_of(node)
    asks = (ast.If, ast.IfExp, ast.While, ast.Assert)
    return {_words(each.test) for each in (own_nodes(function) if function else ()) if isinstance(each, asks)}


def _words(node: ast.AST) -> frozenset[str]:
    named = nodes_in(node, ast.Name, ast.Attribute)
    return frozenset(map(last_name, named)) - {"len", "self"}


def mask_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find a value that was masked, and is used whole now."""
    for path, _, after, old, new in _versions(comparison, ast.expr, ast.expr):
        parts: list[ast.expr] = []
        if isinstance(old, ast.BinOp) and isinstance(old.op, ast.Mult):
            parts = [old.left, old.right]
        elif isinstance(old, ast.Call) and last_name(old.func) in {"where", "masked_fill", "masked_select"}:
            parts = [*old.args, *([old.func.value] if isinstance(old.func, ast.Attribute) else [])]
        elif isinstance(old, ast.Subscript) and not isinstance(old.slice, ast.Constant):
            parts = [old.value, old.slice]
        kept = [each for each in parts if not _MASK.search(ast.unparse(each))]
        if len(kept) == len(parts) or dumped(new) not in map(dumped, kept):
            continue
        # `masked_mean(x, mask)` masks it itself, and `x = x * mask` in the line above does as well.
        call, name = after.parents.get(new), ast.unparse(new)
        if isinstance(call, ast.Call) and any(_MASK.search(ast.unparse(each)) for each in call.args):
            continue
        assigned = own_nodes(after.function_of(new), ast.Assign)
        if not any(ast.unparse(each.targets[0]) == name and _MASK.search(ast.unparse(each)) for each in assigned):
            yield Place(path, new.lineno, f"`{ast.unparse(old)}` became `{name}`")


def gradient_guard_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find a function or block that ran without gradients, and does not now."""
    for file, before, after, found in _matches(comparison):
        for old, new in found.pairs:
            if not isinstance(old, Function) or not isinstance(new, Function):
                continue
            was = [each for each in old.decorator_list if _is_guard(before, each)]
            now = [each for each in new.decorator_list if _is_guard(after, each)]
            inside = any(_is_guard(after, each) for each in own_nodes(new, ast.expr))
            if was and not now and not inside:
                said = f"`{new.name}` lost `@{ast.unparse(was[0])}`: it keeps a graph for every call"
                yield Place(file.path, new.lineno, said)
        for wrapper, kept in _lost_withs(found):
            named = [each.context_expr for each in wrapper.items if _is_guard(before, each.context_expr)]
            if named and not _GRADIENTS & set(_withs(after, kept)):
                yield Place(file.path, kept.lineno, f"the block lost `with {ast.unparse(named[0])}`")


def _is_guard(module: Module, node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name | ast.Attribute) and module.dotted(called) in _GRADIENTS


def _withs(module: Module, node: ast.AST) -> Iterator[str]:
    for each in module.around(node):
        for item in each.items if isinstance(each, ast.With | ast.AsyncWith) else ():
            called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
            yield module.dotted(called)


def _lost_withs(found: PairedNodes) -> Iterator[tuple[ast.With | ast.AsyncWith, ast.stmt]]:
    """Yield `with` statements that are gone while their body stayed, with the first statement of that body."""
    withs = (ast.With, ast.AsyncWith)
    for wrapper, kept in found.unwrapped:
        if isinstance(wrapper, withs):
            yield wrapper, kept
    for old, new in found.pairs:
        # `async with` instead of `with` is still one
        if isinstance(old, withs) and isinstance(new, ast.stmt) and not isinstance(new, withs):
            yield old, new


def lock_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find work that was done under a lock, and is done without now."""
    for file, _, after, found in _matches(comparison):
        for wrapper, kept in _lost_withs(found):
            locks = [ast.unparse(each.context_expr) for each in wrapper.items]
            named = next((each for each in locks if _LOCK.search(each)), "")
            words = named.rpartition(".")[2].partition("(")[0]
            if named and words in after.text and not _wrapped(after, kept, words):
                yield Place(file.path, kept.lineno, f"was done under `{named}`, which the file still uses")


def handler_silenced(comparison: Comparison) -> Iterator[Place]:
    """Find a handler that raised or logged, and does neither now."""
    for path, _, _, old, new in _versions(comparison, ast.ExceptHandler, ast.ExceptHandler):
        was, now = _says(old), _says(new)
        quiet = all(isinstance(each, ast.Pass | ast.Continue | ast.Return) for each in new.body)
        if was and not now and quiet and new.name not in names_in(new):
            caught = ast.unparse(new.type) if new.type is not None else "everything"
            yield Place(path, new.lineno, f"`{caught}` was {was} here, and disappears now")


def _says(handler: ast.ExceptHandler) -> str:
    nodes = [node for statement in handler.body for node in [statement, *own_nodes(statement)]]
    if any(isinstance(each, ast.Raise) for each in nodes):
        return "raised"
    called = (each.func for each in nodes if isinstance(each, ast.Call))
    owners = (each.value for each in called if isinstance(each, ast.Attribute))
    return "logged" if any(LOGGER.match(last_name(each)) for each in owners) else ""


def result_dropped(comparison: Comparison) -> Iterator[Place]:
    """Find `x = x.f(...)` that became `x.f(...)`."""
    for path, _, after, old, new in _versions(comparison, ast.Assign, ast.Expr):
        if not isinstance(new.value, ast.Call) or dumped(old.value) != dumped(new.value):
            continue
        name, function = ast.unparse(old.targets[0]), after.function_of(new)
        kinds = (ast.Name, ast.Attribute)
        named = own_nodes(function, *kinds) if function is not None else nodes_in(after.tree, *kinds)
        below = [each for each in named if ast.unparse(each) == name and each.lineno > new.lineno]
        again = min((each.lineno for each in below if isinstance(each.ctx, ast.Store)), default=math.inf)
        if any(isinstance(each.ctx, ast.Load) and each.lineno <= again for each in below):
            yield Place(path, new.lineno, f"the result was kept as `{name}`, which is read below")


def placeholders_dead(comparison: Comparison) -> Iterator[Place]:
    """Find a formatted string that lost its `f`."""
    for path, _, after, old, new in _versions(comparison, ast.JoinedStr, ast.Constant):
        names = [f"{{{ast.unparse(each.value)}" for each in old.values if isinstance(each, ast.FormattedValue)]
        parent = after.parents.get(new)
        formatted = isinstance(parent, ast.Attribute) and parent.attr in {"format", "format_map"}
        if isinstance(parent, ast.Call):
            # A structured logger fills them in: `log.info("step {step}", step=step)`
            formatted = any(f"{{{each.arg}" in names for each in parent.keywords)
        elif isinstance(parent, ast.Assign):
            formatted = f"{ast.unparse(parent.targets[0])}.format" in after.text
        if isinstance(new.value, str) and any(each in new.value for each in names) and not formatted:
            yield Place(path, new.lineno, f"{ast.unparse(new)[:60]} lost its `f`: it shows the braces")


def guard_inverted(comparison: Comparison) -> Iterator[Place]:
    """Find a condition that was turned round while both branches stayed."""
    for path, _, _, old, new in _versions(comparison, ast.If, ast.If):
        branches = zip((old.body, old.orelse), (new.body, new.orelse), strict=True)
        same = all(list(map(dumped, was)) == list(map(dumped, now)) for was, now in branches)
        if same and _negated(old.test, new.test):
            said = f"`{ast.unparse(old.test)}` became `{ast.unparse(new.test)}`, and the branch stayed the same"
            yield Place(path, new.lineno, said)


def _negated(one: ast.expr, other: ast.expr) -> bool:
    for first, second in ((one, other), (other, one)):
        if isinstance(first, ast.UnaryOp) and isinstance(first.op, ast.Not) and dumped(first.operand) == dumped(second):
            return True
    if not isinstance(one, ast.Compare) or not isinstance(other, ast.Compare) or len(one.ops) != 1:
        return False
    sides = [list(map(dumped, (each.left, *each.comparators))) for each in (one, other)]
    return sides[0] == sides[1] and NEGATED.get(type(one.ops[0])) is type(other.ops[0])


_SYMMETRIC: Final = words("""
    add allclose assertEqual assert_close equal gcd hypot isclose lcm logical_and logical_or max maximum min minimum
    mul
""")
"""Functions for which the order makes no difference."""


def arguments_swapped(comparison: Comparison) -> Iterator[Place]:
    """Find arguments that changed places while the call stayed."""
    resigned = {new.name for _, _, _, _, new in _versions(comparison, ast.ClassDef, ast.ClassDef)}
    resigned |= {
        getattr(after.parents[new], "name", "")
        for _, _, after, _, new in _versions(comparison, ast.arguments, ast.arguments)
    }
    for path, old, new in _calls(comparison):
        was, now = list(map(dumped, old.args)), list(map(dumped, new.args))
        if was != now and sorted(was) == sorted(now) and last_name(new.func) not in resigned | _SYMMETRIC:
            yield Place(path, new.lineno, f"arguments of `{ast.unparse(new.func)}` changed places")


def shift_turned(comparison: Comparison) -> Iterator[Place]:
    """Find `x[:, :-1]` that became `x[:, 1:]`, and a roll that goes the other way."""
    for file, _, after, found in _matches(comparison):
        turned = [
            (old, new)
            for old, new in found.pairs
            if {_cut(old), _cut(new)} == {":-1", "1:"} or (_is_step(after, new) and {_sign(old), _sign(new)} == {-1, 1})
        ]
        # When all shifts of a function turn, the convention changed.
        functions = [after.function_of(new) for _, new in turned]
        for (old, new), function in zip(turned, functions, strict=True):
            if functions.count(function) == 1:
                said = f"`{ast.unparse(old)}` became `{ast.unparse(new)}`: values meet their neighbours' tokens"
                yield Place(file.path, getattr(new, "lineno", 1), said)


def _cut(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Slice) else ""


def _sign(node: ast.AST) -> int:
    words = ast.unparse(node) if isinstance(node, ast.UnaryOp | ast.Constant) else ""
    return {"-1": -1, "1": 1}.get(words, 0)


def _is_step(module: Module, node: ast.AST) -> bool:
    """Whether a number is how far a roll goes."""
    parent = module.parents.get(node)
    name = parent.arg if isinstance(parent, ast.keyword) else ""
    call = module.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    return isinstance(call, ast.Call) and last_name(call.func) == "roll" and name in {"", "shifts"}


_DIMENSIONS: Final = frozenset({"axis", "dim", "dims"})


def number_moved(comparison: Comparison) -> Iterator[Place]:
    """Find `<` that became `<=`, and `dim=-1` that became `dim=0`, as the only line of a function that changed."""
    moved: list[tuple[str, ast.expr, ast.expr, str]] = []
    for path, _, _, was, now in _versions(comparison, ast.Compare, ast.Compare):
        same = list(map(dumped, (was.left, *was.comparators))) == list(map(dumped, (now.left, *now.comparators)))
        if same and len(was.ops) == 1 and STRICTER.get(type(was.ops[0])) is type(now.ops[0]):
            moved.append((path, was, now, "is a bound"))
    for path, old, new in _calls(comparison):
        given = {each.arg: ast.unparse(each.value) for each in new.keywords}
        other = {each.arg for each in old.keywords if given.get(each.arg, "") != ast.unparse(each.value)}
        if _same_arguments(old, new) and len(other) == 1 and other <= _DIMENSIONS & given.keys():
            moved.append((path, old, new, "is a dimension"))
    for path, before, after, said in moved:
        module = comparison.head.module(path)
        function = module.function_of(after) if module is not None else None
        span = range(function.lineno, (function.end_lineno or function.lineno) + 1) if function is not None else ()
        if len(comparison.by_path[path].added.intersection(span)) == 1:
            yield Place(path, after.lineno, f"`{ast.unparse(before)}` became `{ast.unparse(after)}`, which {said}")


def _same_arguments(old: ast.Call, new: ast.Call) -> bool:
    return list(map(dumped, old.args)) == list(map(dumped, new.args))


def log_printed(comparison: Comparison) -> Iterator[Place]:
    """Find `logger.info(x)` that became `print(x)`."""
    for path, _, _, old, new in _versions(comparison, ast.Call, ast.Call):
        owner = old.func.value if isinstance(old.func, ast.Attribute) else None
        if LOGGER.match(last_name(owner)) and ast.unparse(new.func) == "print" and _same_arguments(old, new):
            yield Place(path, new.lineno, f"`{ast.unparse(old.func)}` became `print`")


RULES: Final = (
    Rule("safeguard-dropped", Severity.MEDIUM, in_tests=False, in_change=safeguard_dropped),
    Rule("group-dropped", Severity.HIGH, in_change=group_dropped),
    Rule("await-dropped", Severity.HIGH, in_change=await_dropped),
    Rule("floor-dropped", Severity.HIGH, in_change=floor_dropped),
    Rule("mask-dropped", Severity.HIGH, in_change=mask_dropped),
    Rule("gradient-guard-dropped", Severity.HIGH, in_change=gradient_guard_dropped),
    Rule("lock-dropped", Severity.HIGH, in_change=lock_dropped),
    Rule("handler-silenced", Severity.MEDIUM, in_tests=False, in_change=handler_silenced),
    Rule("result-dropped", Severity.HIGH, in_change=result_dropped),
    Rule("placeholders-dead", Severity.MEDIUM, in_change=placeholders_dead),
    Rule("guard-inverted", Severity.MEDIUM, in_change=guard_inverted),
    Rule("arguments-swapped", Severity.MEDIUM, in_change=arguments_swapped),
    Rule("shift-turned", Severity.MEDIUM, in_change=shift_turned),
    Rule("number-moved", Severity.LOW, in_tests=False, in_change=number_moved),
    Rule("log-printed", Severity.LOW, in_tests=False, in_change=log_printed),
)
