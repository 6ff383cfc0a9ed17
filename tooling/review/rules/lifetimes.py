"""What is used up before its last reader, lives longer than its owner, or is shared by mistake: iterators that a loop
reads again, sessions and threads that nobody ends, class attributes that instances fill, graphs that loops pile up."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, nodes_in, own_nodes
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_ONCE: Final = frozenset({"filter", "map", "zip"})
_READERS: Final = frozenset({"dict", "list", "max", "min", "set", "sorted", "sum", "tuple"})
"""Builtins that read an iterator to its end; `any` and `all` may stop before."""
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_EXECUTORS: Final = frozenset({"ProcessPoolExecutor", "ThreadPoolExecutor"})
_LOADER: Final = re.compile(r"(^|_)(data_?)?loader$")
_SESSIONS: Final = frozenset({"aiohttp.ClientSession", "httpx.AsyncClient", "httpx.Client"})
_WITHOUT_SESSIONS: Final = frozenset({"ABC", "Generic", "Protocol", "object"})
_OWNS: Final = re.compile(r"^[A-Z]|clos|enter|exit|regist|clean|append|callback")
_CLOSES: Final = frozenset({"aclose", "close"})


def iterator_used_up(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an iterator that a loop reads in each of its rounds: from the second one on, nothing is left.

    found = executor.map(start, jobs)
    while True:
        for each in found:                       # empty in the second round
            check(each)
    """
    for source in module.nodes(ast.Assign):
        function = module.function_of(source) if _is_once(module, source) else None
        name = last_name(source.targets[0])
        if not isinstance(function, Function) or not isinstance(source.targets[0], ast.Name):
            continue
        uses = [each for each in own_nodes(function, ast.Name) if each.id == name]
        read = [each for each in uses if isinstance(each.ctx, ast.Load) and _is_read_whole(module, each)]
        held = set(module.around(source, function))
        for node in read if sum(isinstance(each.ctx, ast.Store) for each in uses) == 1 else ():
            around = [each for each in module.around(node, function) if isinstance(each, _LOOPS) and each not in held]
            again = [each for each in around if not _is_its_own(each, node)]
            # Who leaves such a loop early may read on where it stopped.
            if again and not any(_leaves(module, each, around) for each in ast.walk(around[-1])):
                inside = set(ast.walk(again[-1]))
                line = min(each.lineno for each in read if each in inside)
                yield line, f"`{name}` is used up after the first round of the loop", source
                break


def _leaves(module: Module, node: ast.AST, loops: Sequence[ast.AST]) -> bool:
    """Whether it is a `return`, or a `break` that ends one of the loops."""
    if isinstance(node, ast.Break):
        return next(each for each in module.around(node) if isinstance(each, _LOOPS)) in loops
    return isinstance(node, ast.Return)


def _is_once(module: Module, statement: ast.Assign) -> bool:
    """`rows = map(...)`, `zip(...)`, `executor.map(...)`, `(x for x in rows)`. A pool of multiprocessing has a `map`
    that returns a list."""
    value = statement.value if len(statement.targets) == 1 else None
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.GeneratorExp)
    if isinstance(value.func, ast.Name):
        return value.func.id in _ONCE and value.func.id not in module.bindings and not module.stars
    if not isinstance(value.func, ast.Attribute) or value.func.attr != "map":
        return False
    pool = last_name(value.func.value)
    made = [each.value for each in module.nodes(ast.Assign) if any(last_name(one) == pool for one in each.targets)]
    entered = [(each.context_expr, each.optional_vars) for each in module.nodes(ast.withitem)]
    made += [entering for entering, bound in entered if bound is not None and last_name(bound) == pool]
    calls = [last_name(each.func) if isinstance(each, ast.Call) else "" for each in made]
    return set(calls) <= _EXECUTORS if pool and calls else "executor" in pool.lower()


def _is_read_whole(module: Module, node: ast.expr) -> bool:
    """`for x in rows`, `[x for x in rows]`, `for i, x in enumerate(rows)`, `list(rows)`."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.comprehension):
        return parent.iter is node and not isinstance(module.parents[parent], ast.GeneratorExp)  # who reads that?
    if isinstance(parent, ast.For | ast.AsyncFor):
        return parent.iter is node
    if not isinstance(parent, ast.Call) or not isinstance(parent.func, ast.Name) or parent.func.id in module.bindings:
        return False
    return parent.func.id in _READERS or (parent.func.id == "enumerate" and _is_read_whole(module, parent))


def _is_its_own(loop: ast.For | ast.AsyncFor | ast.While, node: ast.expr) -> bool:
    """Whether a loop is the one that goes over the iterator."""
    return not isinstance(loop, ast.While) and any(each is node for each in ast.walk(loop.iter))


def loader_cycled(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `itertools.cycle(dataloader)`: it keeps every batch, and repeats the order of the first epoch."""
    for call in module.nodes(ast.Call):
        given = call.args[0] if len(call.args) == 1 else None
        named = isinstance(given, ast.Name | ast.Attribute) and bool(_LOADER.search(last_name(given)))
        if named and module.dotted(call.func) == "itertools.cycle":
            yield call, "every epoch repeats the batches of the first, which are all kept"


