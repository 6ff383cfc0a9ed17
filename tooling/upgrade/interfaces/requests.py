"""Find HTTP requests that a repository makes, and judge their routes and fields."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.upgrade.findings import AuditFinding, AuditSeverity, Evidence, FindingKind
from tooling.upgrade.interfaces.modules import FunctionNode, dotted_name
from tooling.upgrade.interfaces.pair import What
from tooling.upgrade.interfaces.routes import VERBS, Route, route_paths, routes, shaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.interfaces.modules import ReleaseModules
    from tooling.upgrade.interfaces.pair import InterfacePair
    from tooling.upgrade.interfaces.repository import RepositoryFile


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A URL in a repository's code, as far as its end is constant."""

    path: str
    line: int
    column: int
    method: str = ""
    """ "" if it is not known."""
    fields: tuple[tuple[str, int, int], ...] = field(default=())
    """Keys of a literal JSON body, with line and column."""


_URL = re.compile(r"^(?:https?://|\ufffc)[^/\s]*(?P<path>/[^\s?#]*)")


def requests(tree: ast.Module) -> list[HttpRequest]:
    """All of a file, each URL once."""
    return _Requests(tree).found


class _Requests:
    def __init__(self, tree: ast.Module) -> None:
        self.found: list[HttpRequest] = []
        self._taken: set[int] = set()
        scopes: list[ast.AST] = [tree]
        while scopes:
            nodes, inner = _own_nodes(scopes.pop())
            scopes += inner
            texts, dicts = {}, {}
            for node in nodes:
                if isinstance(node, ast.Assign) and len(node.targets) == 1 and (name := dotted_name(node.targets[0])):
                    if isinstance(node.value, ast.Dict):
                        dicts[name] = node.value
                    elif _path(node.value, {}) is not None:
                        texts[name] = node.value
            for node in nodes:
                if isinstance(node, ast.Call) and id(node) not in self._taken:
                    self._call(node, texts, dicts)
            for node in nodes:
                if isinstance(node, ast.JoinedStr | ast.BinOp) and id(node) not in self._taken:
                    self._add(node, "", (), {})

    def _call(self, node: ast.Call, texts: dict[str, ast.expr], dicts: dict[str, ast.Dict]) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name not in VERBS | {"request", "stream", "urljoin", "open"}:
            return
        for argument in [*node.args[:3], *(each.value for each in node.keywords if each.arg in {"url", "path"})]:
            method = name.upper() if name in VERBS else ""
            body = next((each.value for each in node.keywords if each.arg in {"json", "data"}), None)
            if body is not None and (held := dotted_name(body)) in dicts:
                body = dicts[held or ""]
            keys = body.keys if isinstance(body, ast.Dict) else ()
            texts_of = [key for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            fields = tuple((str(key.value), key.lineno, key.col_offset) for key in texts_of)
            if self._add(argument, method, fields, texts):
                self._taken.add(id(node))
                return

    def _add(
        self, node: ast.expr, method: str, fields: tuple[tuple[str, int, int], ...], texts: dict[str, ast.expr]
    ) -> bool:
        path = _path(node, texts)
        source = texts.get(dotted_name(node) or "", node)
        if path is None:
            return False
        for each in ast.walk(source):
            self._taken.add(id(each))
        self.found = [each for each in self.found if (each.line, each.column) != (source.lineno, source.col_offset)]
        self.found.append(HttpRequest(shaped(path), source.lineno, source.col_offset, method, fields))
        return True


def _own_nodes(scope: ast.AST) -> tuple[list[ast.AST], list[ast.AST]]:
    """The nodes of a scope, and the functions in it, which are scopes of their own."""
    nodes: list[ast.AST] = []
    inner: list[ast.AST] = []
    waiting: list[ast.AST] = list(scope.body) if isinstance(scope, FunctionNode) else list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, FunctionNode):
            inner.append(node)  # decorators are left out: `@app.get("/x")` serves a path
            continue
        nodes.append(node)
        waiting += ast.iter_child_nodes(node)
    return nodes[::-1], inner


def _path(node: ast.expr, texts: dict[str, ast.expr]) -> str | None:
    """The path of a URL expression whose beginning may be unknown; parameters in it as "{}"."""
    text = _url_text(node, texts)
    if text is None:
        return None
    if text.startswith("/"):
        # A bare path counts only where it is asked for: as an argument of get, post, urljoin...
        return text.replace("\ufffc", "{}") if isinstance(node, ast.Constant) and len(text) > 1 else None
    hit = _URL.match(text)
    return hit["path"].replace("\ufffc", "{}") if hit and len(hit["path"]) > 1 else None


