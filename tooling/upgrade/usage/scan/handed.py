"""Functions that are handed to something that calls them, and values that come later: who calls with what, and what
waiting for it gives.

    asyncio.to_thread(load, path)        load(path), whose value `await` gives
    sorted(rows, key=rank)               rank(an element of rows)
    pool.map(score, texts, weights)      score(an element, an element)
    asyncio.gather(fetch(a), fetch(b))   both are awaited; `await` gives their values
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Protocol

from tooling.python.source import span_of
from tooling.upgrade.usage.facts import UNKNOWN, ClassFacts
from tooling.upgrade.usage.scan.arguments import CallArguments, constant_name
from tooling.upgrade.usage.scan.containers import put

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.upgrade.usage.scan.annotations import AnnotationWalk
    from tooling.upgrade.usage.scan.arguments import ArgumentReader
    from tooling.upgrade.usage.scan.core import WalkState
    from tooling.upgrade.usage.scan.expressions import ExpressionReader

_POOLS = ("concurrent.futures", "multiprocessing", "ray.util.multiprocessing", "joblib")


class Calling(Protocol):
    """What reads calls, as far as it is needed here."""

    walk: WalkState
    annotations: AnnotationWalk
    expressions: ExpressionReader
    arguments: ArgumentReader

    def named_attribute(self, node: ast.Call) -> int | None:
        """`x.name` of `getattr(x, "name", ...)`."""

    def emit_call(self, node: Any, target: int, found: CallArguments, awaited: bool | None = None) -> None:
        """Note a call."""

    def plain_call(self, node: ast.Call, target: int, awaited: bool | None) -> int:
        """Nothing special: the target called."""
        ...

    def bound_call(
        self, node: Any, function: ast.expr, positional: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> int:
        """Arguments given to a function that something else calls, perhaps with more of them."""
        ...


def handing(
    place: int, made: str = "", *, of_stranger: bool = False, keywords: bool = False
) -> Callable[[Calling, ast.Call, int], int | None]:
    """Build the reader of a call whose argument at a place is a function that gets the arguments behind it, and the
    keywords if they are not the caller's own. made: what the call gives. of_stranger: only if nothing says whose
    method it is."""

    def read(calls: Calling, node: ast.Call, target: int) -> int | None:
        if len(node.args) <= place or any(isinstance(one, ast.Starred) for one in node.args[: place + 1]):
            return None
        if of_stranger and not calls.walk.is_of_stranger(target):
            return None
        for before in node.args[:place]:
            calls.expressions.expression(before)
        given = node.keywords if keywords else []
        inner = calls.bound_call(node, node.args[place], node.args[place + 1 :], given)
        if made == "partial":
            return calls.walk.step(made, inner)
        return calls.walk.step(made, calls.walk.step("call", inner)) if made else UNKNOWN

    return read


def by_name(
    function: str, args: str, kwargs: str, places: tuple[int, int, int]
) -> Callable[[Calling, ast.Call, int], int | None]:
    """Build the reader of a call that takes a function, its arguments in a tuple and its keywords in a mapping, by
    these names or at these places: `Thread(target=f, args=(x,))`, `Timer(1.0, f, (x,))`."""

    def read(calls: Calling, node: ast.Call, target: int) -> int | None:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if any(isinstance(one, ast.Starred) for one in node.args):
            return None
        by_place = dict(enumerate(node.args))
        found = [
            given.pop(n, None) or by_place.pop(p, None) for n, p in zip((function, args, kwargs), places, strict=True)
        ]
        for rest in (*given.values(), *by_place.values()):
            calls.expressions.expression(rest)
        called, positional, named = found
        if called is None:
            return UNKNOWN
        elements = list(positional.elts) if isinstance(positional, ast.Tuple | ast.List) else []
        if positional is not None and not isinstance(positional, ast.Tuple | ast.List):
            elements = [ast.Starred(positional)]
        calls.bound_call(node, called, elements, [] if named is None else [ast.keyword(None, named)])
        return UNKNOWN

    return read


def as_lambda(calls: Calling, node: ast.expr, call: ast.Call) -> ast.expr:
    """`attrgetter("a.b")` is `lambda each: each.a.b`, `methodcaller("x", 1)` is `lambda each: each.x(1)` and
    `itemgetter(1)` is `lambda each: each[1]`; anything else is itself. call: what makes use of it."""
    if not calls.walk.has_getters:
        return node
    if isinstance(node, ast.Name):
        made = (calls.walk.holding(node.id) if calls.walk.is_local(node.id) else calls.walk.module).origins.get(node.id)
    else:
        made = node
    dotted = calls.walk.dotted(calls.annotations.chain(made.func)) if isinstance(made, ast.Call) else ""
    kind = dotted.removeprefix("operator.")
    if kind not in ("attrgetter", "itemgetter", "methodcaller") or not isinstance(made, ast.Call):
        return node
    names = made.args if kind != "methodcaller" else made.args[:1]
    read: list[ast.expr] = []
    for name in names:
        each: ast.expr = ast.Name("each", ast.Load())
        if kind == "itemgetter":
            read.append(ast.Subscript(each, name, ast.Load()))
            continue
        for part in constant_name(name).split("."):
            each = ast.Attribute(each, part, ast.Load())
            if not part.isidentifier():
                return node
        read.append(each)
    if kind == "methodcaller":
        read = [ast.Call(read[0], made.args[1:], made.keywords)]
    given = ast.arguments([], [ast.arg("each")], None, [], [], None, [])
    found = ast.Lambda(given, read[0] if len(read) == 1 else ast.Tuple(read, ast.Load()))
    for inner in (found.body, *(each for each in ast.walk(found.body) if not hasattr(each, "lineno"))):
        ast.copy_location(inner, call if isinstance(node, ast.Name) else node)
    return found


def with_elements(
    calls: Calling, node: ast.Call, function: ast.expr, given: Sequence[tuple[ast.expr, int]], *, sure: bool = True
) -> int:
    """A function that is called with values that stand nowhere: elements of these expressions. What it gives.
    sure: whether nothing else is passed."""
    function = as_lambda(calls, function, node)
    if isinstance(function, ast.Lambda):
        return calls.expressions.body_of(function, [value for _, value in given])[0]
    target = calls.expressions.expression(function, read=False)
    found = CallArguments()
    found.given = [(span_of(one), None, place, None, value, True) for place, (one, value) in enumerate(given)]
    found.partial = not sure
    if calls.walk.facts.nodes[target][0] != "partial":
        calls.emit_call(function, target, found)
    return calls.walk.step("call", target)


def elements(calls: Calling, nodes: Sequence[ast.expr]) -> list[tuple[ast.expr, int]]:
    """What looping over each of these gives."""
    return [(node, calls.expressions.loop_elements(node, False)) for node in nodes]


def over(
    place: int, source: int, count: int = 1, *, name: str = "", same: bool = True
) -> Callable[[Calling, ast.Call, int], int | None]:
    """Build the reader of a call that calls a function with elements of one argument: `filter(f, rows)`,
    `heapq.nlargest(1, rows, key=f)`. place: where the function stands; -1 if only by name. count: how many
    elements it is called with. same: whether the call gives the elements again."""

    def read(calls: Calling, node: ast.Call, target: int) -> int | None:
        named = next((one.value for one in node.keywords if one.arg == name), None) if name else None
        function = named or (node.args[place] if 0 <= place < len(node.args) else None)
        if len(node.args) <= source or any(isinstance(one, ast.Starred) for one in node.args):
            return None
        rows = node.args[source]
        held = calls.expressions.loop_elements(rows, False)
        others = [one for one in (*node.args, *(each.value for each in node.keywords)) if one not in (rows, function)]
        for other in others:
            calls.expressions.expression(other)
        if function is not None and not (isinstance(function, ast.Constant) and function.value is None):
            with_elements(calls, node, function, [(rows, held)] * count)
        return calls.walk.step("list", held) if same else UNKNOWN

    return read


def mapped(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`map(f, rows, others)`."""
    if len(node.args) < 2 or any(isinstance(one, ast.Starred) for one in node.args):
        return None
    given = elements(calls, node.args[1:])
    return calls.walk.step("list", with_elements(calls, node, node.args[0], given))


