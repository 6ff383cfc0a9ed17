"""Code around what became asynchronous, or no longer is: `await`, `async for`, `async with`, `anext`.

engine.stop()                ->  await engine.stop()
next(chunks)                 ->  await anext(chunks)
for each in up.stream():     ->  async for each in up.stream():
with up.session() as other:  ->  async with up.session() as other:
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import libcst

from tooling.upgrade.fixes.source import LeftAloneError, called, place

if TYPE_CHECKING:
    from tooling.upgrade.findings import AuditFinding
    from tooling.upgrade.fixes.source import EditableSource


def change_protocol(source: EditableSource, finding: AuditFinding) -> None:
    """Write what the finding says to write, or take it away; where that needs a coroutine, only inside of one."""
    words = finding.instead.split(" ")
    if words[-1] in ("anext(...)", "next(...)"):
        _ask_next(source, finding, to_async=words[0] == "await")
    elif words[0] in ("async", "for", "with"):
        _turn_statement(source, finding, to_async=words[0] == "async")
    else:
        _await_call(source, finding)


def _await_call(source: EditableSource, finding: AuditFinding) -> None:
    call = called(source, finding)
    outer = source.parents.get(call)
    if not finding.instead.startswith("await "):
        if not isinstance(outer, libcst.Await):
            raise LeftAloneError("it is not awaited at this place")
        source.put(source.span(outer)[0], source.whole_span(call)[0], "")
        return
    _need_coroutine(source, call)
    start, end = source.span(call)
    plain = isinstance(outer, libcst.Expr | libcst.Return | libcst.Assign | libcst.AnnAssign | libcst.Arg)
    source.put(start, start, "await " if plain else "(await ")
    if not plain:
        source.append(end, ")")


def _turn_statement(source: EditableSource, finding: AuditFinding, *, to_async: bool) -> None:
    """Put `async` before the loop or the `with` whose expression begins at the place, or take it away."""
    for node in source.nodes(libcst.For, libcst.CompFor, libcst.With):
        items = [each.item for each in node.items] if isinstance(node, libcst.With) else [node.iter]
        if all(place(finding) not in (source.start(each), _member(source, each)) for each in items):
            continue
        if len(items) > 1:
            raise LeftAloneError("other contexts are entered by the same statement")
        if to_async is (node.asynchronous is not None):
            continue
        if isinstance(source.parents[node], libcst.GeneratorExp):
            raise LeftAloneError("a generator would become an asynchronous one: who loops over it would change with it")
        if not to_async:
            start = source.span(node.asynchronous)[0]
            source.put(start, start + len("async "), "")
            return
        _need_coroutine(source, node)
        start = source.span(node)[0]
        if isinstance(node, libcst.CompFor):  # its range begins with the blanks before it
            start = source.data.rindex(b"for", start, source.whole_span(node.target)[0])
        source.put(start, start, "async ")
        return
    raise LeftAloneError("no statement that could change stands at this place")


def _member(source: EditableSource, node: Any) -> tuple[int, int]:
    """Where the name of the called member begins: `engine.stream(...)` is reported there, or where it begins."""
    function = getattr(node, "func", node)
    return source.start(getattr(function, "attr", function))


def _ask_next(source: EditableSource, finding: AuditFinding, *, to_async: bool) -> None:
    """`next(it)` -> `await anext(it)`, or back."""
    for call in source.nodes(libcst.Call):
        given = call.args[0].value if call.args else None
        name = getattr(call.func, "value", "")
        if given is None or name != ("next" if to_async else "anext"):
            continue
        if place(finding) not in (source.start(call), source.start(given), _member(source, given)):
            continue
        if to_async:
            _need_coroutine(source, call)
            source.put(*source.span(call.func), "(await anext")
            source.append(source.span(call)[1], ")")
            return
        outer = source.parents[call]
        if isinstance(outer, libcst.Await):
            source.put(source.span(outer)[0], source.span(call.func)[1], "next")
            return
    raise LeftAloneError("the next element is not asked for at this place")


def _need_coroutine(source: EditableSource, node: Any) -> None:
    """Raise LeftAloneError where a node is not run by an asynchronous function: in a lambda, a generator, a class, or
    in defaults and decorators, which are run by what is around the function."""
    for inner, each in pairwise([node, *source.around(node)]):
        if isinstance(each, libcst.Lambda | libcst.GeneratorExp | libcst.ClassDef):
            break
        if isinstance(each, libcst.FunctionDef) and inner is each.body:
            if each.asynchronous is None:
                break
            return
    raise LeftAloneError("what is around it is not asynchronous: its callers would have to change with it")