def _url_text(node: ast.expr, texts: dict[str, ast.expr]) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "\ufffc" for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _url_text(node.left, texts), _url_text(node.right, texts)
        if right is None or (left is None and not right.startswith("/")):
            return None
        return (left if left is not None else "\ufffc") + right
    if isinstance(node, ast.Call) and (dotted_name(node.func) or "").endswith("urljoin") and len(node.args) == 2:
        tail = _url_text(node.args[1], texts)
        return None if tail is None else "\ufffc/" + tail.lstrip("/")
    held = texts.get(dotted_name(node) or "")
    return _url_text(held, {}) if held is not None else None


_ASKING = re.compile(rb"https?://|\b(?:requests|httpx|aiohttp|urllib|urljoin|TestClient)\b|_url\b|\burl\b")
Table = dict[str, list[Route]]


def judge_routes(files: Sequence[RepositoryFile], pair: InterfacePair) -> Iterator[AuditFinding]:
    """Findings about routes that are gone, and fields that request models lost."""
    if not any(_asks(file) for file in files):
        return
    before = _routes(pair, pair.old)
    if not before:
        return
    after = _routes(pair, pair.new)
    # Last words of the paths where anything changed: what a file must contain to be looked at
    found = set()
    for path, old in before.items():
        new = after.get(path, [])
        open_ended = any(row.extra == "allow" or not row.body for row in new)
        if not new or _methods(old) - _methods(new) or (not open_ended and _field_names(old) - _field_names(new)):
            words = [part for part in path.split("/") if part and part != "{}"]
            found.add(("/" + words[-1] if words else path).encode())
    tails = found
    if not tails:
        return
    own = route_paths(
        file.tree
        for file in files
        if file.kind == "python"
        and b"/" in file.content
        and any(mark in file.content for mark in (b"FastAPI", b"APIRouter", b"Route("))
    )
    for file in files:
        if not _asks(file) or not any(tail in file.content for tail in tails) or file.tree is None:
            continue
        for request in requests(file.tree):
            if request.path in before and pair.is_reached(file, request.line):
                yield from _judge(file, request, before, after, pair, own)


def _routes(pair: InterfacePair, modules: ReleaseModules) -> Table:
    store = pair.store(modules)
    table = store.routes()
    if table is None:
        table = routes(modules)
        store.keep_routes(table)
    return table


def _asks(file: RepositoryFile) -> bool:
    """Whether a file may send requests at all: it speaks of HTTP, or of a URL, or has a client."""
    return file.kind == "python" and _ASKING.search(file.content) is not None


def _methods(rows: list[Route]) -> set[str]:
    return {method for row in rows for method in row.methods}


def _field_names(rows: list[Route]) -> set[str]:
    return {name for row in rows for name in (*row.body, *row.aliases)}


def _judge(
    file: RepositoryFile, request: HttpRequest, before: Table, after: Table, pair: InterfacePair, own: set[str]
) -> Iterator[AuditFinding]:
    old, new = before[request.path], after.get(request.path, [])
    if request.method and request.method not in _methods(old):
        return
    method = request.method or min(_methods(old))
    row = next((each for each in old if method in each.methods), old[0])
    evidence = Evidence(row.file, row.line, f"{method} {request.path}")
    if not new or (request.method and request.method not in _methods(new)):
        # Servers of other packages, and the repository's own, may have the path too.
        sure = request.path not in own and pair.package.split(".")[0].encode() in file.content.lower()
        severity, confidence = (AuditSeverity.BREAKING, 0.85) if sure else (AuditSeverity.WARNING, 0.5)
        left = f"; it answers {', '.join(sorted(_methods(new)))} only" if new else ""
        message = f"the server of {pair.distribution} has no {method} {request.path} any more{left}"
        place = (request.line, request.column, request.line)
        symbol = f"{method} {request.path}"
        what = What(FindingKind.HTTP_ROUTE, severity, symbol, message, confidence)
        yield pair.finding(file, place, what, old=evidence)
        return
    yield from _judge_fields(file, request, method, old, new, pair)


def _judge_fields(
    file: RepositoryFile, request: HttpRequest, method: str, old: list[Route], new: list[Route], pair: InterfacePair
) -> Iterator[AuditFinding]:
    was = next((each for each in old if method in each.methods and each.body), None)
    now = next((each for each in new if method in each.methods), None)
    if was is None or now is None or not now.body or now.extra == "allow":
        return
    for name, line, column in request.fields:
        if name in now.body or name in now.aliases or name not in (*was.body, *was.aliases):
            continue
        strict = now.extra == "forbid"
        fate = "refused" if strict else "silently ignored"
        what = What(
            FindingKind.HTTP_FIELD,
            AuditSeverity.BREAKING if strict else AuditSeverity.WARNING,
            f"{method} {request.path}: {name}",
            f"{now.model} has no field {name!r} any more: it is {fate}",
            0.8,
            name,
        )
        old_side = Evidence(was.file, was.line, f"{was.model}.{name}")
        new_side = Evidence(now.file, now.line, f"{now.model} (extra = {now.extra})")
        yield pair.finding(file, (line, column, line), what, old=old_side, new=new_side)
