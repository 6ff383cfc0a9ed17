"""HTTP routes that a release serves: decorators, `add_api_route`, prefixes of routers, models of request bodies."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.python.module import keyword, last_name
from tooling.python.source import FunctionNode, dotted_name, each_parameter, parse_expression, string_of
from tooling.python.symbols.symbol import Found, Signature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.upgrade.interfaces.modules import ReleaseModules

VERBS = frozenset({"get", "post", "put", "delete", "patch", "head", "options", "websocket"})
_ADDERS = frozenset({"Route", "add_api_route", "add_api_websocket_route", "add_route", "add_websocket_route"})
_MARKS = (b"FastAPI", b"APIRouter", b"add_api_route", b"Route(")
_PARAMETER = re.compile(r"\{[^}]*\}|<[^>]*>")
_SKIPPED_TYPES = frozenset({"Request", "WebSocket", "Response", "BackgroundTasks"})
_MODELS = frozenset({"dataclass", "pydantic", "pydantic-dataclass", "typeddict"})
"""Styles of classes that FastAPI reads from the body of a request."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path of a server."""

    path: str
    """With prefixes; parameters as "{}"."""
    methods: frozenset[str]
    file: str
    line: int
    body: tuple[str, ...] = ()
    """Fields of the request's model; () if it is not known."""
    model: str = ""
    extra: str = ""
    """What the model does with unknown fields: "forbid", "ignore" or "allow"."""
    aliases: tuple[str, ...] = ()
    handler: str = ""
    """Name of the function that is decorated; "" for a route that is added by a call."""


def shaped(path: str) -> str:
    """A path with its parameters alike: "/v1/models/{model_id:path}" and "/v1/models/{}" are one."""
    return _PARAMETER.sub("{}", path.split("?", maxsplit=1)[0]).rstrip("/") or "/"


def routes(modules: ReleaseModules) -> dict[str, list[Route]]:
    """By path."""
    found: dict[str, list[Route]] = {}
    files = [module for path in modules.holding(*_MARKS) if (module := modules.at(path))]
    prefixes = _included(files)
    for module in files:
        for route in _of_module(modules, module, prefixes):
            found.setdefault(route.path, []).append(route)
    return found


def route_paths(module: Module) -> set[str]:
    """Paths that a file of a repository serves itself, without prefixes."""
    return {
        shaped(path) for call, handler in _calls(module) for path, _, _ in _declared(call, decorating=bool(handler))
    }


def _calls(module: Module) -> Iterator[tuple[ast.Call, FunctionNode | None]]:
    """Yield calls, with the function that one decorates. A decorator is also one of the calls of the file."""
    for function in module.functions():
        yield from ((each, function) for each in function.decorator_list if isinstance(each, ast.Call))
    yield from ((each, None) for each in module.nodes(ast.Call))


def _included(files: list[Module]) -> dict[str, set[str]]:
    """`include_router(x, prefix="/v1")`: name of the router to prefixes."""
    found: dict[str, set[str]] = {}
    for node in (each for module in files for each in module.nodes(ast.Call)):
        name = last_name(node.func)
        if isinstance(node.func, ast.Attribute) and node.args and name in {"include_router", "mount"}:
            router = node.args[0] if name == "include_router" else node.args[-1]
            prefix = _keyword(node, "prefix") or (string_of(node.args[0]) if name == "mount" else "")
            found.setdefault(last_name(router), set()).add(prefix or "")
    return found


def _keyword(node: ast.Call, name: str) -> str:
    return string_of(keyword(node, name)) or ""


def _of_module(modules: ReleaseModules, module: Module, included: dict[str, set[str]]) -> Iterator[Route]:
    own = {
        target.id: _keyword(node.value, "prefix")
        for node in module.nodes(ast.Assign)
        if isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    functions = {node.name: node for node in module.functions()}
    for call, handler in _calls(module):
        for path, methods, named in _declared(call, decorating=handler is not None):
            name = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            endpoint = handler or functions.get(named)
            body = _body(modules, module, endpoint) if endpoint is not None else _NO_BODY
            for prefix in sorted(included.get(name) or {""}):
                whole = shaped(prefix + own.get(name, "") + path)
                function = handler.name if handler is not None else ""
                yield Route(whole, methods, module.path, call.lineno, *body, function)


def _declared(call: ast.Call, *, decorating: bool) -> Iterator[tuple[str, frozenset[str], str]]:
    """(path, methods, name of the handler)."""
    name = last_name(call.func)
    path = (string_of(call.args[0]) if call.args else None) or _keyword(call, "path")
    if not path or not path.startswith("/"):
        return
    listed = keyword(call, "methods")
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple | ast.Set) else []
    methods = frozenset(text.upper() for each in elements if (text := string_of(each)))
    if decorating and (name in VERBS or name in {"api_route", "route"}):
        yield path, methods or frozenset({name.upper()} if name in VERBS else {"GET"}), ""
    elif not decorating and name in _ADDERS:
        endpoint = dotted_name(call.args[1] if len(call.args) > 1 else keyword(call, "endpoint"))
        yield path, methods or frozenset({"GET"}), endpoint.rpartition(".")[2]


_RequestBody = tuple[tuple[str, ...], str, str, tuple[str, ...]]
"""As in a `Route`: body, model, extra, aliases."""
_NO_BODY: _RequestBody = ((), "", "", ())


def _body(modules: ReleaseModules, module: Module, handler: FunctionNode) -> _RequestBody:
    """Of the one parameter that is a model of the release, all of whose fields are known."""
    for parameter, _, _ in each_parameter(handler.args):
        if parameter.annotation is None or ast.unparse(parameter.annotation) in _SKIPPED_TYPES:
            continue
        model = modules.class_named(_inner(parameter.annotation), module)
        found = modules.symbols.resolve(f"{model.module.package}.{model.node.name}") if model is not None else None
        if model is None or not isinstance(found, Found):
            continue
        style, signature = modules.symbols.fields.style(found.symbol), modules.symbols.signature(found.symbol)
        if style is None or style.name not in _MODELS or style.extra == "unknown":
            continue  # a service that is injected
        parameters = modules.symbols.fields.parameters(found.symbol, style)  # also beside `__init__(self, **data)`
        if isinstance(signature, Signature) and signature.exact and parameters:
            fields = tuple(each.name for each in parameters)
            aliases = tuple(alias for each in parameters for alias in each.aliases)
            return fields, model.node.name, style.extra or "ignore", aliases
    return _NO_BODY


def _inner(annotation: ast.expr) -> ast.expr:
    """`Annotated[X, Body()]`, `"X"` and `X | None` as X."""
    wrapped = dotted_name(annotation.value) if isinstance(annotation, ast.Subscript) else ""
    if isinstance(annotation, ast.Subscript) and wrapped.endswith(("Annotated", "Optional")):
        inner = annotation.slice
        return inner.elts[0] if isinstance(inner, ast.Tuple) else inner
    if isinstance(annotation, ast.BinOp):
        return annotation.left
    text = string_of(annotation)
    return parse_expression(text) or annotation if text is not None else annotation
