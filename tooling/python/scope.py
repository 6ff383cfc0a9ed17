"""A file's names: one pass over statements outside functions, in order, with the branch around each."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.functions import warned
from tooling.python.source import REFUSALS, Lines, absolute, decode, dotted_name, module_name, package_of, parse
from tooling.python.tables import BodyTable, ModuleTable, NameBinding, Star

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAKES_MODULES = re.compile(r"sys\.modules\[[^\]]+\]\s*=[^=]|sys\.modules(?:\.update|\.setdefault|\s*[,)])|meta_path")
"""Writes to `sys.modules`, `sys.modules` handed on, finders."""
LONGEST_VALUE = 400_000
"""Characters of a value that are kept; longer ones are data."""


def scan(path: str, data: bytes) -> tuple[ModuleTable, Lines]:
    """Facts of one file. What the parser refuses gives a table that is empty but for `problem`."""
    dotted, package = module_name(path)
    try:
        lines = Lines(decode(data))
        tree = parse(lines.text)
    except REFUSALS as error:
        table = ModuleTable(
            path, dotted, package, BodyTable({}, []), {}, [], [], problem=f"{type(error).__name__}: {error}"
        )
        return table, Lines("")
    scanner = Scanner(lines, package_of(path), stub=path.endswith(".pyi"))
    scope = scanner.scope(tree.body)
    dynamic = scanner.dynamic or _writes_names(tree, lines.text)
    if _adds_exports(tree, lines.text):
        scanner.exports.append(("add", ""))
    table = ModuleTable(
        path,
        dotted,
        package,
        scope,
        scanner.classes,
        scanner.exports,
        scanner.patches,
        tuple(dict.fromkeys(scanner.submodules)),
        dynamic,
        scanner.replaced,
        _MAKES_MODULES.search(lines.text) is not None,
        _announced(tree, lines.text),
    )
    return table, lines


def _announced(tree: ast.Module, text: str) -> str:
    """Text of a warning at the top level of a module that it is deprecated; "" if there is none."""
    found = warned(tree.body, {}) if "eprecat" in text else ()
    return next((said for said, tests in found if not tests), "")


def _adds_exports(tree: ast.Module, text: str) -> bool:
    """Whether functions of a module put names into `__all__`: `def export(f): __all__.append(f.__name__)`."""
    functions = (each for each in tree.body if isinstance(each, ast.FunctionDef)) if "__all__" in text else ()
    names = (node for each in functions for node in ast.walk(each) if isinstance(node, ast.Name))
    return any(name.id == "__all__" for name in names)


def _writes_names(tree: ast.Module, text: str) -> str:
    """Why functions of a module may give it names: a write to `globals()` or to the module itself."""
    if "globals()" not in text and "sys.modules[__name__]" not in text:
        return ""
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name not in ("__getattr__", "__dir__"):
            for node in ast.walk(function):
                if _is_globals_write(node) or _is_setattr_on_module(node):
                    return f"{function.name}() writes names into the module"
    return ""


_NAMED_TUPLES = ("namedtuple", "NamedTuple")
_ENUMERATIONS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")


def _listed_fields(call: ast.expr) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """(name, annotation, default) of each field that a call makes a class with; [] for other calls.

    `namedtuple("P", "x y", defaults=(0,))`, `NamedTuple("P", [("x", int)])`, `Enum("Mode", "FAST SLOW")`
    """
    made = dotted_name(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
    if not isinstance(call, ast.Call) or made not in (*_NAMED_TUPLES, *_ENUMERATIONS) or len(call.args) != 2:
        return []
    listed = call.args[1]
    found: list[tuple[str, ast.expr | None]] = []
    if isinstance(listed, ast.Constant) and isinstance(listed.value, str):
        found = [(name, None) for name in listed.value.replace(",", " ").split()]
    for item in listed.keys if isinstance(listed, ast.Dict) else getattr(listed, "elts", ()):
        pair = item.elts if isinstance(item, ast.Tuple) and len(item.elts) == 2 else [item, None]
        if not isinstance(pair[0], ast.Constant) or not isinstance(pair[0].value, str):
            return []
        found.append((pair[0].value, pair[1]))
    if not found or not all(name.isidentifier() for name, _ in found):
        return []
    values = next((word.value for word in call.keywords if word.arg == "defaults"), None)
    listed_values = values.elts if isinstance(values, ast.Tuple | ast.List) else []
    if values is not None and (not listed_values or any(isinstance(each, ast.Starred) for each in listed_values)):
        listed_values = [ast.Constant(...)] * len(found)  # how many, and which, is not known
    defaults = [None] * len(found) + listed_values
    return [(*field, default) for field, default in zip(found, defaults[-len(found) :], strict=True)]


def _is_globals_write(node: ast.AST) -> bool:
    """`globals()[x] = ...` with a computed key, or `globals().update(...)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return _calls_globals(node.value) and not isinstance(node.slice, ast.Constant)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("update", "setdefault") and _calls_globals(node.func.value)
    return False


def _calls_globals(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted_name(node.func) in ("globals", "vars", "locals")


def _is_this_module(node: ast.expr) -> bool:
    """`sys.modules[__name__]`."""
    return (
        isinstance(node, ast.Subscript)
        and dotted_name(node.value) == "sys.modules"
        and dotted_name(node.slice) == "__name__"
    )


def _is_setattr_on_module(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and dotted_name(node.func) == "setattr" and len(node.args) == 3):
        return False
    target = node.args[0]
    return isinstance(target, ast.Subscript) and dotted_name(target.value) == "sys.modules"


class Scanner:
    """Collects bindings. One per file."""

    def __init__(self, lines: Lines, package: str, *, stub: bool) -> None:
        self.lines = lines
        self.package = package
        self.stub = stub
        self.classes: dict[int, BodyTable] = {}
        self.exports: list[tuple[str, str]] = []
        self.patches: list[tuple[str, str, int, str]] = []
        self.submodules: list[str] = []
        self.dynamic = ""
        self.replaced = ""
        self._bindings: dict[str, list[NameBinding]] = {}
        self._stars: list[Star] = []
        self._annotated: list[str] = []
        self._path: tuple[str, ...] = ()

    def scope(self, body: list[ast.stmt]) -> BodyTable:
        """Bindings of a module or class body."""
        outer = self._bindings, self._stars, self._annotated
        self._bindings, self._stars, self._annotated = {}, [], []
        self._visit(body, "")
        found = BodyTable(self._bindings, self._stars, annotated=tuple(dict.fromkeys(self._annotated)))
        self._bindings, self._stars, self._annotated = outer
        return found

    def _visit(self, body: Iterable[ast.stmt], where: str) -> None:
        for statement in body:
            method = getattr(self, f"_on_{type(statement).__name__.lower()}", None)
            if method is not None:
                method(statement, where)

    def _bind(self, name: str, kind: str, node: ast.stmt, where: str, source: str = "", extra: str = "") -> None:
        start = node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.decorator_list:
            start = min(start, node.decorator_list[0].lineno)
        end = node.end_lineno or node.lineno
        self._bindings.setdefault(name, []).append(NameBinding(kind, node.lineno, start, end, where, source, extra))

    # Definitions

    def _on_functiondef(self, node: ast.FunctionDef, where: str) -> None:
        self._bind(node.name, "def", node, where, self._decorators(node))

    def _on_asyncfunctiondef(self, node: ast.AsyncFunctionDef, where: str) -> None:
        self._bind(node.name, "async def", node, where, self._decorators(node))

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
        return "\0".join(self.lines.of(decorator) for decorator in node.decorator_list)

    def _on_classdef(self, node: ast.ClassDef, where: str) -> None:
        self._bind(node.name, "class", node, where, self._decorators(node))
        outer, self._path = self._path, (*self._path, node.name)
        body = self.scope(node.body)
        for base in node.bases:
            body = self._with_fields(body, base, node)
        bases = tuple(self.lines.of(base) for base in node.bases)
        keywords = tuple((word.arg or "**", self.lines.of(word.value)) for word in node.keywords)
        self.classes[node.lineno] = body._replace(bases=bases, keywords=keywords, name=".".join(self._path))
        self._path = outer

    def _with_fields(self, body: BodyTable, call: ast.expr, node: ast.stmt) -> BodyTable:
        """Add the fields that a base (or all of the class) is made with: `class Point(namedtuple("Point", "x y"))`."""
        fields = _listed_fields(call)
        annotated = isinstance(call, ast.Call) and dotted_name(call.func).rpartition(".")[2] in _NAMED_TUPLES
        outer, self._bindings = self._bindings, {}
        for name, annotation, default in fields:
            source = "..." if default is not None and not hasattr(default, "lineno") else self._source(default)
            told = (self.lines.of(annotation) if annotation is not None else "Any") if annotated else ""
            self._bind(name, "value" if annotated else "opaque", node, "", source, told)
        bindings, self._bindings = {**self._bindings, **body.bindings}, outer
        names = tuple(name for name, _, _ in fields) if annotated else ()
        return body._replace(bindings=bindings, annotated=(*names, *body.annotated))

    # Imports

    def _on_import(self, node: ast.Import, where: str) -> None:
        for alias in node.names:
            if where != "typing":
                self.submodules.append(alias.name)
            name = alias.asname or alias.name.partition(".")[0]
            self._bind(name, "import", node, where, alias.name if alias.asname else name)

    def _on_importfrom(self, node: ast.ImportFrom, where: str) -> None:
        module = absolute(self.package, node.level, node.module or "")
        if where != "typing":
            self.submodules.append(module)
        for alias in node.names:
            if alias.name == "*":
                self._stars.append(Star(node.lineno, module, where))
            else:
                self._bind(alias.asname or alias.name, "import", node, where, module, alias.name)

    # Values

    def _on_assign(self, node: ast.Assign, where: str) -> None:
        for target in node.targets:
            value = node.value
            if isinstance(target, ast.Name) and len(node.targets) == 1 and _listed_fields(value):
                assert isinstance(value, ast.Call), "what lists fields is a call"
                is_tuple = dotted_name(value.func).rpartition(".")[2] in _NAMED_TUPLES
                self._bind(target.id, "class", node, where, extra="call")
                body = self._with_fields(BodyTable({}, []), value, node)
                bases, name = (self.lines.of(value if is_tuple else value.func),), ".".join((*self._path, target.id))
                self.classes[node.lineno] = body._replace(bases=bases, name=name)
            elif isinstance(target, ast.Name):
                source = self._source(value)
                if target.id == "__all__" and not self._path:
                    self.exports.append(("perhaps" if where else "set", source))
                self._bind(target.id, "value" if source else "opaque", node, where, source)
            elif isinstance(target, ast.Tuple | ast.List):
                parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                for index, part in enumerate(target.elts):
                    named = part.value if isinstance(part, ast.Starred) else part
                    if isinstance(named, ast.Name):
                        source = self._source(parts[index]) if len(parts) == len(target.elts) else ""
                        self._bind(named.id, "value" if source else "opaque", node, where, source)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and not self._path:
                self.patches.append((target.value.id, target.attr, node.lineno, self._source(value)))
            elif isinstance(target, ast.Subscript):
                if dotted_name(target.value) == "sys.modules":
                    if dotted_name(target.slice) == "__name__":
                        self.replaced = self.replaced or self.lines.of(value)
                elif _calls_globals(target.value):
                    if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
                        self._bind(target.slice.value, "value", node, where, self._source(value))
                    else:
                        self.dynamic = self.dynamic or "writes computed names into globals()"

    def _on_annassign(self, node: ast.AnnAssign, where: str) -> None:
        if not isinstance(node.target, ast.Name):
            return
        self._annotated.append(node.target.id)
        source = self._source(node.value)
        if node.target.id == "__all__" and source and not self._path:
            self.exports.append(("perhaps" if where else "set", source))
        if node.value is None and not self.stub and not self._path:
            where = "typing"  # `x: int` binds nothing in a module
        self._bind(node.target.id, "value", node, where, source, self.lines.of(node.annotation))

    def _on_augassign(self, node: ast.AugAssign, where: str) -> None:
        if isinstance(node.target, ast.Name) and node.target.id == "__all__":
            self.exports.append(("add", self._source(node.value)))

    def _source(self, node: ast.expr | None) -> str:
        if node is None:
            return ""
        source = self.lines.of(node)
        return source if len(source) <= LONGEST_VALUE else ""

    def _on_delete(self, node: ast.Delete, where: str) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._bind(target.id, "delete", node, where)

    def _on_expr(self, node: ast.Expr, where: str) -> None:
        call = node.value
        if isinstance(call, ast.NamedExpr):
            self._bind(call.target.id, "value", node, where, self._source(call.value))
        given = [*call.args, *(word.value for word in call.keywords)] if isinstance(call, ast.Call) else []
        if not self._path and any(map(_calls_globals, given)):
            # `lazy_import(globals(), {...})` may put one there
            self._bind("__getattr__", "opaque", node, where, extra="handed")
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            self._setattr(call)
            return
        if dotted_name(call.func.value) == "__all__" and len(call.args) == 1:
            argument = self._source(call.args[0])
            if call.func.attr == "extend":
                self.exports.append(("add", argument))
            elif call.func.attr == "append":
                self.exports.append(("add", f"[{argument}]"))
        elif _is_globals_write(call) or any(_is_this_module(argument) for argument in call.args):
            self.dynamic = self.dynamic or "writes computed names into globals()"

    def _setattr(self, call: ast.expr) -> None:
        """`setattr(Class, "name", value)` is a patch like any other; with a computed name it opens the module."""
        if isinstance(call, ast.Call) and dotted_name(call.func) != "setattr":
            if dotted_name(call.func) == "exec":
                self.dynamic = self.dynamic or "runs a text"
            if any(_is_this_module(argument) for argument in call.args):
                self.dynamic = self.dynamic or "hands itself to a function"
            return
        if not (isinstance(call, ast.Call) and len(call.args) == 3):
            return
        target, name, value = call.args
        if isinstance(target, ast.Name):
            known = isinstance(name, ast.Constant) and isinstance(name.value, str)
            text = str(name.value) if isinstance(name, ast.Constant) and known else "*"
            self.patches.append((target.id, text, call.lineno, self._source(value)))
        elif _is_setattr_on_module(call):
            self.dynamic = self.dynamic or "sets computed names on itself"

    # Branches

    def _on_if(self, node: ast.If, where: str) -> None:
        for name in (part for part in ast.walk(node.test) if isinstance(part, ast.NamedExpr)):
            self._bind(name.target.id, "opaque", node, where)
        test = dotted_name(node.test).rpartition(".")[2]
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        inner = dotted_name(node.test.operand) if isinstance(node.test, ast.UnaryOp) and negated else ""
        if test == "TYPE_CHECKING":
            self._visit(node.body, "typing")
            self._visit(node.orelse, where)
        elif inner.rpartition(".")[2] == "TYPE_CHECKING":
            self._visit(node.body, where)
            self._visit(node.orelse, "typing")
        else:
            self._visit(node.body, self._within(where, "if"))
            self._visit(node.orelse, self._within(where, "else"))

    def _within(self, where: str, branch: str) -> str:
        return where if where in ("typing", "except") else branch

    def _on_try(self, node: ast.Try, where: str) -> None:
        self._visit(node.body, self._within(where, "try"))
        for handler in node.handlers:
            self._visit(handler.body, self._within(where, "except"))
        self._visit(node.orelse, self._within(where, "try"))
        self._visit(node.finalbody, where)

    _on_trystar = _on_try

    def _on_with(self, node: ast.With, where: str) -> None:
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name):
                self._bind(item.optional_vars.id, "opaque", node, where)
        self._visit(node.body, where)

    def _on_for(self, node: ast.For, where: str) -> None:
        for name in (part for part in ast.walk(node.target) if isinstance(part, ast.Name)):
            self._bind(name.id, "opaque", node, where)
        copied = self._copied(node)
        if copied:
            self._stars.append(Star(node.lineno, copied, where, copies=True))
        else:
            self._visit(node.body, self._within(where, "loop"))

    def _copied(self, node: ast.For) -> str:
        """Source of M in `for name in dir(M): ... globals()[name] = ...`."""
        runs = node.iter
        if not (isinstance(runs, ast.Call) and dotted_name(runs.func) == "dir" and len(runs.args) == 1):
            return ""
        writes = any(_is_globals_write(part) for part in ast.walk(node))
        return self.lines.of(runs.args[0]) if writes else ""

    def _on_while(self, node: ast.While, where: str) -> None:
        self._visit(node.body, self._within(where, "loop"))

    def _on_match(self, node: ast.Match, where: str) -> None:
        for case in node.cases:
            self._visit(case.body, self._within(where, "if"))