def pool_mapped(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`pool.map(f, rows)` of an executor or a pool of processes, as far as the file knows of such."""
    if not calls.walk.is_of_stranger(target) or not any(
        row[0] in ("import", "name") and str(row[1]).startswith(_POOLS) for row in calls.walk.facts.nodes
    ):
        return None
    for keyword in node.keywords:
        calls.expressions.expression(keyword.value)
    return mapped(calls, node, target)


def keyed(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`rows.sort(key=f)`."""
    key = next((one.value for one in node.keywords if one.arg == "key"), None)
    if key is None or node.args or not isinstance(node.func, ast.Attribute):
        return None
    rows = node.func.value
    value = calls.arguments.quiet_value(rows)
    if not calls.walk.is_of_stranger(target) and calls.walk.facts.nodes[value][0] != "list":
        return None
    for other in node.keywords:
        if other.arg != "key":
            calls.expressions.expression(other.value)
    with_elements(calls, node, key, [(rows, calls.walk.iterated(value))])
    return UNKNOWN


def starmapped(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`itertools.starmap(f, [(1, 2)])`: as many arguments as the tuples have that are written out."""
    if len(node.args) != 2:
        return None
    held = calls.expressions.loop_elements(node.args[1], False)
    rows = node.args[1].elts if isinstance(node.args[1], ast.List | ast.Tuple) else []
    shapes = {len(one.elts) if isinstance(one, ast.Tuple) else -1 for one in rows}
    size = shapes.pop() if len(shapes) == 1 else -1
    given = [(node.args[1], calls.walk.item(held, place)) for place in range(max(size, 0))]
    return calls.walk.step("list", with_elements(calls, node, node.args[0], given, sure=size >= 0))


# ------------------------------------------------------------------------------------------------- what comes later


def awaited(calls: Calling, node: ast.expr) -> int:
    """What somebody else gets who awaits this."""
    if isinstance(node, ast.List | ast.Set | ast.Tuple):  # several, one by one
        return calls.walk.step(
            "list", calls.walk.step("later", calls.walk.either([awaited(calls, e) for e in node.elts]))
        )
    inner = node.value if isinstance(node, ast.Starred) else node
    if isinstance(node, ast.Starred):
        return calls.walk.step("await", calls.walk.iterated(calls.expressions.expression(inner)))
    return calls.expressions.expression(ast.copy_location(ast.Await(inner), inner))


def gathered(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`asyncio.gather(f(), g())`."""
    values = [awaited(calls, one) for one in node.args]
    for keyword in node.keywords:
        calls.expressions.expression(keyword.value)
    if not any(calls.walk.hot[one] for one in values):
        return UNKNOWN
    if any(isinstance(one, ast.Starred) for one in node.args):
        return calls.walk.step("later", calls.walk.step("list", calls.walk.either(values)))
    return calls.walk.step("later", calls.walk.node("tuple", tuple(values)))


def scheduled(later: bool, of_stranger: bool = False) -> Callable[[Calling, ast.Call, int], int | None]:
    """Build the reader of a call that awaits its first argument: later, or before it gives its value."""

    def read(calls: Calling, node: ast.Call, target: int) -> int | None:
        if not node.args or (of_stranger and not calls.walk.is_of_stranger(target)):
            return None
        for other in (*node.args[1:], *(one.value for one in node.keywords)):
            calls.expressions.expression(other)
        value = awaited(calls, node.args[0])
        return calls.walk.step("later", value) if later else value

    return read


def entered(asynchronous: bool) -> Callable[[Calling, ast.Call, int], int | None]:
    """Build the reader of `stack.enter_context(x)`, or of its asynchronous form."""

    def read(calls: Calling, node: ast.Call, target: int) -> int | None:
        if len(node.args) != 1 or not calls.walk.is_of_stranger(target):
            return None
        value = calls.expressions.expression(node.args[0])
        calls.walk.emit("enter", node.args[0], value, awaited=asynchronous)
        found = calls.walk.step("enter", value, asynchronous)
        return calls.walk.step("later", found) if asynchronous else found

    return read


def defaulting(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`defaultdict(Worker)`: each value is made by a call without arguments."""
    if len(node.args) != 1 or node.keywords:
        return None
    return calls.walk.step("dict", with_elements(calls, node, node.args[0], ()))


def made_by_default(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`field(default_factory=dict)`: what the factory gives."""
    made = [one.value for one in node.keywords if one.arg == "default_factory"]
    if len(made) != 1:
        return None
    for other in (*node.args, *(one.value for one in node.keywords if one.arg != "default_factory")):
        calls.expressions.expression(other)
    value = with_elements(calls, node, made[0], ())
    return calls.walk.node("documented", value, "a field has it by default") if value > UNKNOWN else UNKNOWN


def resulting(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`future.result()`, `pending.get()`."""
    assert isinstance(node.func, ast.Attribute)
    value = calls.arguments.quiet_value(node.func.value)
    if calls.walk.facts.nodes[value][0] != "later":
        return None
    return calls.walk.step("await", value)


def chained(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`itertools.chain(rows, others)`, `chain.from_iterable(lists)`."""
    held = calls.walk.either(value for _, value in elements(calls, node.args))
    of_lists = calls.walk.dotted(target).endswith("from_iterable")
    return calls.walk.step("list", calls.walk.iterated(held) if of_lists else held)


def pushed(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`heapq.heappush(heap, x)`."""
    if len(node.args) == 2:
        put(calls.walk, node.args[0], "[]", calls.arguments.quiet_value(node.args[1]))
    return None


def taken_out(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`heapq.heappop(heap)`."""
    return calls.walk.item(calls.expressions.expression(node.args[0]), None) if len(node.args) == 1 else None


def waited(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`done, pending = wait(futures)`."""
    if not node.args:
        return None
    held = calls.walk.step("list", calls.expressions.loop_elements(node.args[0], False))
    for other in (*node.args[1:], *(one.value for one in node.keywords)):
        calls.expressions.expression(other)
    return calls.walk.node("tuple", (held, held)) if held > UNKNOWN else UNKNOWN


def record(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`Event = namedtuple("Event", "name at")`: a class, whose fields its calls fill."""
    calls.expressions.children(node, True)
    name = constant_name(node.args[0]) if len(node.args) == 2 else ""
    entries = getattr(node.args[1], "elts", []) if name else []
    pairs = [each.elts for each in entries if isinstance(each, ast.Tuple) and len(each.elts) == 2]
    fields = {constant_name(first): calls.annotations.annotation(second) for first, second in pairs}
    words = [each.value for each in entries if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    words += constant_name(node.args[1]).replace(",", " ").split() if name else []
    fields.update(dict.fromkeys(words, UNKNOWN))
    if not fields:
        return UNKNOWN
    classes = calls.walk.facts.classes
    qualname = name if classes.get(name) is None or classes[name].line == node.lineno else f"{name}#{node.lineno}"
    base = calls.walk.node("name", "typing.NamedTuple")
    classes[qualname] = ClassFacts((base,), annotations=fields, line=node.lineno, end_line=node.lineno)
    return calls.walk.node("own", qualname)


def namespace(calls: Calling, node: ast.Call, target: int) -> int | None:
    """`SimpleNamespace(engine=engine)`: an object of a class of its own, with these attributes."""
    qualname = f"SimpleNamespace#{node.lineno}:{node.col_offset}"
    facts = ClassFacts((), line=node.lineno, end_line=node.lineno)
    for keyword in node.keywords:
        value = calls.expressions.expression(keyword.value)
        if keyword.arg is not None:
            facts.attributes[keyword.arg] = [value]
    calls.walk.facts.classes[qualname] = facts
    return calls.walk.node("instance", calls.walk.node("own", qualname))


WRAPPERS: dict[str, Callable[[Calling, ast.Call, int], int | None]] = {
    "asyncio.as_completed": scheduled(later=False),
    "asyncio.create_task": scheduled(later=True),
    "asyncio.ensure_future": scheduled(later=True),
    "asyncio.gather": gathered,
    "asyncio.run": scheduled(later=False),
    "asyncio.run_coroutine_threadsafe": scheduled(later=True),
    "asyncio.shield": scheduled(later=True),
    "asyncio.to_thread": handing(0, "later", keywords=True),
    "asyncio.wait_for": scheduled(later=True),
    "atexit.register": handing(0, keywords=True),
    "collections.defaultdict": defaulting,
    "collections.deque": over(-1, 0),
    "collections.namedtuple": record,
    "concurrent.futures.as_completed": over(-1, 0),
    "concurrent.futures.wait": waited,
    "dataclasses.field": made_by_default,
    "functools.partial": handing(0, "partial", keywords=True),
    "functools.partialmethod": handing(0, "partial", keywords=True),
    "functools.reduce": over(0, 1, count=2, same=False),
    "heapq.heappop": taken_out,
    "heapq.heappush": pushed,
    "heapq.nlargest": over(2, 1, name="key"),
    "heapq.nsmallest": over(2, 1, name="key"),
    "itertools.accumulate": over(1, 0, count=2, name="func", same=False),
    "itertools.chain": chained,
    "itertools.chain.from_iterable": chained,
    "itertools.cycle": over(-1, 0),
    "itertools.dropwhile": over(0, 1),
    "itertools.filterfalse": over(0, 1),
    "itertools.groupby": over(1, 0, name="key", same=False),
    "itertools.islice": over(-1, 0),
    "itertools.starmap": starmapped,
    "itertools.takewhile": over(0, 1),
    "multiprocessing.Process": by_name("target", "args", "kwargs", (1, 3, 4)),
    "threading.Thread": by_name("target", "args", "kwargs", (1, 3, 4)),
    **dict.fromkeys(("argparse.Namespace", "types.SimpleNamespace"), namespace),
    "threading.Timer": by_name("function", "args", "kwargs", (1, 2, 3)),
    "typing.NamedTuple": record,
    "weakref.finalize": handing(1, keywords=True),
}
"""By dotted path."""
METHODS: dict[str, Callable[[Calling, ast.Call, int], int | None]] = {
    "call_at": handing(1, of_stranger=True),
    "call_later": handing(1, of_stranger=True),
    "call_soon": handing(0, of_stranger=True),
    "call_soon_threadsafe": handing(0, of_stranger=True),
    "callback": handing(0, of_stranger=True, keywords=True),
    "create_task": scheduled(later=True, of_stranger=True),
    "enter_async_context": entered(asynchronous=True),
    "enter_context": entered(asynchronous=False),
    "imap": pool_mapped,
    "imap_unordered": pool_mapped,
    "map": pool_mapped,
    "result": resulting,
    "run_in_executor": handing(1, "later", of_stranger=True),
    "run_until_complete": scheduled(later=False, of_stranger=True),
    "sort": keyed,
    "submit": handing(0, "later", of_stranger=True, keywords=True),
}
"""By name of a method, whosever it is."""