def session_left_open(module: Module, side: Side) -> Iterator[Hit]:
    """Find `self.session = ClientSession()` in a class that never closes it, nor hands it out. A base that cannot be
    read may do so."""
    if "aiohttp" not in module.text and "httpx" not in module.text:
        return
    for owner in module.nodes(ast.ClassDef):
        classes, foreign = side.lineage(module, owner)
        if any(name.rpartition(".")[2] not in _WITHOUT_SESSIONS for name in foreign):
            continue
        above = [each for _, base in classes[1:] for each in nodes_in(base, ast.Attribute)]
        # Classes inside it are looked at by themselves.
        inner = [each for each in nodes_in(owner, ast.ClassDef) if each is not owner]
        nested = {each for one in inner for each in ast.walk(one)}
        nodes = [each for each in ast.walk(owner) if each not in nested]
        uses = [each for each in nodes if isinstance(each, ast.Attribute) and last_name(each.value) == "self"]
        for node in nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            made = node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
            if not isinstance(target, ast.Attribute) or made is None or last_name(target.value) != "self":
                continue
            if module.dotted(made.func) not in _SESSIONS:
                continue
            parents = [module.parents[each] for each in uses if each.attr == target.attr and each is not target]
            # `await client.session.close()`; a `session.close()` may be of another one
            ended = (each.value for each in module.nodes(ast.Attribute) if each.attr in _CLOSES)
            outside = any(isinstance(each, ast.Attribute) and each.attr == target.attr for each in ended)
            outside |= any(each.attr == target.attr for each in above)
            if not outside and not any(_ends_elsewhere(module, each) for each in parents):
                yield made, f"nothing closes `self.{target.attr}` of `{owner.name}`"


def _ends_elsewhere(module: Module, parent: ast.AST) -> bool:
    """Whether a session is closed here, entered, or handed to somebody who may close it."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in _CLOSES
    if isinstance(parent, ast.withitem | ast.Return | ast.Dict | ast.List | ast.Tuple | ast.NamedExpr):
        return True
    if isinstance(parent, ast.BoolOp):  # `return self.session or make()`, but not `if self.session and ok`
        return not isinstance(module.parents[parent], ast.If | ast.While | ast.IfExp | ast.Assert)
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    # `Pool(self.session)` may own it from now on; `post(self.session, url)` does not.
    owned = isinstance(parent, ast.Call) and bool(_OWNS.search(last_name(parent.func)))
    return owned or (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name))


def thread_not_daemon(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a thread with an endless loop that is not a daemon: it keeps the process alive."""
    for call in module.nodes(ast.Call):
        if module.dotted(call.func) != "threading.Thread" or any(
            each.arg in {"daemon", None} for each in call.keywords
        ):
            continue
        target = keyword(call, "target")
        if not isinstance(target, ast.Attribute):
            continue
        owner = next((each for each in module.around(call) if isinstance(each, ast.ClassDef)), None)
        methods = [each for each in (owner.body if owner else ()) if isinstance(each, Function)]
        found = [each for each in methods if last_name(target.value) == "self" and each.name == target.attr]
        called = {each.attr for one in found for each in own_nodes(one, ast.Attribute)}
        # `asyncio.run(self.poll())`
        found += [each for each in methods if each.name in called and isinstance(each, ast.AsyncFunctionDef)]
        endless = [each for one in found for each in own_nodes(one, ast.While)]
        # `Thread(target=self.server.run)`: what another object runs ends when that object says so.
        serves = last_name(target.value).endswith("server") and target.attr in {"run", "serve_forever"}
        inside = [each for each in (ast.walk(owner) if owner else ()) if isinstance(each, ast.Attribute)]
        sets = any(each.attr == "daemon" and isinstance(each.ctx, ast.Store) for each in inside)
        made = module.parents[call]
        names = {last_name(each) for each in (made.targets if isinstance(made, ast.Assign) else ())}
        joins = [each for each in inside if each.attr == "join" and last_name(each.value) in names]
        # A `stop` that joins it is not reached where the main thread has failed; the end of a `with` is.
        entered = any(each.name in {"__exit__", "__aexit__"} for each in methods)
        ends = bool(joins) and (entered or module.function_of(call) in map(module.function_of, joins))
        if (endless or serves) and not sets and not ends:
            yield call, f"`{ast.unparse(target)}` keeps the process alive after the main thread has failed"


