"""Coroutines, threads and waits: what blocks the event loop, is never run, is waited for without end, or cannot time
out where the code around it counts on it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, names_in, nodes_in, own_nodes
from tooling.python.source import dotted_name, methods_in
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import class_of_value, neighbours, words
from tooling.review.rules.robustness import TEARDOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_BLOCKING = frozenset(
    {"time.sleep", "os.system", "subprocess.run", "subprocess.call", "subprocess.check_call"}
    | {"subprocess.check_output", "urllib.request.urlopen", "socket.create_connection"}
    | {
        f"{client}.{verb}"
        for client in ("requests", "httpx")
        for verb in ["get", "post", "put", "patch", "delete", "head", "request"]
    }
)
_WAITER = re.compile(r"thread|proc|worker", re.IGNORECASE)
_PROCESS = re.compile(r"proc(ess)?$|popen|^p$", re.IGNORECASE)
_LIMIT = re.compile(r"timeout|fail_after|fail_at|move_on_a")
"""Names of context managers that end what takes too long."""
_OF_EPISODES = re.compile(r"(Workflow|Agent)$")
_POOL = re.compile(r"executor|pool", re.IGNORECASE)


_ELSEWHERE: Final = re.compile(r"\b(?:worker|background)\s+thread\b|\boff (?:of )?the event\s+loop\b")
"""What a docstring or comment says of a function that leaves the event loop."""
_HANDED: Final = re.compile(r"to_thread|executor|submit|\bThread\(|run_sync")
"""How it does."""


def blocking_in_async(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a call that waits, in a function of the event loop."""
    for function in module.nodes(ast.AsyncFunctionDef):
        told = f"{ast.get_docstring(function)} {' '.join(module.lines[function.lineno : function.end_lineno])}"
        calls = own_nodes(function, ast.Call) if _ELSEWHERE.search(told) and not _HANDED.search(told) else []
        own = [each for each in calls if isinstance(module.parents[each], ast.Expr) and module.methods_called(each)]
        if own:
            yield own[-1], f"`{function.name}` says that it works in a thread, and runs this on the event loop"
        for node in own_nodes(function, ast.Call):
            if (name := module.dotted(node.func)) in _BLOCKING:
                yield node, f"`{name}` blocks the event loop in `{function.name}`"
            yield from _waits_unlike_others(module, function, node)


def _waits_unlike_others(module: Module, function: ast.AsyncFunctionDef, node: ast.Call) -> Iterator[Hit]:
    """Find a call whose like, or whose place in a coroutine, says that it was to be run elsewhere."""
    waits, called = unlimited(module, node), ast.unparse(node.func)
    bare = isinstance(module.parents[node], ast.Expr) and module.function_of(function) is not None
    if waits == "wait" and bare and not own_nodes(function, ast.Await, ast.Yield):
        yield node, f"`{called}` blocks the event loop, or is never awaited"
    # `to_thread(x.get)` elsewhere in it, and `y.get()` here
    if waits and re.search(rf"to_thread\([^\n(]*\.{waits}\b", ast.unparse(function)):
        yield node, f"`{called}` waits on the event loop, and its like in a thread"
    # A plain function inside of a coroutine is there to be run elsewhere.
    inner = [each for each in own_nodes(function, ast.FunctionDef) if each.name == module.dotted(node.func)]
    slow = own_nodes(inner[0], ast.Call) if inner else []
    slow = [each for each in slow if module.dotted(each.func) in _BLOCKING | {"open"}]
    if slow:
        yield node, f"`{called}` calls `{ast.unparse(slow[0].func)}`, and blocks the event loop here", slow[0]


