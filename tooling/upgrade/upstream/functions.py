"""What a function's own text says: parameters, returned expressions, local names, **kwargs, refusals, deprecations."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.upgrade.upstream.deprecations import warned
from tooling.upgrade.upstream.execute import absolute, text_of
from tooling.upgrade.upstream.keyword_flow import KeywordFlow, keyword_flow
from tooling.upgrade.upstream.parsing import FunctionNode, Lines, dotted_name
from tooling.upgrade.upstream.tables import FunctionFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Parameters = list[tuple[str, str, str | None, str]]
MAX_LOCAL = 200
"""Local names that are kept; functions beyond that are not followed."""


def read_function(node: FunctionNode, lines: Lines, package: str) -> FunctionFacts:
    """Facts of one function. `package`: what relative imports inside it start from."""
    parameters = read_parameters(node.args, lines)
    body = _Body(lines, package)
    body.visit(node.body)
    double = node.args.kwarg
    flow = keyword_flow(_Block(node.body), double.arg, lines.of) if double else KeywordFlow()
    refusal = _refusal(node.body)
    deprecated, notes = _deprecations(node.body, [*(name for name, *_ in parameters), *flow.reads])
    return FunctionFacts(
        parameters=parameters,
        returns=lines.of(node.returns) if node.returns else "",
        is_async=isinstance(node, ast.AsyncFunctionDef),
        is_generator=bool(body.yields),
        values=body.values,
        yields=body.yields,
        local=body.local,
        imports=body.imports,
        refuses=refusal[1] if refusal else None,
        refusal_type=refusal[0] if refusal else "",
        deprecated=deprecated,
        parameter_notes=notes,
        keyword_reads=sorted(flow.reads),
        keyword_forwards=flow.forwards,
        keyword_open=flow.open,
        keyword_checked=flow.checked,
        inner=_inner(node, lines),
    )


class _Block(ast.AST):
    """Statements as one node, for `ast.walk`."""

    _fields = ("body",)

    def __init__(self, body: list[ast.stmt]) -> None:
        self.body = body


def read_parameters(arguments: ast.arguments, lines: Lines) -> Parameters:
    """(name, kind, default, annotation) of each parameter, in order."""
    found: Parameters = []

    def add(argument: ast.arg, kind: str, default: ast.expr | None) -> None:
        annotation = lines.of(argument.annotation) if argument.annotation else ""
        found.append((argument.arg, kind, lines.of(default) if default else None, annotation))

    positional = arguments.posonlyargs + arguments.args
    defaults: Sequence[ast.expr | None] = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        add(argument, "positional-only" if index < len(arguments.posonlyargs) else "positional", default)
    if arguments.vararg:
        add(arguments.vararg, "star", None)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        add(argument, "keyword-only", default)
    if arguments.kwarg:
        add(arguments.kwarg, "double-star", None)
    return found


@dataclass
class _Body:
    """Collects what matters from statements, without functions and classes inside."""

    lines: Lines
    package: str
    values: list[str] = field(default_factory=list)
    yields: list[str] = field(default_factory=list)
    local: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)

    def visit(self, body: Sequence[ast.AST]) -> None:
        stack = list(reversed(body))
        while stack:
            node = stack.pop()
            method: Callable[[ast.AST], None] | None = getattr(self, f"_on_{type(node).__name__.lower()}", None)
            if method is not None:
                method(node)
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                stack.extend(reversed(list(ast.iter_child_nodes(node))))

    def _add(self, target: ast.expr, kind: str, source: str, annotation: str = "") -> None:
        if isinstance(target, ast.Name):
            if len(self.local) < MAX_LOCAL or target.id in self.local:
                self.local.setdefault(target.id, []).append((kind, source, annotation))
        elif isinstance(target, ast.Tuple | ast.List):
            for index, part in enumerate(target.elts):
                if kind == "value" and not isinstance(part, ast.Starred):
                    self._add(part, "value", f"({source})[{index}]")
                else:
                    self._add(part.value if isinstance(part, ast.Starred) else part, "opaque", "")

    def _short(self, node: ast.expr | None) -> str:
        """Long displays are data, of no use for types."""
        if node is None:
            return ""
        source = self.lines.of(node)
        return source if len(source) < 2000 else "..."

    def _on_return(self, node: ast.Return) -> None:
        self.values.append(self._short(node.value))

    def _on_yield(self, node: ast.Yield) -> None:
        self.yields.append(self._short(node.value) or "None")

    def _on_yieldfrom(self, node: ast.YieldFrom) -> None:
        self.yields.append(f"*{self._short(node.value)}")

    def _on_assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._add(target, "value", self._short(node.value))

    def _on_annassign(self, node: ast.AnnAssign) -> None:
        self._add(node.target, "value", self._short(node.value), self.lines.of(node.annotation))

    def _on_augassign(self, node: ast.AugAssign) -> None:
        self._add(node.target, "opaque", "")

    def _on_namedexpr(self, node: ast.NamedExpr) -> None:
        self._add(node.target, "value", self._short(node.value))

    def _on_for(self, node: ast.For) -> None:
        self._add(node.target, "for" if isinstance(node.target, ast.Name) else "opaque", self._short(node.iter))

    def _on_asyncfor(self, node: ast.AsyncFor) -> None:
        self._add(node.target, "async for" if isinstance(node.target, ast.Name) else "opaque", self._short(node.iter))

    def _on_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self._add(node.optional_vars, "with", self._short(node.context_expr))

    def _on_functiondef(self, node: ast.FunctionDef) -> None:
        self.local.setdefault(node.name, []).append(("opaque", "", ""))

    _on_asyncfunctiondef = _on_classdef = _on_functiondef

    def _on_import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.imports[name] = (alias.name if alias.asname else name, "")

    def _on_importfrom(self, node: ast.ImportFrom) -> None:
        module = absolute(self.package, node.level, node.module or "")
        for alias in node.names:
            self.imports[alias.asname or alias.name] = (module, alias.name)


def _meaningful(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Without the docstring."""
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return list(body[1:])
    return list(body)


