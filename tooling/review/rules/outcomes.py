"""What comes out of a function, and of each path through it: results that are not there, tuples of another length,
names that a branch or a handler leaves unset, exceptions that are returned."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity
from tooling.review.rules.members import subclasses
from tooling.review.rules.readings import LEAVES, blocks, is_local, reached, stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_ENDS: Final = re.compile(
    r"exit|abort|fail|skip|die|usage|error$|raise|throw|give_?up|quit|fatal|panic|bail|reject|exec[lv]", re.IGNORECASE
)
"""Names of functions that may not come back."""


def result_of_nothing(module: Module, side: Side) -> Iterator[Hit]:
    """Find `x = f()` where no path of `f` returns a value."""
    for node in module.nodes(ast.Assign):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        target = plain_target(module, side, call) if isinstance(call, ast.Call) else None
        if (
            not isinstance(call, ast.Call)
            or target is None
            or isinstance(target, ast.AsyncFunctionDef) != isinstance(node.value, ast.Await)
        ):
            continue
        if not any(map(_gives, own_nodes(target))) and not _may_be_replaced(module, side, call):
            yield node, f"`{ast.unparse(call.func)}` returns nothing"


def unpack_mismatch(module: Module, side: Side) -> Iterator[Hit]:
    """Find `a, b = f()` where every `return` of `f` has another number of values, and `for a, b in f()` of a generator,
    or of an object of ours whose items have."""
    rows: list[tuple[ast.expr, ast.expr, bool]] = [
        (each.targets[0], each.value, False) for each in module.nodes(ast.Assign)
    ]
    loops = list(module.nodes(ast.For, ast.comprehension))
    rows += [(each.target, each.iter, True) for each in loops]
    for names, given_by, looped in rows:
        value = given_by.value if isinstance(given_by, ast.Await) else given_by
        if not isinstance(names, ast.Tuple | ast.List) or any(isinstance(each, ast.Starred) for each in names.elts):
            continue
        call = _made_by(module, value) if isinstance(value, ast.Name) and looped else value
        if not isinstance(call, ast.Call):
            continue
        target, kind = plain_target(module, side, call), ast.Yield if looped else ast.Return
        if looped and target is None:
            target, kind = _item_of(module, side, call), ast.Return
        inside = own_nodes(target) if target is not None else []
        given = [each.value for each in inside if isinstance(each, kind)]
        tuples = [each.elts for each in given if isinstance(each, ast.Tuple)]
        if len(tuples) < len(given) or any(isinstance(each, ast.Starred) for elts in tuples for each in elts):
            continue
        sizes = set(map(len, tuples))
        other = any(isinstance(each, ast.YieldFrom if looped else ast.Yield | ast.YieldFrom) for each in inside)
        if sizes and len(names.elts) not in sizes and not other and not _may_be_replaced(module, side, call):
            said = f"`{ast.unparse(call.func)}` {'gives' if looped else 'returns'} {max(sizes)} values"
            yield names, f"{said}, {len(names.elts)} are unpacked"


def _made_by(module: Module, name: ast.Name) -> ast.Call | None:
    """Return the only call that gives a local its value."""
    function = module.function_of(name)
    stores = own_nodes(function, ast.Name)
    stores = [each for each in stores if each.id == name.id and isinstance(each.ctx, ast.Store)]
    made = module.parents.get(stores[0]) if len(stores) == 1 else None
    return made.value if isinstance(made, ast.Assign) and isinstance(made.value, ast.Call) else None


def _item_of(module: Module, side: Side, call: ast.Call) -> Function | None:
    """Return `__getitem__` of the class of ours that a call makes an object of, if its loops go by that."""
    found = side.named(module, call.func.id) if isinstance(call.func, ast.Name) else None
    if found is None or not isinstance(found[1], ast.ClassDef) or is_local(module, call, found[1].name):
        return None
    methods = {each.name: each for each in found[1].body if isinstance(each, Function)}
    return methods.get("__getitem__") if "__iter__" not in methods else None


def plain_target(module: Module, side: Side, call: ast.Call) -> Function | None:
    """Return the function of ours, or the method of the same class, that a call reaches for certain; None for stubs,
    and decorated functions."""
    target = reached(module, side, call)
    if target is None or target.decorator_list:
        return None
    stub = all(isinstance(each, ast.Pass | ast.Raise | ast.Expr) for each in target.body)
    return None if stub else target


def _may_be_replaced(module: Module, side: Side, call: ast.Call) -> bool:
    """Whether `self.method()` may reach a method of a subclass which returns something."""
    owner = next((each for each in module.around(call) if isinstance(each, ast.ClassDef)), None)
    if owner is None or not isinstance(call.func, ast.Attribute):
        return False
    methods = (each for _, below in subclasses(side, owner.name) for each in below.body if isinstance(each, Function))
    return any(each.name == call.func.attr and any(map(_gives, own_nodes(each))) for each in methods)


def _gives(node: ast.AST) -> bool:
    """Whether a node hands a value to the caller."""
    return isinstance(node, ast.Yield | ast.YieldFrom) or (isinstance(node, ast.Return) and node.value is not None)


def unbound_after_except(module: Module, side: Side) -> Iterator[Hit]:
    """Find a name that only the `try` sets, read after a handler that goes on without it."""
    for block in blocks(module):
        for at, node in enumerate(block):
            handlers = node.handlers if isinstance(node, ast.Try) and not node.finalbody else []
            going_on = [each for each in handlers if _goes_on(module, side, each)]
            if not isinstance(node, ast.Try) or not going_on:
                continue
            # What an earlier statement sets is there when the last one fails, as authors of handlers know.
            silent = [each for each in going_on if isinstance(each.body[0], ast.Pass)]
            body = [each for one in node.body for each in (one, *own_nodes(one))] if silent else node.body[-1:]
            names = stored(each for each in body if isinstance(each, ast.Assign))
            names -= {each for handler in going_on for each in stored(handler.body)}
            inside = (each for handler in going_on for one in handler.body for each in ast.walk(one))
            names -= {each.asname or each.name for each in inside if isinstance(each, ast.alias)}
            function = module.function_of(node)
            around = own_nodes(function) if function is not None else []
            names -= set(parameters(function)) if function is not None else set()
            names -= {name for each in around if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
            for name in sorted(names) if around else ():
                uses = [each for each in around if isinstance(each, ast.Name) and each.id == name]
                inner = [each for each in around if isinstance(each, Function) and name not in module.shadowing[each]]
                uses += [each for each in nodes_in(inner, ast.Name) if each.id == name]
                before = any(each.lineno < node.lineno and isinstance(each.ctx, ast.Store) for each in uses)
                read = first_read(module, block[at + 1 :], name) if uses and not before else None
                if read is not None:
                    yield read, f"`{name}` is not set where the `except` above went on"
                elif silent and any(_read_anyway(module, each, node, uses) for each in uses):
                    yield silent[0], f"`{name}` is read below, and not set where this goes on"


def _read_anyway(module: Module, name: ast.Name, attempt: ast.Try, uses: list[ast.Name]) -> bool:
    """Whether a name that only a `try` sets is read behind it, whatever happened: nothing decides if it is."""
    tried = range(attempt.lineno, (attempt.end_lineno or 0) + 1)
    if name.lineno < tried.stop or any(each.lineno not in tried and isinstance(each.ctx, ast.Store) for each in uses):
        return False
    for each in module.around(name, module.parents[attempt]):
        if isinstance(each, ast.BoolOp | ast.IfExp) or (isinstance(each, ast.If) and name not in ast.walk(each.test)):
            return False
        caught = [ast.unparse(one.type) if one.type else "Exception" for one in getattr(each, "handlers", ())]
        if any(re.search(r"\b(?:Base)?Exception|NameError", one) for one in caught):
            return False
    return True


def _goes_on(module: Module, side: Side, handler: ast.ExceptHandler) -> bool:
    """Whether what follows the `try` is reached from a handler."""
    ends = (ast.Return, ast.Raise, ast.Continue, ast.Break)
    nodes = [each for one in handler.body for each in ast.walk(one)]
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    if any(isinstance(each, ends) for each in nodes) or any(_ENDS.search(last_name(each.func)) for each in calls):
        return False
    called = (reached(module, side, each) for each in calls)
    return not any(each is not None and _only_raises(each) for each in called)


def _only_raises(function: Function) -> bool:
    """Whether a function never comes back: it says so, or its last statement raises and no other one returns."""
    promised = function.returns is not None and last_name(function.returns) in {"NoReturn", "Never"}
    returns = any(isinstance(each, ast.Return | ast.Yield) for each in own_nodes(function))
    return promised or (isinstance(function.body[-1], ast.Raise) and not returns)


def first_read(module: Module, following: list[ast.stmt], name: str) -> ast.Name | None:
    """Return the first use of a name in straight-line code, if it is a read that happens for certain.

    `rows if ok else None` reads only where a flag says that it is there; in `lambda rows: rows` it is another name.
    """
    perhaps = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for statement in following:
        if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return):
            return None
        uses = [each for each in nodes_in(statement, ast.Name) if each.id == name]
        for each in uses:
            certain = not any(isinstance(one, perhaps) for one in module.around(each))
            if certain and isinstance(each.ctx, ast.Load):
                return each
        if uses:
            return None
    return None


_ABOUT_ERRORS: Final = re.compile(r"err|exc|fail|raise|type|class", re.IGNORECASE)


def error_returned(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `return NotImplementedError(...)`, but for functions whose result is an exception, as their names say."""
    for node in module.nodes(ast.Return):
        made = node.value.func if isinstance(node.value, ast.Call) else node.value
        function = module.function_of(node)
        meant = isinstance(function, Function) and _ABOUT_ERRORS.search(function.name)
        if made is not None and last_name(made) == "NotImplementedError" and not meant:
            yield node, "`NotImplementedError` is returned, and not raised"