def file_in_async(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a file opened, or a folder made, in what runs once per episode: a coroutine of a workflow or an agent."""
    for function in module.nodes(ast.AsyncFunctionDef):
        owner = module.class_of(function)
        of_episode = owner is not None and _OF_EPISODES.search(owner.name)
        if not function.name.endswith("run_episode") and not of_episode:
            continue
        for node in own_nodes(function):
            name = module.dotted(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in {"open", "os.makedirs"}:
                yield node, f"`{name}` blocks all other episodes in `{function.name}`"


def never_awaited(module: Module, side: Side) -> Iterator[Hit]:
    """Find a coroutine that is created and dropped, or returned by another one, whose caller would have to await it
    once more: one that is known, and one of a function that the file awaits wherever else it calls it."""
    counts = _how_often_awaited(module)
    asked: list[ast.Call] = []
    statements = list(module.nodes(ast.Expr, ast.Return))
    for node in statements:
        call, function = node.value, module.function_of(node)
        inside = isinstance(function, ast.AsyncFunctionDef)
        promised = getattr(function, "returns", None)
        meant = promised is not None and re.search(r"Awaitable|Corout|Future|Task|Any$", ast.unparse(promised))
        if not isinstance(call, ast.Call) or (isinstance(node, ast.Return) and (not inside or meant)):
            continue
        if (inside and _awaited_elsewhere(call, counts)) or _is_coroutine(module, side, call):
            yield node, f"`{ast.unparse(call.func)}(...)` is never awaited: it does not run"
        elif inside and isinstance(call.func, ast.Attribute) and isinstance(node, ast.Expr):
            asked.append(call)
    # A method that is a coroutine wherever the repository has one, of what is awaited for other things too
    owners = {name.rpartition(".")[0] for name in counts[0]}
    inner = (each for each in module.nodes(ast.AsyncFunctionDef) if module.function_of(each) is not None)
    pauses = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.comprehension)
    idle = [each for each in inner if not own_nodes(each, *pauses)]
    known = owners - {""}
    asked = [
        each for each in asked if dotted_name(each.func).rpartition(".")[0] in known or module.function_of(each) in idle
    ]
    own = {each.name for each in module.nodes(ast.AsyncFunctionDef)}
    names = {name for each in asked if "_" in (name := last_name(each.func)) or name in own} - _OFTEN_PLAIN
    found = side.mentioned([f"{mark}def {each}" for each in names for mark in ("async ", "")], "*.py")
    for call in asked:
        name = last_name(call.func)
        if f"async def {name}" in found and f"def {name}" not in found:
            yield call, f"`{ast.unparse(call.func)}(...)` is never awaited: every `{name}` here is a coroutine"


_OFTEN_PLAIN: Final = words("""
    add cancel clear close get info join put read release reset run send set start stop terminate update wait write
""")
"""Methods that objects of other packages have too."""


def _how_often_awaited(module: Module) -> tuple[Counter[str], Counter[str]]:
    """Count the calls that are awaited, and those that are not, of each name with an owner; not what is collected or
    handed on, to `gather` for instance."""
    awaited: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    for each in module.nodes(ast.Call) if any(module.nodes(ast.Await)) else ():
        name, parent = dotted_name(each.func), module.parents.get(each)
        if "." in name and not isinstance(parent, _HANDS_ON):
            of = awaited if isinstance(parent, ast.Await) else plain
            of.update([name])
    return awaited, plain


_HANDS_ON: Final = (ast.Call, ast.GeneratorExp, ast.Lambda, ast.List, ast.ListComp, ast.Starred, ast.Tuple)


def _awaited_elsewhere(call: ast.Call, counts: tuple[Counter[str], Counter[str]]) -> bool:
    """Whether this is the only call of a name that is not awaited."""
    name = dotted_name(call.func)
    return "." in name and counts[0][name] > 0 and counts[1][name] == 1


def coroutine_as_value(module: Module, side: Side) -> Iterator[Hit]:
    """Find a coroutine of ours that is used as if it were its result: `if self.ready(): ...`, `load().rows`."""
    counts = _how_often_awaited(module)
    for node in module.nodes(ast.Call):
        parent, function = module.parents.get(node), module.function_of(node)
        if isinstance(parent, ast.Await | ast.Expr) or not isinstance(function, ast.AsyncFunctionDef):
            continue
        target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
        if isinstance(target, ast.Tuple) and last_name(node.func) == "remote" and "num_returns" not in module.text:
            yield node, f"`{ast.unparse(node.func)}(...)` is one reference, and is unpacked"
            continue
        name = target.id if isinstance(target, ast.Name) else ""
        if not name and not isinstance(target, ast.Attribute | ast.Tuple) and not _needs_result(module, node):
            continue
        known = _is_coroutine(module, side, node) or _is_method(module, node)
        if not known and not _awaited_elsewhere(node, counts):
            continue
        said = f"`{ast.unparse(node.func)}(...)` is used as if it were awaited"
        if isinstance(target, ast.Attribute | ast.Tuple):
            waits = rf"(?:await |(?:gather|run\w*|shield|task|wait\w*)\([^\n]*){re.escape(ast.unparse(target))}\b(?!\.)"
            if isinstance(target, ast.Tuple) or (known and not re.search(waits, module.text)):
                yield node, said
            continue
        uses = [each for each in own_nodes(function, ast.Name) if each.id == name]
        uses = [each for each in uses if each.lineno > node.lineno]
        waited = any(isinstance(module.parents.get(each), ast.Await) for each in uses)
        # Not what the other branch of a condition around it sets
        around = list(module.around(node))
        meets = {each: next(one for one in module.around(each) if one in around) for each in uses}
        stored_again = any(isinstance(each.ctx, ast.Store) and not isinstance(meets[each], ast.If) for each in uses)
        needing = [each for each in uses if _needs_result(module, each)]
        needing += [each for each in uses if isinstance(module.parents.get(each), ast.Return) and known]
        first = bool(uses) and min(uses, key=lambda each: (each.lineno, each.col_offset)) in needing
        if not name or (not stored_again and (first or (known and needing and not waited))):
            yield node, said


def _is_method(module: Module, call: ast.Call) -> bool:
    """Whether each method of that name is a coroutine in this file, and others of the same object are awaited here."""
    owner, _, name = dotted_name(call.func).rpartition(".")
    found = [each for each in module.functions() if each.name == name] if owner not in {"", "self"} else []
    awaited = own_nodes(module.function_of(call), ast.Await) if found else []
    others = any(
        isinstance(each.value, ast.Call) and dotted_name(each.value.func).rpartition(".")[0] == owner
        for each in awaited
    )
    return others and bool(found) and all(isinstance(each, ast.AsyncFunctionDef) for each in found)


_OF_FUTURES: Final = frozenset({"add_done_callback", "cancel", "cancelled", "done", "exception", "result"})
_TAKE_ITEMS: Final = frozenset({"any", "dict", "enumerate", "len", "list", "max", "min", "set", "sorted", "sum", "zip"})


def _needs_result(module: Module, node: ast.expr) -> bool:
    """Whether a coroutine in this place cannot be meant."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.BoolOp) and parent.values[-1] is node:
        return _needs_result(module, parent)  # `await (found or self.load())`
    if isinstance(parent, ast.Attribute):
        return parent.attr not in {"close", "send", "throw", "__name__"} | _OF_FUTURES
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and node in parent.args:
        # `tasks = list(f())` is wrong; `gather(*[f()])` is not.
        return parent.func.id in _TAKE_ITEMS and (len(parent.args) == 1 or parent.func.id == "zip")
    if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert):
        return parent.test is node
    if isinstance(parent, ast.For | ast.comprehension):
        return parent.iter is node and not getattr(parent, "is_async", 0)
    if isinstance(parent, ast.Subscript):
        return parent.value is node
    return isinstance(parent, ast.Compare | ast.BinOp | ast.UnaryOp | ast.FormattedValue | ast.BoolOp)