_FILLS: Final = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_CONTAINERS: Final = frozenset({"Counter", "OrderedDict", "defaultdict", "deque", "dict", "list", "set"})
_COPIES_DEFAULTS: Final = re.compile(r"Model$|Config|Schema|Settings|Enum|Tuple|Dict|Struct")
"""Names of bases that copy defaults for each instance."""


def class_attribute_filled(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `items = []` in a class whose methods fill `self.items`: all instances share it."""
    for owner in module.nodes(ast.ClassDef):
        shared: dict[str, int] = {}
        for each in owner.body:
            value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
            target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
            literal = isinstance(value, ast.List | ast.Dict | ast.Set)
            made = isinstance(value, ast.Call) and last_name(value.func) in _CONTAINERS
            # A decorator or base may take it for a default; `_CACHE` in capitals is shared on purpose.
            on_purpose = isinstance(each, ast.AnnAssign) and "ClassVar" in ast.unparse(each.annotation)
            if (literal or made) and isinstance(target, ast.Name) and not target.id.isupper() and not on_purpose:
                shared[target.id] = each.lineno
        # A lock that the class has too says that instances share what it holds.
        locked = re.search(
            r"\bR?Lock\(", "".join(ast.unparse(each) for each in owner.body if not isinstance(each, Function))
        )
        if (
            not shared
            or locked
            or owner.decorator_list
            or any(_COPIES_DEFAULTS.search(last_name(each)) for each in owner.bases)
        ):
            continue
        nodes = list(ast.walk(owner))
        stored = [each for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
        own = {each.attr for each in stored}
        by_class = {each.attr for each in nodes if isinstance(each, ast.Attribute) and last_name(each.value) != "self"}
        for node in nodes:
            filled = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
                filled = node.func.value
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                filled = node.value
            if not isinstance(filled, ast.Attribute) or last_name(filled.value) != "self":
                continue
            holder = next(each for each in module.around(node) if isinstance(each, ast.ClassDef))
            if holder is owner and filled.attr in shared.keys() - own - by_class:
                said = f"`self.{filled.attr}` is the class's: what one instance of `{owner.name}` adds, all others see"
                yield shared.pop(filled.attr), said


_NUMBERS: Final = re.compile(r"\bitem\(|detach|\bfloat\(|tolist")
_WITHOUT_GRAPH: Final = re.compile(r"no_grad|inference_mode|set_grad_enabled")


def graph_kept(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `total += loss` in the loop that calls `loss.backward()`, with nothing that leaves the graph behind."""
    loops = list(module.nodes(ast.For, ast.While))
    said: set[ast.AST] = set()
    for loop in loops:
        inside = [each for one in loop.body for each in (one, *own_nodes(one))]
        backward = {
            each.func.value.id
            for each in inside
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "backward"
            if isinstance(each.func.value, ast.Name)
        }
        for node in inside if backward else ():
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Name):
                name, total = node.value.id, ast.unparse(node.target)
                stores = [each for each in inside if isinstance(each, ast.Assign)]
                numbers = [each for each in stores if last_name(each.targets[0]) == name]
                cut = any(_NUMBERS.search(ast.unparse(each.value)) for each in numbers)
                # A total that starts afresh in the loop holds the graphs of a few steps only.
                cut = cut or any(ast.unparse(each.targets[0]) == total for each in stores)
                around = [part for each in module.around(node) if isinstance(each, ast.With) for part in each.items]
                cut = cut or any(_WITHOUT_GRAPH.search(ast.unparse(each)) for each in around)
                if name in backward and last_name(node.target) not in backward and not cut and node not in said:
                    said.add(node)
                    yield node, f"`{total}` keeps the graph of every `{name}`"


RULES: Final = (
    Rule("iterator-used-up", Severity.HIGH, in_file=iterator_used_up),
    Rule("loader-cycled", Severity.MEDIUM, in_tests=False, in_file=loader_cycled),
    Rule("session-left-open", Severity.MEDIUM, in_tests=False, in_file=session_left_open),
    Rule("thread-not-daemon", Severity.LOW, in_tests=False, in_file=thread_not_daemon),
    Rule("class-attribute-filled", Severity.HIGH, in_file=class_attribute_filled),
    Rule("graph-kept", Severity.HIGH, in_file=graph_kept),
)