_SINGLE: Final = {bool, float, int}


def returns_differ(module: Module, side: Side) -> Iterator[Hit]:
    """Find `return False` in a function whose other paths return several values, and which says that it returns a
    tuple or has a caller that unpacks one. Other callers may well ask which of the two they got."""
    for function in module.functions():
        inside = own_nodes(function)
        given = [each for each in inside if isinstance(each, ast.Return)]
        tuples = [each.value.elts for each in given if isinstance(each.value, ast.Tuple)]
        single = [each for each in given if isinstance(each.value, ast.Constant) and type(each.value.value) in _SINGLE]
        nothing = [each for each in given if each.value is None]
        scores = [each for each in single if isinstance(each.value, ast.Constant) and type(each.value.value) is float]
        if len(scores) == 1 and len(nothing) == len(given) - 1 > 0:
            yield scores[0], f"`{ast.unparse(scores[0])}`: `{function.name}` returns nothing elsewhere"
        if not single or not tuples or len(single) + len(tuples) < len(given) or len(set(map(len, tuples))) > 1:
            continue
        starred = any(isinstance(each, ast.Starred) for elts in tuples for each in elts)
        if starred or len(tuples[0]) < 2 or any(isinstance(each, ast.Yield | ast.YieldFrom) for each in inside):
            continue
        promised = isinstance(function.returns, ast.Subscript) and last_name(function.returns.value).lower() == "tuple"
        if promised or (function.returns is None and _is_unpacked(side, function)):
            for each in single:
                said = f"`{function.name}` returns {len(tuples[0])} values elsewhere"
                yield each, f"`{ast.unparse(each)}`: {said}"


