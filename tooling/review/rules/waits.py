"""Waits that cannot time out where the code around them counts on it: it handles a timeout, looks what is left after
one, takes a limit that it never uses, or wants to be stopped meanwhile."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import last_name, names_in, nodes_in, own_nodes
from tooling.review.records import Rule, Severity
from tooling.review.rules.conditions import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_OF_ITSELF: Final = {"communicate", "get", "join", "result", "wait"}
"""Methods that wait without limit when they are called with nothing."""
_OF_ANOTHER: Final = {"asyncio.wait", "asyncio.wait_for", "concurrent.futures.wait", "ray.get", "ray.wait"}
"""Functions that wait for their one argument."""
_RAISED_BY: Final = {
    "Empty": {"get"},
    "GetTimeoutError": {"ray.get"},
    "TimeoutExpired": {"communicate", "wait"},
    "TimeoutError": {"result", "wait_for", "asyncio.wait_for"},
}
_ASKED_AFTER: Final = {"join": re.compile(r"\.is_alive\(\)"), "wait": re.compile(r"\.poll\(\) is (not )?None")}
_LIMIT: Final = re.compile(r"(^|_)timeout(_s|_sec|_secs|_seconds|_ms)?$|^max_wait(_\w+)?$")
_LIMITED: Final = re.compile(r"timeout|_nowait|block=False|\(False")
_STOPS: Final = re.compile(
    r"\.is_set\(\)|\b(time|monotonic|perf_counter)\(\)|deadline|(?<!\w)not self\._?(stop|shut|clos)"
)
_REQUESTS: Final = {"delete", "get", "patch", "post", "put", "request"}


def unlimited(module: Module, call: ast.Call) -> str:
    """Return "get" of `queue.get()`, "ray.get" of `ray.get(ref)`: a wait without limit; "" of other calls."""
    dotted, name = module.dotted(call.func), last_name(call.func)
    words = {each.arg for each in call.keywords}
    if not words <= {"block", "fs", "fut", "future", "input", "num_returns", "return_when"}:
        return ""
    if any(isinstance(each, ast.Starred) for each in call.args):
        return ""
    if dotted in _OF_ANOTHER:
        return dotted if len(call.args) == 1 else ""
    blocking = all(
        isinstance(each.value, ast.Constant) and each.value.value for each in call.keywords if each.arg == "block"
    )
    plain = isinstance(call.func, ast.Attribute) and name in _OF_ITSELF and not call.args and blocking
    return name if plain else ""


def timeout_never_comes(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a wait without limit under a handler of timeouts, and one after which somebody asks whether it was long
    enough."""
    for attempt in module.nodes(ast.Try):
        body = [node for each in attempt.body for node in (each, *own_nodes(each))]
        calls = [each for each in body if isinstance(each, ast.Call)]
        text = "\n".join(map(ast.unparse, attempt.body))
        # What a loop goes over may be what times out: `for future in as_completed(futures, 5)`.
        if any(isinstance(each, ast.Try | ast.For | ast.AsyncFor) for each in body) or _LIMITED.search(text):
            continue
        for handler in attempt.handlers:
            kinds = {last_name(each) for each in nodes_in(handler.type or ast.Pass(), ast.expr)}
            raising = {name for kind in kinds for name in _RAISED_BY.get(kind, ())}
            waits = [each for each in calls if unlimited(module, each) in raising]
            if waits and handler.type is not None:
                said = f"`{ast.unparse(waits[0].func)}` has no limit: `{ast.unparse(handler.type)}` never comes"
                yield waits[0], said, handler
    for block in blocks(module):
        for one, other in itertools.pairwise(block):
            call = one.value if isinstance(one, ast.Expr) else None
            if (
                not isinstance(call, ast.Call)
                or not isinstance(other, ast.If)
                or not isinstance(call.func, ast.Attribute)
            ):
                continue
            asks, test = _ASKED_AFTER.get(unlimited(module, call)), ast.unparse(other.test)
            if asks is not None and asks.search(test) and ast.unparse(call.func.value) in test:
                yield one, f"`{ast.unparse(call)}` returns when it has ended: `{test}` never holds"
    for node in module.nodes(ast.Assign):
        made = node.value.value if isinstance(node.value, ast.Await) else node.value
        pair = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else []
        name = unlimited(module, made) if len(pair) == 2 and isinstance(made, ast.Call) else ""
        if not name.endswith(".wait") or not isinstance(made, ast.Call):
            continue
        words = {each.arg: ast.unparse(each.value) for each in made.keywords}
        behind = ast.unparse(module.function_of(node) or module.tree)
        if name == "asyncio.wait" and f"if not {last_name(pair[0])}:" in behind:
            yield node, f"`{name}` waits without limit: `{last_name(pair[0])}` is never empty"
        every = not words if name != "ray.wait" else words.get("num_returns") == f"len({ast.unparse(made.args[0])})"
        left, function = last_name(pair[1]), module.function_of(node)
        reads = [each for each in module.nodes(ast.Name) if each.id == left and isinstance(each.ctx, ast.Load)]
        if every and any(each.lineno > node.lineno and module.function_of(each) is function for each in reads):
            yield node, f"`{name}` waits for all without limit: `{left}` is always empty"


def limit_unused(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a function that takes a timeout, waits without one, and uses it nowhere."""
    for function in module.functions():
        given = [*function.args.args, *function.args.kwonlyargs]
        limits = [each.arg for each in given if _LIMIT.search(each.arg)]
        read = names_in(function) if limits else set()
        for name in limits:
            waits = [each for each in own_nodes(function, ast.Call) if _waits(module, each)]
            if name not in read and waits and "locals()" not in ast.unparse(function):
                first = min(waits, key=lambda each: each.lineno)
                yield first, f"`{ast.unparse(first.func)}` has no limit, and `{function.name}` never uses its `{name}`"
    for call in module.nodes(ast.Call):
        if unlimited(module, call) == "asyncio.wait_for":
            yield call, "`asyncio.wait_for` is given no limit, and needs one"


def _waits(module: Module, call: ast.Call) -> bool:
    """Whether a call waits without limit, requests to servers included."""
    words = {each.arg for each in call.keywords}
    asks = last_name(call.func) in _REQUESTS and "timeout" not in words and None not in words
    owner = module.dotted(call.func).rpartition(".")[0].lower()
    return bool(unlimited(module, call)) or (asks and bool(re.search(r"(requests|session|client|httpx)$", owner)))


def deaf_loop(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a loop that looks for a stop or a deadline between waits that may never end."""
    for loop in module.nodes(ast.While):
        if not _STOPS.search(ast.unparse(loop.test)):
            continue
        inside = [each for one in loop.body for each in (one, *own_nodes(one))]
        waits = [each for each in inside if isinstance(each, ast.Call) and unlimited(module, each) == "get"]
        text = "\n".join(map(ast.unparse, loop.body))
        # `if item is None: break`: what ends the loop comes through the queue.
        if len(waits) == 1 and not re.search(
            r"\bis None\b|is _?[A-Z]|== _?[A-Z]|empty\(\)|qsize|_STOP|get_nowait", text
        ):
            said = f"`{ast.unparse(waits[0])}` may wait for ever: `{ast.unparse(loop.test)}` is not asked meanwhile"
            yield waits[0], said


RULES: Final = (
    Rule("timeout-never-comes", Severity.MEDIUM, in_tests=False, in_file=timeout_never_comes),
    Rule("limit-unused", Severity.MEDIUM, in_tests=False, in_file=limit_unused),
    Rule("deaf-loop", Severity.MEDIUM, in_tests=False, in_file=deaf_loop),
)
