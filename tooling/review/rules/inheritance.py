"""Classes and their bases: attributes that nobody sets any more, checks of another attribute than the one that is set,
lists that extend those of the wrong base."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, names_in, nodes_in, own_nodes, parameters
from tooling.review.records import Place, Rule, Severity
from tooling.review.rules.members import is_self_read, members_of, subclasses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side


def no_longer_set(comparison: Comparison) -> Iterator[Place]:
    """Find `self.name` in a class that set it before the change, and does not now."""
    for file, before, after in comparison.modified():
        old = {each.name: each for each in before.nodes(ast.ClassDef)}
        for owner in after.nodes(ast.ClassDef):
            gone = _set_by(old[owner.name]) - _set_by(owner) if owner.name in old else set()
            # A base that cannot be read may set it.
            members = members_of(comparison.head, after, owner) if gone else None
            if members is None:
                continue
            reads = {each.attr: each for each in nodes_in(owner, ast.Attribute) if is_self_read(each)}
            for name in sorted(gone.intersection(reads) - members):
                asked = name.startswith("__") or any(each.value == name for each in after.nodes(ast.Constant))
                if not asked and not _set_below(comparison, owner, name):
                    said = f"`{owner.name}` set `self.{name}` before this change, and does not now"
                    yield Place(file.path, reads[name].lineno, said)


def _set_by(owner: ast.ClassDef) -> set[str]:
    """Return the names that a class binds anywhere in its body, or sets on self."""
    stored = [each for each in nodes_in(owner, ast.Attribute) if isinstance(each.ctx, ast.Store)]
    names = {each.attr for each in stored if last_name(each.value) == "self"}
    for node in own_nodes(owner):
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
    return names


def inherited(side: Side, module: Module, owner: ast.ClassDef, name: str) -> bool:
    """Whether a base of ours sets a name; bases that cannot be read count for nothing."""
    return any(name in _set_by(each) for _, each in side.lineage(module, owner)[0][1:])


def _set_below(comparison: Comparison, owner: ast.ClassDef, name: str) -> bool:
    """Whether a class that builds on this one, or anybody from outside, sets the name."""
    if any(name in _set_by(each) for _, each in subclasses(comparison.head, owner.name)):
        return True
    for path in comparison.head.grep([name], "*.py"):
        module = comparison.head.module(path)
        stores = (each for each in (module.nodes(ast.Attribute) if module is not None else ()) if each.attr == name)
        if any(isinstance(each.ctx, ast.Store) and last_name(each.value) != "self" for each in stores):
            return True
    return False


def parameter_ignored(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a method that leaves a parameter out which the same method of all its siblings in the file uses."""
    alike: dict[tuple[str, str], list[tuple[ast.ClassDef, Function]]] = {}
    for owner in module.nodes(ast.ClassDef):
        for method in (each for each in owner.body if isinstance(each, Function) and not each.name.startswith("__")):
            long = any(not isinstance(each, ast.Pass | ast.Raise | ast.Return) for each in method.body[1:])
            for base in owner.bases if long else ():
                alike.setdefault((ast.unparse(base), method.name), []).append((owner, method))
    for (_, name), methods in alike.items():
        used = {method: names_in(method) for _, method in methods}
        for parameter in sorted({each.arg for each in methods[0][1].args.args} - {"self", "cls"}):
            taking = [(owner, each) for owner, each in methods if parameter in parameters(each)]
            idle = [(owner, each) for owner, each in taking if not {parameter, "locals", "super"} & used[each]]
            if len(idle) == 1 and len(taking) > _SIBLINGS and not parameter.startswith("_"):
                said = f"`{idle[0][0].name}.{name}` ignores `{parameter}`, which {len(taking) - 1} siblings use"
                yield idle[0][1], said


def sync_override(module: Module, side: Side) -> Iterator[Hit]:
    """Find a plain method in place of a coroutine of its base, which callers await."""
    for owner in module.nodes(ast.ClassDef):
        for method in owner.body:
            if not isinstance(method, ast.FunctionDef) or method.decorator_list:
                continue
            above = _overridden(side, module, owner, method.name)
            inside = own_nodes(method) if isinstance(above, ast.AsyncFunctionDef) else []
            given = [each.value for each in inside if isinstance(each, ast.Return) and each.value is not None]
            # What a call returns may be awaited too, and so may what a table holds.
            parts = (part for each in given for part in ast.walk(each))
            plain = not any(isinstance(each, ast.Call | ast.Name | ast.Attribute) for each in parts)
            if inside and plain and not any(isinstance(each, ast.Yield | ast.YieldFrom | ast.Raise) for each in inside):
                yield method, f"`{owner.name}.{method.name}` is not a coroutine; that of its base is one"


def _overridden(side: Side, module: Module, owner: ast.ClassDef, name: str) -> Function | None:
    """Return the method of the nearest base of ours that a method replaces."""
    for _, base in side.lineage(module, owner)[0][1:]:
        found = [each for each in base.body if isinstance(each, Function) and each.name == name]
        if found:
            return found[-1] if not any(last_name(each) == "property" for each in found[-1].decorator_list) else None
    return None


_SIBLINGS: Final = 3
"""Methods that use a parameter, from which one that does not is odd."""


def super_without_self(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `super()` in a static method: it takes the first parameter for the object, and there may be none."""
    for call in module.nodes(ast.Call):
        function = module.function_of(call)
        if not isinstance(call.func, ast.Name) or call.func.id != "super" or call.args or call.keywords:
            continue
        if not isinstance(function, Function) or module.class_of(function) is None or function.name == "__new__":
            continue
        first = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][:1]
        # One that is called `Base.method(self, ...)` gives it an object.
        static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
        if static and first not in (["cls"], ["self"]):
            took = f"takes `{first[0]}` for the object" if first else "finds no object"
            yield call, f"`{function.name}` is static: `super()` {took}"


RULES: Final = (
    Rule("super-without-self", Severity.HIGH, in_file=super_without_self),
    Rule("attribute-no-longer-set", Severity.HIGH, in_change=no_longer_set),
    Rule("sync-override", Severity.HIGH, in_file=sync_override),
    Rule("parameter-ignored", Severity.LOW, in_tests=False, in_file=parameter_ignored),
)
