"""HTTP requests of a repository: URLs whose end is constant, and the keys of literal JSON bodies."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from tooling.upgrade.surfaces.modules import FunctionNode, dotted_name
from tooling.upgrade.surfaces.routes import VERBS, shaped


@dataclass(frozen=True, slots=True)
class Request:
    """A URL in a repository's code, as far as its end is constant."""

    path: str
    line: int
    column: int
    method: str = ""
    """ "" if it is not known."""
    fields: tuple[tuple[str, int, int], ...] = field(default=())
    """Keys of a literal JSON body, with line and column."""


_URL = re.compile(r"^(?:https?://|\ufffc)[^/\s]*(?P<path>/[^\s?#]*)")


def requests(tree: ast.Module) -> list[Request]:
    """All of a file, each URL once."""
    return _Requests(tree).found


class _Requests:
    def __init__(self, tree: ast.Module) -> None:
        self.found: list[Request] = []
        self._taken: set[int] = set()
        scopes: list[ast.AST] = [tree]
        while scopes:
            nodes, inner = _own_nodes(scopes.pop())
            scopes += inner
            self._scope(nodes)

    def _scope(self, nodes: list[ast.AST]) -> None:
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
            fields = _fields(body)
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
        self.found.append(Request(shaped(path), source.lineno, source.col_offset, method, fields))
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


def _fields(node: ast.expr | None) -> tuple[tuple[str, int, int], ...]:
    if not isinstance(node, ast.Dict):
        return ()
    keys = [key for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return tuple((str(key.value), key.lineno, key.col_offset) for key in keys)


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
