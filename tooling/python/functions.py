"""Read functions: parameters, returns, announced deprecations, and where `**kwargs` flows."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.python.source import FunctionNode, Lines, absolute, dotted_name, each_parameter, text_of
from tooling.python.tables import FunctionTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_READS = ("pop", "get", "setdefault")
_COPIES = ("dict", "copy.copy", "copy.deepcopy", "deepcopy", "copy")
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.BoolOp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Match,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.comprehension,
)
_HARMLESS = ("len", "bool", "str", "repr")


@dataclass
class KeywordFlow:
    """Where the keywords go."""

    reads: set[str] = field(default_factory=set)
    forwards: list[tuple[str, list[str], bool]] = field(default_factory=list)
    """Callee, its other keywords, and whether every call of the function comes there."""
    open: str = ""
    checked: bool = False
    """What is left over raises."""
    allowed: list[str] = field(default_factory=list)
    """Sources of collections: a keyword that is in none of these raises."""


def keyword_flow(node: ast.AST, name: str, source: Callable[[ast.AST], str]) -> KeywordFlow:
    """Follows the mapping called `name` through a function and the functions inside it."""
    tracer = _Tracer(name, source)
    tracer.branched = _branched(node)
    for part in ast.walk(node):
        tracer.alias(part)
    tracer.checks(getattr(node, "body", ()))
    for part in ast.walk(node):
        method = getattr(tracer, f"on_{type(part).__name__.lower()}", None)
        if method is not None:
            method(part)
    tracer.finish(node)
    return tracer.flow


class _Tracer:
    def __init__(self, name: str, source: Callable[[ast.AST], str]) -> None:
        self.names = {name}
        self.source = source
        self.flow = KeywordFlow()
        self.branched: set[int] = set()
        """Calls that only some calls of the function come to."""
        self.left_over: dict[str, tuple[ast.AST, str]] = {}
        """Local names of what is left when a collection is taken off: the mapping, and the collection's source."""
        self.seen: set[int] = set()
        """Mentions of the mapping that are understood."""

    def ours(self, node: ast.AST | None) -> bool:
        return isinstance(node, ast.Name) and node.id in self.names

    def understood(self, node: ast.AST) -> None:
        self.seen.add(id(node))

    def alias(self, node: ast.AST) -> None:
        """`other = kwargs`, `other = dict(kwargs)`, `other = kwargs.copy()`, `other = {**kwargs}`."""
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            return
        origin = self._copied(node.value)
        if origin is not None:
            self.understood(origin)
            self.names.add(node.targets[0].id)

    def _copied(self, value: ast.expr) -> ast.expr | None:
        if self.ours(value):
            return value
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Attribute) and value.func.attr == "copy" and self.ours(value.func.value):
                return value.func.value
            if dotted_name(value.func) in _COPIES and len(value.args) == 1 and self.ours(value.args[0]):
                return value.args[0]
        if isinstance(value, ast.Dict):
            return next(
                (item for key, item in zip(value.keys, value.values, strict=True) if not key and self.ours(item)), None
            )
        return None

    def on_call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and self.ours(node.func.value):
            function = node.func
            key = node.args[0] if node.args else None
            if function.attr in _READS and isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.flow.reads.add(key.value)
                self.understood(function.value)
            elif function.attr in ("update", "clear", "copy"):
                self.understood(function.value)
        for word in node.keywords:
            if word.arg is None and self._spread(word.value):
                callee = node.func
                if dotted_name(callee).rpartition(".")[2] == "partial" and node.args:
                    callee = node.args[0]
                explicit = [other.arg for other in node.keywords if other.arg]
                self.flow.forwards.append((self.source(callee), explicit, id(node) not in self.branched))
        if dotted_name(node.func) in _HARMLESS:
            for argument in node.args:
                if self.ours(argument):
                    self.understood(argument)

    def _spread(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Dict):
            value = self._copied(value) or value
        if self.ours(value):
            self.understood(value)
            return True
        return False

    def on_subscript(self, node: ast.Subscript) -> None:
        if not self.ours(node.value):
            return
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            self.understood(node.value)
            if not isinstance(node.ctx, ast.Store):
                self.flow.reads.add(node.slice.value)
        elif isinstance(node.ctx, ast.Store):
            self.understood(node.value)

    def on_compare(self, node: ast.Compare) -> None:
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.In | ast.NotIn):
            return
        if self.ours(node.comparators[0]) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            self.flow.reads.add(node.left.value)
            self.understood(node.comparators[0])

    def checks(self, body: Sequence[ast.stmt]) -> None:
        """Find what every call comes to that raises for a keyword which a collection does not have:

        unknown = set(kwargs) - KNOWN       for key in kwargs:
        if unknown:                             if key not in KNOWN:
            raise TypeError(unknown)                raise TypeError(key)
        """
        for statement in body:
            found: tuple[ast.AST, str] | None = None
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if (rest := self._left_over(value)) is not None:
                        self.left_over[name] = rest
                case ast.If(test=test, body=[*_, ast.Raise()]):
                    found = self._left_over(test)
                case ast.For(target=ast.Name(id=key), iter=source, body=[ast.If(body=[*_, ast.Raise()]) as check, *_]):
                    found = self._refused_key(key, source, check.test)
                case ast.Return():
                    return
            if found is not None:
                self.understood(found[0])
                self.flow.allowed.append(found[1])
            if any(isinstance(part, ast.Return) or self._takes_some(part) for part in ast.walk(statement)):
                return

    def _takes_some(self, node: ast.AST) -> bool:
        """Whether keywords that are not written out are taken out, or put in."""
        match node:
            case ast.Call(func=ast.Attribute(value=held, attr="pop" | "update" | "clear"), args=arguments):
                key = arguments[0] if arguments else None
                return self.ours(held) and not isinstance(key, ast.Constant)
            case ast.Delete(targets=[ast.Subscript(value=held), *_]):
                return self.ours(held)
            case ast.Name(ctx=ast.Store(), id=name):
                return name in self.names
        return False

    def _left_over(self, node: ast.expr) -> tuple[ast.AST, str] | None:
        """Find the mapping in `set(kwargs) - KNOWN` and its like, and the source of KNOWN."""
        match node:
            case ast.Name(id=name):
                return self.left_over.get(name)
            case (
                ast.BinOp(left=left, op=ast.Sub(), right=known)
                | ast.Call(func=ast.Attribute(value=left, attr="difference"), args=[known])
                | ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left=left, ops=[ast.LtE()], comparators=[known]))
                | ast.UnaryOp(ast.Not(), ast.Call(func=ast.Attribute(value=left, attr="issubset"), args=[known]))
            ):
                return self._keys(left, known)
            case (
                ast.ListComp(generators=[generator])
                | ast.SetComp(generators=[generator])
                | ast.DictComp(generators=[generator])
                | ast.GeneratorExp(generators=[generator])
            ):
                target = generator.target.elts[0] if isinstance(generator.target, ast.Tuple) else generator.target
                if isinstance(target, ast.Name) and len(generator.ifs) == 1:
                    return self._refused_key(target.id, generator.iter, generator.ifs[0])
            case ast.Call(func=ast.Name(id="any" | "sorted" | "list" | "len" | "bool"), args=[inner]):
                return self._left_over(inner)
            case ast.Compare(left=left, ops=[ast.Gt()], comparators=[ast.Constant(value=0)]):
                return self._left_over(left)
        return None

    def _refused_key(self, key: str, source: ast.expr, test: ast.expr) -> tuple[ast.AST, str] | None:
        match test:
            case ast.Compare(left=ast.Name(id=name), ops=[ast.NotIn()], comparators=[known]) if name == key:
                return self._keys(source, known)
        return None

    def _keys(self, node: ast.expr, known: ast.expr) -> tuple[ast.AST, str] | None:
        match node:
            case ast.Call(func=ast.Name(id="set" | "list" | "sorted" | "tuple"), args=[inner]):
                return self._keys(inner, known)
            case ast.Call(func=ast.Attribute(value=inner, attr="keys" | "items"), args=[]):
                return self._keys(inner, known)
        return (node, self.source(known)) if self.ours(node) else None

    def on_if(self, node: ast.If) -> None:
        """`if kwargs: raise TypeError(...)`."""
        mentions = [part for part in ast.walk(node.test) if self.ours(part)]
        if not mentions or any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node.test)
        ):
            return
        raises = bool(node.body) and isinstance(node.body[-1], ast.Raise)
        self.flow.checked = self.flow.checked or raises
        if raises or not any(isinstance(part, ast.Call) for part in ast.walk(node.test)):
            for part in mentions:
                self.understood(part)

    def on_raise(self, node: ast.Raise) -> None:
        for part in ast.walk(node):
            if self.ours(part):
                self.understood(part)

    def on_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.understood(target)

    def finish(self, node: ast.AST) -> None:
        """Any other mention: the mapping goes where it is not followed."""
        for part in ast.walk(node):
            if self.ours(part) and id(part) not in self.seen and isinstance(getattr(part, "ctx", None), ast.Load):
                self.flow.open = f"{self.source(part)} is used as a whole"
                return