def _is_coroutine(module: Module, side: Side, call: ast.Call) -> bool:
    func = call.func
    name = module.dotted(func)
    if isinstance(func, ast.Attribute):
        made = class_of_value(module, call, func.value)
        known = any(made == each and func.attr in names for each, names in _KNOWN.items())
        if known or func.attr in _ALWAYS or _of_client(module, call):
            return True
        if dotted_name(func.value) == "self" and (own := module.methods_called(call)):
            return _is_plain_async(own)
        if func.attr in {"json", "read", "text"} and "aiohttp" in module.imported:
            entered = [one for each in module.around(call) if isinstance(each, ast.AsyncWith) for one in each.items]
            names = {last_name(each.optional_vars) for each in entered if each.optional_vars is not None}
            return last_name(func.value) in names
        found = side.named(module, made) if made and "." not in made else side.definition(made)
        owners = (each for each in module.around(call) if isinstance(each, ast.ClassDef))
        owner = next(owners, None) if dotted_name(func.value) == "self" else None
        found = (module, owner) if owner is not None else found
        if found is not None and isinstance(found[1], ast.ClassDef):
            classes = side.lineage(found[0], found[1])[0]
            methods = [[one for one in methods_in(each.body) if one.name == func.attr] for _, each in classes]
            return _is_plain_async(next(filter(None, methods), []))
    if name in {"asyncio.gather", "asyncio.sleep", "asyncio.wait_for", "asyncio.to_thread", "asyncio.wait"}:
        return True
    if isinstance(func, ast.Name) and func.id not in module.imported:
        named = [each for each in module.functions() if each.name == func.id]
        return _is_plain_async(named) and module.parents[named[0]] in {module.tree, module.function_of(call)}
    target = side.definition(name) if name.partition(".")[2] else None
    return target is not None and isinstance(target[1], Function) and _is_plain_async([target[1]])


