"""Paths on which something is missing: a name that only one branch sets, a handler that reads what failed to be set, an
attribute that is read before it is set."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, parameters
from tooling.review.records import Place, Rule, Severity
from tooling.review.rules.conditions import blocks, stored
from tooling.review.rules.inheritance import inherited
from tooling.review.rules.members import FOREIGN, is_self_read
from tooling.review.rules.outcomes import first_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.module import Module
    from tooling.review.repository.side import Side

_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_MAY_RAISE: Final = (ast.Await, ast.Call, ast.Subscript)


def set_in_a_branch(module: Module, _side: Side) -> Iterator[Place]:
    """Find a name that a lone `if` sets, read in a line behind it that always runs."""
    for block in blocks(module):
        for at, node in enumerate(block):
            alone = isinstance(node, ast.If) and not node.orelse and not isinstance(node.body[-1], _LEAVES)
            function = module.function_of(node) if alone else None
            if not isinstance(node, ast.If) or not isinstance(function, Function):
                continue
            if any(isinstance(each, (*_LOOPS, ast.Try)) for each in module.around(node)):
                continue  # an earlier round may have set it
            # `if not isinstance(masks := m, dict): masks = make(m)` sets it either way.
            in_test = {each.target.id for each in ast.walk(node.test) if isinstance(each, ast.NamedExpr)}
            for name in sorted(_assigned(node.body) - in_test):
                read = first_read(module, block[at + 1 :], name)
                if read is not None and name not in _known_before(function, node):
                    said = f"`{name}` is set only where `{ast.unparse(node.test)[:60]}`, and read where it is not"
                    line = next(each.lineno for each in node.body if name in _assigned([each]))
                    yield Place(module.path, line, said, f"{module.path}:{read.lineno}")


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


def unbound_in_handler(module: Module, _side: Side) -> Iterator[Place]:
    """Find a name that the `try` sets, read in the handler for whatever went wrong, setting it included."""
    for node in module.nodes(ast.Try):
        function = module.function_of(node)
        if not isinstance(function, Function):
            continue
        known = _known_before(function, node)
        for at, statement in enumerate(node.body):
            names = _assigned([statement]) - known
            # The first of many statements is seldom what fails, as authors of handlers know.
            before = node.body[:at] if len(node.body) > 1 else [statement]
            risky = any(isinstance(each, _MAY_RAISE) for one in before for each in ast.walk(one))
            for handler in node.handlers if names and risky else ():
                kind = last_name(handler.type) if handler.type is not None else "Exception"
                if kind not in {"BaseException", "Exception"} and statement is not node.body[-1]:
                    continue
                used = [each for one in handler.body for each in ast.walk(one) if isinstance(each, ast.Name)]
                again = {each.id for each in used if isinstance(each.ctx, ast.Store)}
                asked = any(each.id in {"locals", "vars"} for each in used)
                for each in used:
                    # In a branch, a flag may say that it is set; a function made here has names of its own.
                    inside = [each, *module.around(each, node)]
                    caught = any(isinstance(one, ast.Try) and one is not node for one in module.around(each))
                    caught |= any(_is_branch(one, inside) for one in inside)
                    caught |= module.function_of(each) is not function
                    if each.id in names - again and not asked and not caught:
                        names.discard(each.id)
                        said = f"`{each.id}` is not set where setting it is what failed"
                        yield Place(module.path, each.lineno, said)
            known |= _assigned([statement])


def _is_branch(node: ast.AST, inside: list[ast.AST]) -> bool:
    """Whether one of the nodes inside of it is reached only where it asks for something that holds."""
    if isinstance(node, ast.If | ast.IfExp):
        return node.test not in inside
    return isinstance(node, ast.match_case) or (isinstance(node, ast.BoolOp) and node.values[0] not in inside)


def read_before_set(module: Module, side: Side) -> Iterator[Place]:
    """Find `self.x` in `__init__` above the line that sets it, where nothing else does."""
    for owner in module.nodes(ast.ClassDef):
        made = [each for each in owner.body if isinstance(each, Function) and each.name == "__init__"]
        own = {each.name for each in owner.body if isinstance(each, Function | ast.ClassDef)}
        others = (node for each in owner.body if each not in made for node in ast.walk(each))
        stores = (each for each in others if isinstance(each, ast.Name | ast.Attribute))
        own |= {last_name(each) for each in stores if isinstance(each.ctx, ast.Store)}
        if len(made) != 1 or {"__getattr__", "__getattribute__"} & own:
            continue
        first: dict[str, int] = {}
        for at, statement in enumerate(made[0].body):
            for name in stored([statement]):
                first.setdefault(name, at)
            for call in (each for each in ast.walk(statement) if isinstance(each, ast.Call)):
                registers = is_self_read(call.func) and last_name(call.func).startswith(("add_module", "register_"))
                if registers and call.args and isinstance(call.args[0], ast.Constant):
                    first.setdefault(f"self.{call.args[0].value!s}", -1)
        for at, statement in enumerate(made[0].body):
            if any(map(_opens_self, ast.walk(statement))):
                break
            for node in (each for each in ast.walk(statement) if isinstance(each, ast.Attribute)):
                name = ast.unparse(node) if is_self_read(node) else ""
                # A lambda reads later, and in a `try` it may be missing.
                later = any(isinstance(each, ast.Lambda | ast.Try) for each in module.around(node))
                later |= module.function_of(node) is not made[0]
                late = first.get(name, 0) > at and last_name(node) not in own and not later
                late &= not last_name(node).startswith("__")
                if not late or _may_inherit(module, side, owner, last_name(node)):
                    continue
                yield Place(module.path, node.lineno, f"`{name}` is read before `__init__` sets it")
                first.pop(name)


def _opens_self(node: ast.AST) -> bool:
    """Whether others may set attributes from here on: `configure(self)`, `setattr(self, k, v)`, `self.__dict__`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__dict__"
    given = [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else []
    return any(isinstance(each, ast.Name) and each.id == "self" for each in given)


def _may_inherit(module: Module, side: Side, owner: ast.ClassDef, name: str) -> bool:
    """Whether a base sets an attribute, or may do so."""
    classes, foreign = side.lineage(module, owner)
    if any(each.keywords or each.decorator_list for _, each in classes):
        return True
    if any(inherited(side, module, owner, each) for each in (name, "__getattr__", "__getattribute__")):
        return True
    return any(name in FOREIGN.get(each, {name}) for each in foreign)


RULES: Final = (
    Rule("set-in-a-branch", Severity.HIGH, in_tests=False, in_file=set_in_a_branch),
    Rule("unbound-in-handler", Severity.HIGH, in_file=unbound_in_handler),
    Rule("read-before-set", Severity.HIGH, in_file=read_before_set),
)