def _branched(function: ast.AST) -> set[int]:
    """Collect calls under a condition, in a loop, in a handler, or in a function inside."""
    found: set[int] = set()
    stack = [(child, False) for child in ast.iter_child_nodes(function)]
    while stack:
        node, under = stack.pop()
        if under and isinstance(node, ast.Call):
            found.add(id(node))
        under = under or isinstance(node, _BRANCHES)
        stack.extend((child, under) for child in ast.iter_child_nodes(node))
    return found


CATEGORIES = ("DeprecationWarning", "FutureWarning", "PendingDeprecationWarning", "VisibleDeprecationWarning")
_CALLS = ("warn", "warning", "warning_once", "warn_once", "warning_advice", "rank_zero_warn", "rank_zero_deprecation")
_WORDS = re.compile(r"deprecat|will be removed|is going away|no longer be supported", re.IGNORECASE)
_VERSION = r"(?:v|version\s*|transformers\s*|vllm\s*|torch\s*)?\s*(\d+\.\d+(?:\.\d+)*)"
_REMOVED = re.compile(
    rf"(?:remov|delet|drop|unsupported|error|disappear|gone|disallow)\w*[^.]{{0,80}}?\b{_VERSION}"
    rf"|(?:until|before|by)\s+{_VERSION}"
    rf"|\bin\s+{_VERSION}[^.]{{0,40}}(?:remov|delet|drop|error)",
    re.IGNORECASE,
)