def _of_client(module: Module, call: ast.Call) -> bool:
    """Whether it is `client.chat.completions.create(...)` of `client = AsyncOpenAI()`."""
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    made = class_of_value(module, call, root).rpartition(".")[2]
    return bool(_CLIENT.fullmatch(made)) and last_name(call.func) in _REQUESTS


_CLIENT: Final = re.compile(r"Async(?:AzureOpenAI|Anthropic|Client|OpenAI|Session)")
_REQUESTS: Final = frozenset({"commit", "create", "execute", "get", "parse", "post", "request"})
_ALWAYS: Final = frozenset({"__aenter__", "__aexit__", "__anext__", "aclose", "aread"})
_KNOWN: Final = {
    "asyncio.Condition": {"acquire", "wait", "wait_for"},
    "asyncio.Event": {"wait"},
    "asyncio.Lock": {"acquire"},
    "asyncio.Queue": {"get", "join", "put"},
    "asyncio.Semaphore": {"acquire"},
    "fastapi.Request": {"body", "form", "json"},
    "starlette.requests.Request": {"body", "form", "json"},
    "uvicorn.Server": {"serve", "shutdown", "startup"},
}
"""Coroutines of other packages, by their class."""


def _is_plain_async(found: list[Function]) -> bool:
    """Whether there is one definition, a coroutine that no decorator turns into something else."""
    if len(found) != 1 or not isinstance(found[0], ast.AsyncFunctionDef) or found[0].decorator_list:
        return False
    return not any(isinstance(node, ast.Yield) for node in own_nodes(found[0]))


