"""What is used up before its last reader, or lives longer than its owner: iterators that a loop reads again, loaders
that are kept whole, sessions that nobody closes, threads that keep the process alive."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, own_nodes
from tooling.review.records import Place, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.repository.side import Side

_ONCE: Final = frozenset({"filter", "map", "zip"})
_READERS: Final = frozenset({"all", "any", "dict", "enumerate", "list", "max", "min", "set", "sorted", "sum", "tuple"})
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_POOL: Final = re.compile(r"executor|pool", re.IGNORECASE)
_LOADER: Final = re.compile(r"(^|_)(data_?)?loader$")
_SESSIONS: Final = frozenset({"aiohttp.ClientSession", "httpx.AsyncClient", "httpx.Client"})
_OWNS: Final = re.compile(r"^[A-Z]|clos|enter|exit|regist|clean|append|callback")
_CLOSES: Final = frozenset({"aclose", "close"})


def iterator_used_up(module: Module, _side: Side) -> Iterator[Place]:
    """Find an iterator that a loop reads in each of its rounds: from the second one on, nothing is left.

    found = executor.map(start, jobs)
    while True:
        for each in found:                       # empty in the second round
            check(each)
    """
    for source in module.nodes(ast.Assign):
        function = module.function_of(source) if _is_once(source) else None
        name = last_name(source.targets[0])
        if not isinstance(function, Function) or not isinstance(source.targets[0], ast.Name):
            continue
        uses = [each for each in own_nodes(function) if isinstance(each, ast.Name) and each.id == name]
        held = set(module.around(source, function))
        for node in uses if sum(isinstance(each.ctx, ast.Store) for each in uses) == 1 else ():
            if not isinstance(node.ctx, ast.Load) or not _is_read_whole(module, node):
                continue
            around = (each for each in module.around(node, function) if isinstance(each, _LOOPS) and each not in held)
            again = [each for each in around if not _is_its_own(each, node)]
            if again and not any(isinstance(each, ast.Return) for one in again for each in one.body):
                said = f"`{name}` is used up after the first round of the loop"
                yield Place(module.path, node.lineno, said, f"{module.path}:{source.lineno}")


def _is_once(statement: ast.Assign) -> bool:
    """`rows = map(...)`, `zip(...)`, `executor.map(...)`, `(x for x in rows)`."""
    value = statement.value if len(statement.targets) == 1 else None
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.GeneratorExp)
    if isinstance(value.func, ast.Name):
        return value.func.id in _ONCE
    return last_name(value.func) == "map" and bool(_POOL.search(ast.unparse(value.func)))


def _is_read_whole(module: Module, node: ast.expr) -> bool:
    """`for x in rows`, `enumerate(rows)`, `list(rows)`."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
        return parent.iter is node
    return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in _READERS


def _is_its_own(loop: ast.For | ast.AsyncFor | ast.While, node: ast.expr) -> bool:
    """Whether a loop is the one that goes over the iterator."""
    return not isinstance(loop, ast.While) and any(each is node for each in ast.walk(loop.iter))


def loader_cycled(module: Module, _side: Side) -> Iterator[Place]:
    """Find `itertools.cycle(dataloader)`: it keeps every batch, and repeats the order of the first epoch."""
    for call in module.nodes(ast.Call):
        given = call.args[0] if len(call.args) == 1 else None
        named = isinstance(given, ast.Name | ast.Attribute) and bool(_LOADER.search(last_name(given)))
        if named and module.dotted(call.func) == "itertools.cycle":
            yield Place(module.path, call.lineno, "every epoch repeats the batches of the first, which are all kept")


def session_left_open(module: Module, _side: Side) -> Iterator[Place]:
    """Find `self.session = ClientSession()` in a class that never closes it, nor hands it out."""
    for owner in module.nodes(ast.ClassDef):
        nodes = list(ast.walk(owner))
        uses = [each for each in nodes if isinstance(each, ast.Attribute) and last_name(each.value) == "self"]
        for node in nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            made = node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
            if not isinstance(target, ast.Attribute) or made is None or last_name(target.value) != "self":
                continue
            if module.dotted(made.func) not in _SESSIONS:
                continue
            parents = [module.parents[each] for each in uses if each.attr == target.attr and each is not target]
            if not any(_ends_elsewhere(module, each) for each in parents):
                yield Place(module.path, made.lineno, f"nothing closes `self.{target.attr}` of `{owner.name}`")


def _ends_elsewhere(module: Module, parent: ast.AST) -> bool:
    """Whether a session is closed here, entered, or handed to somebody who may close it."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in _CLOSES
    if isinstance(parent, ast.withitem | ast.Return | ast.Dict | ast.List | ast.Tuple):
        return True
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    # `Pool(self.session)` may own it from now on; `post(self.session, url)` does not.
    owned = isinstance(parent, ast.Call) and bool(_OWNS.search(last_name(parent.func)))
    return owned or (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name))


def thread_not_daemon(module: Module, _side: Side) -> Iterator[Place]:
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
        called = {each.attr for one in found for each in own_nodes(one) if isinstance(each, ast.Attribute)}
        # `asyncio.run(self.poll())`
        found += [each for each in methods if each.name in called and isinstance(each, ast.AsyncFunctionDef)]
        endless = [each for one in found for each in own_nodes(one) if isinstance(each, ast.While)]
        # `Thread(target=self.server.run)`: what another object runs ends when that object says so.
        serves = last_name(target.value).endswith("server") and target.attr in {"run", "serve_forever"}
        sets = any(
            isinstance(each, ast.Attribute) and each.attr == "daemon" and isinstance(each.ctx, ast.Store)
            for each in (ast.walk(owner) if owner else ())
        )
        if (endless or serves) and not sets:
            said = f"`{ast.unparse(target)}` keeps the process alive after the main thread has failed"
            yield Place(module.path, call.lineno, said)


RULES: Final = (
    Rule("iterator-used-up", Severity.HIGH, in_file=iterator_used_up),
    Rule("loader-cycled", Severity.MEDIUM, in_tests=False, in_file=loader_cycled),
    Rule("session-left-open", Severity.MEDIUM, in_tests=False, in_file=session_left_open),
    Rule("thread-not-daemon", Severity.LOW, in_tests=False, in_file=thread_not_daemon),
)
