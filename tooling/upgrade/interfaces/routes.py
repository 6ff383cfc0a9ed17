"""HTTP routes that a release serves: decorators, `add_api_route`, prefixes of routers, models of request bodies."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.python.source import FunctionNode, dotted_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.upgrade.interfaces.modules import ModuleDefinition, ReleaseModule, ReleaseModules

VERBS = frozenset({"get", "post", "put", "delete", "patch", "head", "options", "websocket"})
_ADDERS = frozenset({"Route", "add_api_route", "add_api_websocket_route", "add_route", "add_websocket_route"})
_MARKS = (b"FastAPI", b"APIRouter", b"add_api_route", b"Route(")
_PARAMETER = re.compile(r"\{[^}]*\}|<[^>]*>")
_SKIPPED_TYPES = frozenset({"Request", "WebSocket", "Response", "BackgroundTasks"})


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


def route_paths(trees: Iterable[ast.Module | None]) -> set[str]:
    """Paths that files of a repository serve themselves, without prefixes."""
    found: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, FunctionNode):
                calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
                found |= {shaped(path) for call in calls for path, _, _ in _declared(call, decorating=True)}
            elif isinstance(node, ast.Call):
                found |= {shaped(path) for path, _, _ in _declared(node, decorating=False)}
    return found


def _included(files: list[ReleaseModule]) -> dict[str, set[str]]:
    """`include_router(x, prefix="/v1")`: name of the router to prefixes."""
    found: dict[str, set[str]] = {}
    for module in files:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr not in {"include_router", "mount"}:
                    continue
                router = node.args[0] if node.func.attr == "include_router" else node.args[-1]
                prefix = _keyword(node, "prefix") or (_constant(node.args[0]) if node.func.attr == "mount" else "")
                name = dotted_name(router).rpartition(".")[2]
                found.setdefault(name, set()).add(prefix or "")
    return found


def _keyword(node: ast.Call, name: str) -> str:
    return next((_constant(each.value) or "" for each in node.keywords if each.arg == name), "")


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _of_module(modules: ReleaseModules, module: ReleaseModule, included: dict[str, set[str]]) -> Iterator[Route]:
    own = {
        target.id: _keyword(node.value, "prefix")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    functions = {node.name: node for node in ast.walk(module.tree) if isinstance(node, FunctionNode)}
    for node in ast.walk(module.tree):
        handler = None
        calls: list[ast.Call] = []
        if isinstance(node, FunctionNode):
            handler, calls = node, [each for each in node.decorator_list if isinstance(each, ast.Call)]
        elif isinstance(node, ast.Call):
            calls = [node]
        for call in calls:
            for path, methods, named in _declared(call, decorating=handler is not None):
                receiver = dotted_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
                endpoint = handler or functions.get(named)
                name = receiver.rpartition(".")[2]
                body = _body(modules, module, endpoint) if endpoint is not None else _RequestBody()
                for prefix in sorted(included.get(name) or {""}):
                    whole = shaped(prefix + own.get(name, "") + path)
                    yield Route(
                        whole,
                        methods,
                        module.path,
                        call.lineno,
                        body.fields,
                        body.model,
                        body.extra,
                        body.aliases,
                        handler.name if handler is not None else "",
                    )


def _declared(call: ast.Call, *, decorating: bool) -> Iterator[tuple[str, frozenset[str], str]]:
    """(path, methods, name of the handler)."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted_name(call.func)
    path = (_constant(call.args[0]) if call.args else None) or _keyword(call, "path")
    if not path or not path.startswith("/"):
        return
    listed = next((each.value for each in call.keywords if each.arg == "methods"), None)
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple | ast.Set) else []
    methods = frozenset(text.upper() for each in elements if (text := _constant(each)))
    if decorating and (name in VERBS or name in {"api_route", "route"}):
        yield path, methods or frozenset({name.upper()} if name in VERBS else {"GET"}), ""
    elif not decorating and name in _ADDERS:
        handler = dotted_name(call.args[1]) if len(call.args) > 1 else ""
        endpoint = handler or next((dotted_name(each.value) for each in call.keywords if each.arg == "endpoint"), "")
        yield path, methods or frozenset({"GET"}), endpoint.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class _RequestBody:
    fields: tuple[str, ...] = ()
    model: str = ""
    extra: str = ""
    aliases: tuple[str, ...] = ()


def _body(modules: ReleaseModules, module: ReleaseModule, handler: FunctionNode) -> _RequestBody:
    """Of the one parameter that is a model of the release."""
    for parameter in [*handler.args.posonlyargs, *handler.args.args, *handler.args.kwonlyargs]:
        if parameter.annotation is None or ast.unparse(parameter.annotation) in _SKIPPED_TYPES:
            continue
        found = modules.named(_inner(parameter.annotation), module)
        if found is None or not isinstance(found.node, ast.ClassDef):
            continue
        fields = tuple(modules.fields(found))
        if fields and _all_known(modules, found):
            return _RequestBody(fields, found.node.name, _extra(modules, found), _aliases(modules, found))
    return _RequestBody()


def _inner(annotation: ast.expr) -> ast.expr:
    """`Annotated[X, Body()]`, `"X"` and `X | None` as X."""
    wrapped = dotted_name(annotation.value) if isinstance(annotation, ast.Subscript) else ""
    if isinstance(annotation, ast.Subscript) and wrapped.endswith(("Annotated", "Optional")):
        inner = annotation.slice
        return inner.elts[0] if isinstance(inner, ast.Tuple) else inner
    if isinstance(annotation, ast.BinOp):
        return annotation.left
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return annotation
    return annotation


_KNOWN_BASES = frozenset({"BaseModel", "object", "Generic", "ABC", "Protocol", "TypedDict", "SQLModel"})


def _all_known(modules: ReleaseModules, definition: ModuleDefinition) -> bool:
    """Whether no base is from elsewhere: it could have more fields."""
    for each in modules.bases(definition):
        if not isinstance(each.node, ast.ClassDef):
            return False
        for base in each.node.bases:
            origin = base.value if isinstance(base, ast.Subscript) else base
            name = dotted_name(origin).rpartition(".")[2]
            if name not in _KNOWN_BASES and modules.named(origin, each.module) is None:
                return False
    return True


def _extra(modules: ReleaseModules, definition: ModuleDefinition) -> str:
    for each in modules.bases(definition):
        for node in each.node.body:
            source = ast.unparse(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.ClassDef) else ""
            if source.startswith(("model_config", "class Config")):
                hit = re.search(r"extra\W+(?:Extra\.)?[\"']?(forbid|allow|ignore)", source)
                if hit is not None:
                    return hit[1]
    return "ignore"


def _aliases(modules: ReleaseModules, definition: ModuleDefinition) -> tuple[str, ...]:
    found: list[str] = []
    for each in modules.bases(definition):
        for node in ast.walk(each.node):
            if isinstance(node, ast.keyword) and node.arg in {"alias", "validation_alias"}:
                inner = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
                found += [text for text in inner if isinstance(text, str)]
    return tuple(found)
