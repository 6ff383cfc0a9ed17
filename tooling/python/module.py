"""Reads a Python file as a syntax tree, with what is asked of it again and again: nodes by type, scopes, names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tooling.python.source import (
    DefinitionNode,
    absolute,
    children,
    defined_names,
    dotted_name,
    each_statement,
    methods_in,
    parsed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)
Other = TypeVar("Other", bound=ast.AST)

_SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
"""Nodes that Python makes once: they have no place of their own."""
_PARAMETERS = re.compile(r"^([ \t]*(?:async[ \t]+def|def|class)[ \t]+\w+)\[[^\]\n]*\]", re.MULTILINE)
_ALIAS = re.compile(r"^([ \t]*)type[ \t]+(\w+)(?:\[[^\]\n]*\])?[ \t]*=", re.MULTILINE)


def parse(text: str) -> ast.Module | None:
    """Parse a file; None for anything but Python, and for what is nested deeper than rules can follow.

    Type parameters of Python 3.12 (`def f[T](x)`, `type X = ...`) are read by any version: they are taken out, which
    moves no line.
    """
    tree = parsed(text) or parsed(_ALIAS.sub(r"\1\2 =", _PARAMETERS.sub(r"\1", text)))
    return None if tree is None or _is_deep(tree) else tree


_DEEPEST = 200
"""Levels of a tree. Writing a node out takes three calls for each, of the thousand that Python allows."""


def _is_deep(tree: ast.Module) -> bool:
    """Whether a tree has too many levels: `"a" + "b" + ...` has one for each sign."""
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


@dataclass(frozen=True)
class Module:
    """A file that could be parsed."""

    path: str
    tree: ast.Module
    package: str
    """Dotted name of the module: "areal.api.engine"."""
    text: str = ""
    """Left out where only the tree is asked for."""

    @cached_property
    def lines(self) -> list[str]:
        """Source lines, without ends."""
        return self.text.split("\n")

    @cached_property
    def _walked(self) -> tuple[dict[type[ast.AST], list[ast.AST]], dict[ast.AST, ast.AST]]:
        """Nodes by type, and child -> parent, from one walk."""
        by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        parents: dict[ast.AST, ast.AST] = {}
        waiting: list[ast.AST] = [self.tree]
        for node in waiting:  # grows while it is read: breadth first
            by_type[type(node)].append(node)
            for name in node._fields:
                value = getattr(node, name, None)
                for child in value if isinstance(value, list) else (value,):
                    if isinstance(child, ast.AST) and not isinstance(child, _SHARED):
                        parents[child] = node
                        waiting.append(child)
        return by_type, parents

    @property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Child -> parent."""
        return self._walked[1]

    @overload
    def nodes(self, kind: type[Node], /) -> Iterator[Node]: ...
    @overload
    def nodes(self, kind: type[Node], other: type[Other], /) -> Iterator[Node | Other]: ...
    @overload
    def nodes(self, *types: type[Node]) -> Iterator[Node]: ...
    def nodes(self, *types: type[Any]) -> Iterator[Any]:
        """Yield all nodes of exactly these types."""
        for kind in types:
            yield from self._walked[0].get(kind, ())

    def functions(self) -> Iterator[Function]:
        """Yield all functions and methods, nested ones included."""
        yield from self.nodes(ast.FunctionDef)
        yield from self.nodes(ast.AsyncFunctionDef)

    def around(self, node: ast.AST, end: ast.AST | None = None) -> Iterator[ast.AST]:
        """Return the nodes that hold a node, from the inside out, up to one that is left out."""
        holding = self.parents.get(node)
        while holding is not None and holding is not end:
            yield holding
            holding = self.parents.get(holding)

    def function_of(self, node: ast.AST) -> Function | ast.Lambda | None:
        """Return the innermost function that holds a node."""
        return next((each for each in self.around(node) if isinstance(each, Function | ast.Lambda)), None)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class whose method (directly) a function is."""
        parent = self.parents.get(node)
        return parent if isinstance(parent, ast.ClassDef) else None

    def methods_called(self, call: ast.Call) -> list[Function]:
        """List what `self.name(...)` may mean by the body of the class around it; [] for other calls."""
        func = call.func
        if not isinstance(func, ast.Attribute) or dotted_name(func.value) != "self":
            return []
        owner = next((each for each in self.around(call) if isinstance(each, ast.ClassDef)), None)
        return [node for node in methods_in(owner.body) if node.name == func.attr] if owner is not None else []

    @cached_property
    def _spans(self) -> list[tuple[int, int, str]]:
        spans: list[tuple[int, int, str]] = []

        def visit(node: ast.AST, prefix: str) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, Function | ast.ClassDef):
                    name = f"{prefix}{child.name}"
                    start = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                    spans.append((start, child.end_lineno or child.lineno, name))
                    visit(child, f"{name}.")
                elif not isinstance(child, ast.expr):
                    visit(child, prefix)

        visit(self.tree, "")
        return spans

    def symbol_at(self, line: int) -> str:
        """Return the qualified name of the innermost function or class around a line; "" at the top level."""
        holding = [(start, name) for start, end, name in self._spans if start <= line <= end]
        return max(holding)[1] if holding else ""

    @cached_property
    def imported(self) -> dict[str, str]:
        """Local name -> what it stands for: {"dist": "torch.distributed", "sleep": "time.sleep"}, wherever the file
        imports it."""
        return self._imports(each_statement(self.tree))

    @cached_property
    def imported_on_top(self) -> dict[str, str]:
        """Those of `imported` that the top level imports, also under `if`, `try` and `with`."""
        return self._imports(_top(self.tree.body))

    def _imports(self, statements: Iterable[ast.AST]) -> dict[str, str]:
        names: dict[str, str] = {}
        for node in statements:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    names[bound] = alias.name if alias.asname else bound
            elif isinstance(node, ast.ImportFrom):
                origin = self.absolute(node)
                names.update({each.asname or each.name: f"{origin}.{each.name}".strip(".") for each in node.names})
        return names

    @cached_property
    def stars(self) -> list[str]:
        """Modules that the top level takes everything from, by `from x import *`."""
        nodes = [node for node in self.tree.body if isinstance(node, ast.ImportFrom)]
        return [self.absolute(node) for node in nodes if node.names[0].name == "*"]

    def gives_to_stars(self, name: str) -> bool | None:
        """Whether `from this import *` binds a name that is bound here; None where `__all__` is put together."""
        if "__all__" not in self.bindings:
            return not name.startswith("_")
        value = self.values.get("__all__")
        changed = any(dotted_name(each.value) == "__all__" for each in self.nodes(ast.Attribute))
        plain = isinstance(value, ast.List | ast.Tuple) and all(isinstance(each, ast.Constant) for each in value.elts)
        if value is None or changed or not plain or len(self.bindings["__all__"]) > 1:
            return None
        return name in ast.literal_eval(value)

    @cached_property
    def definitions(self) -> dict[str, DefinitionNode]:
        """Top-level functions and classes, those under `if`, `try` and `with` too; of several the first."""
        found: dict[str, DefinitionNode] = {}
        for node in _top(self.tree.body):
            if isinstance(node, DefinitionNode):
                found.setdefault(node.name, node)
        return found

    @cached_property
    def top_level(self) -> dict[str, ast.stmt]:
        """Functions, classes and variables of the top level itself; imports and branches are not counted."""
        return dict(defined_names(self.tree.body))

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """Names that are assigned at the top level, to their last value; those of `a, b = f()` to all of it."""
        named = defined_names(_top(self.tree.body))
        return {name: node.value for name, node in named if isinstance(node, ast.Assign | ast.AnnAssign) and node.value}

    @cached_property
    def bindings(self) -> dict[str, list[ast.AST]]:
        """Every name that something in the file binds, in whatever scope, with what binds it."""
        found: dict[str, list[ast.AST]] = defaultdict(list)
        for definition in (*self.functions(), *self.nodes(ast.ClassDef)):
            found[definition.name].append(definition)
        for alias in self.nodes(ast.alias):
            found[alias.asname or alias.name.partition(".")[0]].append(self.parents[alias])
        for name in self.nodes(ast.Name):
            if isinstance(name.ctx, ast.Store):
                found[name.id].append(name)
        return dict(found)

    @cached_property
    def shadowing(self) -> dict[ast.AST, set[str]]:
        """Function -> names that are local to it."""
        found: dict[ast.AST, set[str]] = defaultdict(set)
        for name in self.nodes(ast.Name):
            if isinstance(name.ctx, ast.Store):
                for each in self.around(name):
                    found[each].add(name.id)
        for argument in self.nodes(ast.arg):
            for each in self.around(argument):
                found[each].add(argument.arg)
        for function in self.functions():
            for each in self.around(function):
                found[each].add(function.name)
        return found

    def absolute(self, node: ast.ImportFrom) -> str:
        """Return the module an import names, relative ones resolved."""
        package = self.package if self.path.endswith("__init__.py") else self.package.rpartition(".")[0]
        return absolute(package, node.level, node.module or "")

    def dotted(self, node: ast.expr) -> str:
        """Resolve a name: `dist.all_reduce` stands for "torch.distributed.all_reduce"; "" for other expressions."""
        first, dot, rest = dotted_name(node).partition(".")
        return f"{self.imported.get(first, first)}{dot}{rest}"


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _top(getattr(node, part, []))
            for handler in getattr(node, "handlers", ()):
                yield from _top(handler.body)


@overload
def own_nodes(scope: ast.AST | None, /) -> list[ast.AST]: ...
@overload
def own_nodes(scope: ast.AST | None, kind: type[Node], /) -> list[Node]: ...
@overload
def own_nodes(scope: ast.AST | None, kind: type[Node], other: type[Other], /) -> list[Node | Other]: ...
@overload
def own_nodes(scope: ast.AST | None, /, *kinds: type[Node]) -> list[Node]: ...
def own_nodes(scope: ast.AST | None, /, *kinds: type[Any]) -> list[Any]:
    """Return the nodes of a body, or those of some types, without those of functions and classes defined in it."""
    # Two dozen rules walk each function: the tree itself keeps what the first of them found.
    found: list[ast.AST] | None = getattr(scope, "own_nodes", None)
    if found is None:
        found = []
        waiting = children(scope) if scope is not None else []
        while waiting:
            node = waiting.pop()
            found.append(node)
            if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
                waiting.extend(children(node))
        if scope is not None:
            scope.own_nodes = found  # type: ignore[attr-defined]  # nodes of ast take any attribute
    return [each for each in found if isinstance(each, kinds)] if kinds else found


@overload
def nodes_in(roots: ast.AST | Iterable[ast.AST] | None, kind: type[Node], /) -> list[Node]: ...
@overload
def nodes_in(
    roots: ast.AST | Iterable[ast.AST] | None, kind: type[Node], other: type[Other], /
) -> list[Node | Other]: ...
@overload
def nodes_in(roots: ast.AST | Iterable[ast.AST] | None, /, *kinds: type[Node]) -> list[Node]: ...
def nodes_in(roots: ast.AST | Iterable[ast.AST] | None, /, *kinds: type[Any]) -> list[Any]:
    """Return the nodes of some types in a tree, or in several: everything, functions and classes included."""
    trees = (roots,) if isinstance(roots, ast.AST) else roots or ()
    return [each for root in trees for each in ast.walk(root) if isinstance(each, kinds)]


def names_in(roots: ast.AST | Iterable[ast.AST] | None) -> set[str]:
    """Return the plain names in a tree, or in several."""
    return {each.id for each in nodes_in(roots, ast.Name)}


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """Return the value of the first keyword of these names."""
    return next((each.value for each in call.keywords if each.arg in names), None)


def parameters(function: Function | ast.Lambda) -> list[str]:
    """Return the names of all parameters."""
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
    return [each.arg for each in named]


def last_name(node: ast.expr | None) -> str:
    """Return the last part of a name: "join" of `self.thread.join`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def field_names(module: Module | None) -> dict[str, int]:
    """Return "Class.field" -> line, of every annotated class attribute."""
    return {
        f"{node.name}.{each.target.id}": each.lineno
        for node in (module.nodes(ast.ClassDef) if module is not None else ())
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