def _refusal(body: Sequence[ast.stmt]) -> tuple[str, str] | None:
    """(exception, message) of a function that does nothing but raise."""
    rest = _meaningful(body)
    texts: dict[str, str] = {}
    while rest and isinstance(rest[0], ast.Assign | ast.Delete | ast.Import | ast.ImportFrom):
        if isinstance(rest[0], ast.Assign) and isinstance(rest[0].targets[0], ast.Name):
            texts[rest[0].targets[0].id] = text_of(rest[0].value)
        rest = rest[1:]
    if not rest or not isinstance(rest[0], ast.Raise) or rest[0].exc is None:
        return None
    raised = rest[0].exc
    called = raised.func if isinstance(raised, ast.Call) else raised
    first = raised.args[0] if isinstance(raised, ast.Call) and raised.args else None
    text = texts.get(first.id, "") if isinstance(first, ast.Name) else text_of(first)
    name = dotted_name(called).rpartition(".")[2]
    return name, " ".join(text.split())


def _deprecations(body: Sequence[ast.stmt], names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Text about the function as a whole, and texts about parameters that conditions name."""
    whole = ""
    notes: dict[str, str] = {}
    for text, tests in warned(_meaningful(body), {}):
        if not tests:
            whole = whole or text
            continue
        mentioned = {part for test in tests for part in _mentions(test)}
        about = [name for name in names if name in mentioned]
        narrowed = [name for name in about if name in text] or about
        for name in narrowed[:1] if len(narrowed) == 1 or f"{narrowed[:1]}" in text else narrowed:
            notes.setdefault(name, text)
    return whole, notes


def _mentions(test: ast.expr) -> Iterator[str]:
    for part in ast.walk(test):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _inner(node: FunctionNode, lines: Lines) -> dict[str, tuple[Parameters, list[str], list[str], list[str]]]:
    """Functions defined inside, at any depth, by name: what decorators are judged by."""
    found: dict[str, tuple[Parameters, list[str], list[str], list[str]]] = {}
    for part in ast.walk(node):
        if part is node or not isinstance(part, FunctionNode):
            continue
        body = _Body(lines, "")
        body.visit(part.body)
        double = part.args.kwarg
        reads = keyword_flow(_Block(part.body), double.arg, lines.of).reads if double else set()
        decorators = [lines.of(decorator) for decorator in part.decorator_list]
        found[part.name] = (read_parameters(part.args, lines), decorators, body.values, sorted(reads))
    return found