def _is_unpacked(side: Side, function: Function) -> bool:
    """Whether there is `a, b = f(...)` of a function or method somewhere."""
    for path in side.grep([function.name], "*.py"):
        module = side.module(path)
        for node in module.nodes(ast.Assign) if module is not None else ():
            call = node.value.value if isinstance(node.value, ast.Await) else node.value
            if module is None or not isinstance(node.targets[0], ast.Tuple) or not isinstance(call, ast.Call):
                continue
            if last_name(call.func) == function.name and reached(module, side, call) is function:
                return True
    return False


_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)


def set_in_a_branch(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a name that a lone `if` sets, read in a line behind it that always runs."""
    for block in blocks(module):
        for at, node in enumerate(block):
            alone = isinstance(node, ast.If) and not node.orelse and not isinstance(node.body[-1], LEAVES)
            function = module.function_of(node) if alone else None
            if not isinstance(node, ast.If) or not isinstance(function, Function):
                continue
            if any(isinstance(each, (*_LOOPS, ast.Try)) for each in module.around(node)):
                continue  # an earlier round may have set it
            # `if not isinstance(masks := m, dict): masks = make(m)` sets it either way.
            in_test = {each.target.id for each in nodes_in(node.test, ast.NamedExpr)}
            for name in sorted(_assigned(node.body) - in_test):
                read = first_read(module, block[at + 1 :], name)
                if read is not None and name not in _known_before(function, node):
                    said = f"`{name}` is set only where `{ast.unparse(node.test)[:60]}`, and read where it is not"
                    line = next(each.lineno for each in node.body if name in _assigned([each]))
                    yield line, said, read


def _assigned(body: Iterable[ast.stmt]) -> set[str]:
    """Return the plain names that statements of one block assign."""
    targets = (target for each in body if isinstance(each, ast.Assign) for target in each.targets)
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _known_before(function: Function, node: ast.stmt) -> set[str]:
    """Return the names that something above a statement may have bound, or that are shared with others."""
    found = set(parameters(function))
    for each in ast.walk(function):
        if isinstance(each, ast.Global | ast.Nonlocal):
            found.update(each.names)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.lineno < node.lineno:
            found.add(each.id)
        elif isinstance(each, ast.alias):
            found.add(each.asname or each.name.partition(".")[0])
        elif isinstance(each, Function | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            found.update([each.name] if each.name else ())
        elif isinstance(each, ast.MatchMapping) and each.rest:
            found.add(each.rest)
    return found


RULES: Final = (
    Rule("returns-differ", Severity.HIGH, in_file=returns_differ),
    Rule("result-of-nothing", Severity.HIGH, in_file=result_of_nothing),
    Rule("unpack-mismatch", Severity.HIGH, in_file=unpack_mismatch),
    Rule("unbound-after-except", Severity.HIGH, in_file=unbound_after_except),
    Rule("error-returned", Severity.HIGH, in_file=error_returned),
    Rule("set-in-a-branch", Severity.HIGH, in_tests=False, in_file=set_in_a_branch),
)