def removed_in(text: str) -> str:
    """Return the version in which a text says that something goes; "" if it names none."""
    match = _REMOVED.search(text)
    return next(filter(None, match.groups()), "") if match else ""


def warned(
    body: Sequence[ast.stmt], texts: dict[str, str], tests: Sequence[ast.expr] = ()
) -> Iterator[tuple[str, Sequence[ast.expr]]]:
    """Yield deprecation warnings of a function body: the text, and the conditions it stands under.

    texts: messages that local names hold. tests: conditions around the body.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            yield from warned([*statement.body, *statement.orelse], texts, [*tests, statement.test])
        elif isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
            yield from warned(statement.body, texts, tests)
        elif isinstance(statement, ast.For):
            yield from warned(statement.body, texts, [*tests, statement.iter])
        elif isinstance(statement, ast.Assign):
            if text := text_of(statement.value):
                texts |= {each.id: text for each in statement.targets if isinstance(each, ast.Name)}
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            text = warning_text(statement.value, texts)
            if text:
                yield text, tests


def announces(function: str) -> bool:
    """Whether the name of a function says that it warns of a deprecation: `deprecate`, `issue_deprecation_warning`."""
    return function.lstrip("_").startswith("deprecat") or ("deprecat" in function and "warn" in function)


def warning_text(call: ast.Call, texts: dict[str, str]) -> str:
    """Text of a call that warns of a deprecation; "" for any other call."""
    name = dotted_name(call.func) or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    last = name.rpartition(".")[2]
    if last not in _CALLS and not announces(last):
        return ""
    message = call.args[0] if call.args else next((word.value for word in call.keywords if word.arg == "message"), None)
    text = texts.get(message.id, "") if isinstance(message, ast.Name) else text_of(message)
    category = any(
        dotted_name(value).rpartition(".")[2] in CATEGORIES
        for value in [*call.args[1:], *(word.value for word in call.keywords if word.arg == "category")]
    )
    if category or last not in _CALLS or _WORDS.search(text):
        return " ".join(text.split()) or "deprecated"
    return ""


def of_decorator(source: ast.expr) -> str | None:
    """Text of a decorator that deprecates what it stands on; None if it does not.

    Decorators for single parameters (`deprecate_kwarg`) are not among them.
    """
    if not isinstance(source, ast.Call):
        return "deprecated" if dotted_name(source).rpartition(".")[2] == "deprecated" else None
    name = dotted_name(source.func).rpartition(".")[2].lower().lstrip("_")
    if not name.startswith("deprecat") or re.search(r"arg|param|kw", name):
        return None
    parts = [text_of(value) for value in [*source.args, *(word.value for word in source.keywords)]]
    return " ".join(" ".join(part for part in parts if part).split()) or "deprecated"


def renamed_parameter(source: ast.expr) -> tuple[str, str, str] | None:
    """(old name, new name or "", text) of a decorator such as `deprecate_kwarg("old", new_name="new")`."""
    if not isinstance(source, ast.Call):
        return None
    name = dotted_name(source.func).rpartition(".")[2].lower()
    if not ("deprecat" in name and re.search(r"arg|param|kw", name)):
        return None
    words = {word.arg: word.value for word in source.keywords if word.arg}
    texts = [text_of(value) for value in source.args]
    old = texts[0] if texts else text_of(next((words[key] for key in words if key.startswith("old")), None))
    others = [text for text in texts[1:] if text]  # ("old", "0.16.0", "new"), ("old", "new", "0.16.0")
    new = next((text_of(words[key]) for key in words if key.startswith("new")), "")
    new = new or next((text for text in others if text.isidentifier()), "")
    if not old.isidentifier():
        return None
    version = next((text_of(words[key]) for key in words if "version" in key), "")
    version = version or next((text for text in others if text[:1].isdigit()), "")
    text = f"{old} is deprecated" + (f", use {new}" if new else "")
    return old, new, text + (f"; removed in {version}" if version[:1].isdigit() else "")


Parameters = list[tuple[str, str, str | None, str]]
MAX_LOCAL = 200
"""Local names that are kept; functions beyond that are not followed."""


def read_function(node: FunctionNode, lines: Lines, package: str) -> FunctionTable:
    """Facts of one function. `package`: what relative imports inside it start from."""
    parameters = read_parameters(node.args, lines)
    body = _FunctionBody(lines, package)
    body.visit(node.body)
    double = node.args.kwarg
    flow = keyword_flow(ast.Module(node.body, []), double.arg, lines.of) if double else KeywordFlow()
    refusal = _refusal(node.body)
    deprecated, notes = _deprecations(node.body, [*(name for name, *_ in parameters), *flow.reads])
    return FunctionTable(
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
        parameter_notes={**_annotated_deprecations(node.args), **notes},
        keyword_reads=sorted(flow.reads),
        keyword_forwards=flow.forwards,
        keyword_open=flow.open,
        keyword_checked=flow.checked,
        keyword_allowed=flow.allowed,
        inner=_inner(node, lines),
    )


def read_parameters(arguments: ast.arguments, lines: Lines) -> Parameters:
    """(name, kind, default, annotation) of each parameter, in order."""
    return [
        (
            entry.arg,
            kind,
            lines.of(default) if default else None,
            lines.of(entry.annotation) if entry.annotation else "",
        )
        for entry, kind, default in each_parameter(arguments)
    ]


@dataclass
class _FunctionBody:
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

    def _on_return(self, node: ast.Return) -> None:
        self.values.append(self.lines.short(node.value))

    def _on_yield(self, node: ast.Yield) -> None:
        self.yields.append(self.lines.short(node.value) or "None")

    def _on_yieldfrom(self, node: ast.YieldFrom) -> None:
        self.yields.append(f"*{self.lines.short(node.value)}")

    def _on_assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._add(target, "value", self.lines.short(node.value))

    def _on_annassign(self, node: ast.AnnAssign) -> None:
        self._add(node.target, "value", self.lines.short(node.value), self.lines.of(node.annotation))

    def _on_augassign(self, node: ast.AugAssign) -> None:
        self._add(node.target, "opaque", "")

    def _on_namedexpr(self, node: ast.NamedExpr) -> None:
        self._add(node.target, "value", self.lines.short(node.value))

    def _on_for(self, node: ast.For | ast.AsyncFor) -> None:
        kind = "async for" if isinstance(node, ast.AsyncFor) else "for"
        self._add(node.target, kind if isinstance(node.target, ast.Name) else "opaque", self.lines.short(node.iter))

    _on_asyncfor = _on_for

    def _on_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self._add(node.optional_vars, "with", self.lines.short(node.context_expr))

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


_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
"""Of an f-string: `Passing a {type(data).__name__} is deprecated` says nothing of `data`."""


def _deprecations(body: Sequence[ast.stmt], names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Text about the function as a whole, and texts about parameters that conditions name."""
    whole = ""
    notes: dict[str, str] = {}
    for text, tests in warned(_meaningful(body), {}):
        if not tests:
            whole = whole or text
            continue
        innermost = {part: test for test in tests for part in _mentions(test)}
        about = [name for name in names if name in innermost]
        # `if isinstance(data, Manager): warn(...)` is about managers, unless the text says that it is about `data`;
        # `if args and args[0] == "serve": warn(...)` is about what `args` holds
        said = _PLACEHOLDER.sub("", text)
        about = [name for name in about if not _asks_whether_it_is_left_out(innermost[name])]
        plain = [name for name in about if not _asks_for_its_content(innermost[name])]
        narrowed = [name for name in about if name in said] or plain
        # "Use `password` instead of `pwd`" is about `pwd`
        narrowed = [name for name in narrowed if not re.search(rf"\buse\W{{1,3}}{name}\b", said, re.I)] or narrowed
        for name in narrowed[:1] if len(narrowed) == 1 or f"{narrowed[:1]}" in text else narrowed:
            notes.setdefault(name, text)
    return whole, notes