def dropped_task(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a task that nobody keeps."""
    for node in module.nodes(ast.Expr):
        call = node.value
        if isinstance(call, ast.Call) and last_name(call.func) in {"create_task", "ensure_future"}:
            owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            if owner == "asyncio" or "loop" in owner or module.dotted(call.func).startswith("asyncio."):
                yield node, "the task is not kept: it may be collected before it ends"


def unbounded_wait(module: Module, _side: Side) -> Iterator[Hit]:
    """Find waits without a limit while something is torn down."""
    for node in module.nodes(ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in {"join", "shutdown", "wait"}:
            continue
        function = module.function_of(node)
        if not isinstance(function, Function) or not TEARDOWN.match(function.name):
            continue
        owner = ast.unparse(node.func.value)
        if _is_limited(module, function, node):
            continue
        kinds = {"join": _WAITER, "wait": _PROCESS}
        waiter = kinds.get(node.func.attr)
        # The collector calls `__del__` at any moment.
        named = waiter is not None and (waiter.search(owner) or (owner == "self" and function.name == "__del__"))
        if named and not node.args and not node.keywords:
            calls = own_nodes(function, ast.Call)
            if any(last_name(each.func) == node.func.attr and (each.args or each.keywords) for each in calls):
                continue  # another one has a limit
            yield node, f"`{owner}.{node.func.attr}()` in `{function.name}` may wait for ever"
        wait = keyword(node, "wait") or (node.args[0] if node.args else None)
        # Executors wait unless they are asked not to.
        waits = isinstance(wait, ast.Constant) and wait.value is True
        waits |= "executor" in owner.lower() and not node.args and not node.keywords
        if node.func.attr == "shutdown" and _POOL.search(owner) and waits:
            yield node, f"`{owner}.shutdown` in `{function.name}` waits for running work"


def _is_limited(module: Module, function: Function, wait: ast.Call) -> bool:
    """Whether a wait ends by other means than its own arguments: `wait_for(p.wait(), 5)`, `async with timeout(5)`, or
    `p.kill()` before it."""
    for each in module.around(wait):
        if isinstance(each, ast.Call):
            return True
        blocks = each.items if isinstance(each, ast.With | ast.AsyncWith) else ()
        if any(_LIMIT.search(ast.unparse(item.context_expr)) for item in blocks):
            return True
    owner = re.escape(ast.unparse(wait.func.value).lower()) if isinstance(wait.func, ast.Attribute) else ""
    named = re.compile(rf"(?<!\w){owner}(?:s|es)?(?!\w)")
    for call in own_nodes(function, ast.Call):
        if call.lineno > wait.lineno or last_name(call.func) in _LOGS:
            continue
        if "kill" in (text := ast.unparse(call).lower()) and named.search(text):
            return True
    return False


_LOGS = frozenset({"critical", "debug", "error", "exception", "info", "log", "print", "warning"})


def endless_retry(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `while True: try: return ... except Exception: ...` that never gives up."""
    for loop in module.nodes(ast.While):
        if not isinstance(loop.test, ast.Constant) or not loop.test.value or len(loop.body) != 1:
            continue
        attempt = loop.body[0]
        if not isinstance(attempt, ast.Try) or not _leaves(attempt.body, (ast.Return, ast.Break)):
            continue
        broad = {"Exception", "BaseException"}
        handlers = [each for each in attempt.handlers if each.type is None or last_name(each.type) in broad]
        if handlers and not any(_leaves(each.body, (ast.Return, ast.Break, ast.Raise)) for each in attempt.handlers):
            yield handlers[0], "any failure is tried again, without end"


def _leaves(body: list[ast.stmt], kinds: tuple[type[ast.stmt], ...]) -> bool:
    return any(isinstance(node, kinds) for statement in body for node in [statement, *own_nodes(statement)])


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
_LIMIT_NAME: Final = re.compile(r"(^|_)timeout(_s|_sec|_secs|_seconds|_ms)?$|^max_wait(_\w+)?$")
_LIMITED: Final = re.compile(r"timeout|_nowait|block=False|\(False")
_STOPS: Final = re.compile(
    r"\.is_set\(\)|\b(time|monotonic|perf_counter)\(\)|deadline|(?<!\w)not self\._?(stop|shut|clos)"
)
_VERBS: Final = {"delete", "get", "patch", "post", "put", "request"}


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
    for one, other in neighbours(module):
        call = one.value if isinstance(one, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(other, ast.If) or not isinstance(call.func, ast.Attribute):
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
        limits = [each.arg for each in given if _LIMIT_NAME.search(each.arg)]
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
    asks = last_name(call.func) in _VERBS and "timeout" not in words and None not in words
    owner = module.dotted(call.func).rpartition(".")[0].lower()
    return bool(unlimited(module, call)) or (asks and bool(re.search(r"(requests|session|client|httpx)$", owner)))


_LOOPS: Final = (ast.While, ast.For, ast.AsyncFor)


def deaf_loop(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a loop that looks for a stop or a deadline between waits that may never end."""
    for loop in module.nodes(ast.While):
        inside = [each for one in loop.body for each in (one, *own_nodes(one))]
        limited = {
            one for each in inside if isinstance(each, ast.Call) and keyword(each, "timeout") for one in each.args
        }
        # What an inner loop asks is not about this one.
        nested = {one for each in inside if isinstance(each, _LOOPS) for one in ast.walk(each)}
        own = [each for each in inside if each not in nested]
        tests = [ast.unparse(each.test) for each in own if isinstance(each, ast.If)]
        late = next((each for each in tests if re.match(r"remaining <=? 0|.*\bdeadline\b", each)), "")
        for call in (each for each in own if isinstance(each, ast.Call) and late and each not in limited):
            if unlimited(module, call) in {"get", "join", "result", "wait"}:
                yield call, f"`{ast.unparse(call)}` may wait for ever: `{late}` is not asked meanwhile"
        if not _STOPS.search(ast.unparse(loop.test)):
            continue
        waits = [each for each in inside if isinstance(each, ast.Call) and unlimited(module, each) == "get"]
        waits = [each for each in waits if each not in limited]
        text = "\n".join(map(ast.unparse, loop.body))
        # `if item is None: break`: what ends the loop comes through the queue.
        if len(waits) == 1 and not re.search(
            r"\bis None\b|is _?[A-Z]|== _?[A-Z]|empty\(\)|qsize|_STOP|get_nowait", text
        ):
            said = f"`{ast.unparse(waits[0])}` may wait for ever: `{ast.unparse(loop.test)}` is not asked meanwhile"
            yield waits[0], said


RULES: Final = (
    Rule("blocking-in-async", Severity.HIGH, in_tests=False, in_file=blocking_in_async),
    Rule("file-in-episode", Severity.MEDIUM, in_tests=False, in_file=file_in_async),
    Rule("never-awaited", Severity.HIGH, in_file=never_awaited),
    Rule("coroutine-as-value", Severity.HIGH, in_file=coroutine_as_value),
    Rule("dropped-task", Severity.MEDIUM, in_file=dropped_task),
    Rule("unbounded-wait", Severity.HIGH, in_tests=False, in_file=unbounded_wait),
    Rule("endless-retry", Severity.MEDIUM, in_file=endless_retry),
    Rule("timeout-never-comes", Severity.MEDIUM, in_tests=False, in_file=timeout_never_comes),
    Rule("limit-unused", Severity.MEDIUM, in_tests=False, in_file=limit_unused),
    Rule("deaf-loop", Severity.MEDIUM, in_tests=False, in_file=deaf_loop),
)