def _annotated_deprecations(arguments: ast.arguments) -> dict[str, str]:
    """Texts about parameters in their annotations: `regex: Annotated[str, deprecated("use `pattern`")]`."""
    found: dict[str, str] = {}
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if isinstance(each.annotation, ast.Subscript) and isinstance(each.annotation.slice, ast.Tuple):
            for part in each.annotation.slice.elts:
                text = of_decorator(part) if isinstance(part, ast.Call) else None
                if text:
                    found[each.arg] = text
    return found


def _asks_whether_it_is_left_out(test: ast.expr) -> bool:
    """`if source is None: warn(...)`, `if path is _UNSPECIFIED: warn(...)` warn whoever does not pass it."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Is):
        return False
    other = test.comparators[0]
    return other.value is None if isinstance(other, ast.Constant) else isinstance(other, ast.Name)


def _asks_for_its_content(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp):
        return _asks_for_its_content(test.operand)
    if isinstance(test, ast.BoolOp):
        return (any if isinstance(test.op, ast.And) else all)(map(_asks_for_its_content, test.values))
    if isinstance(test, ast.Compare):
        return isinstance(test.left, ast.Subscript)
    return isinstance(test, ast.Call) and dotted_name(test.func) == "isinstance"


def _mentions(test: ast.expr) -> Iterator[str]:
    for part in ast.walk(test):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _inner(node: FunctionNode, lines: Lines) -> dict[str, tuple[Parameters, list[str], list[str], bool, list[str]]]:
    """Functions defined inside, at any depth, by name: what decorators are judged by."""
    found: dict[str, tuple[Parameters, list[str], list[str], bool, list[str]]] = {}
    for part in ast.walk(node):
        if part is node or not isinstance(part, FunctionNode):
            continue
        body = _FunctionBody(lines, "")
        body.visit(part.body)
        double = part.args.kwarg
        reads = keyword_flow(ast.Module(part.body, []), double.arg, lines.of).reads if double else set()
        decorators = [lines.of(decorator) for decorator in part.decorator_list]
        plain = isinstance(part, ast.FunctionDef) and not body.yields
        found[part.name] = (read_parameters(part.args, lines), decorators, body.values, plain, sorted(reads))
    return found
