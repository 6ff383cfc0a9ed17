"""Find HTTP requests that Python code makes, and judge their routes and fields. Routes come from constants of any file,
and through helpers that send them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from tooling.python.module import last_name
from tooling.python.once import once
from tooling.python.source import FunctionNode, children, dotted_name, each_parameter, string_of
from tooling.upgrade.findings import AuditFinding, AuditSeverity, Evidence, FindingKind, InterfaceKind, Replacement
from tooling.upgrade.interfaces.code import HOLE, RepositoryCode
from tooling.upgrade.interfaces.commands import split_shell
from tooling.upgrade.interfaces.pair import Remembered
from tooling.upgrade.interfaces.routes import VERBS, Route, route_paths, routes, shaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tooling.python.module import Module
    from tooling.upgrade.interfaces.commands import CommandWord
    from tooling.upgrade.interfaces.modules import ReleaseModules
    from tooling.upgrade.interfaces.pair import InterfacePair
    from tooling.upgrade.interfaces.repository import RepositoryFile


_URL = re.compile(r"^(?:https?://|\ufffc)[^/\s]*(?P<path>/[^\s?#]*)")
_MARK = re.compile(r"\x00(\w+)\x00")
"""A parameter of the function whose text it is."""
_ASKERS = VERBS | {"Request", "open", "request", "stream", "urljoin", "urlopen"}
_MOST_ALTERNATIVES = 16
_ROUNDS = 3
"""Helpers that call helpers."""


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


@dataclass(frozen=True, slots=True)
class Sender:
    """A function that requests what it is passed: `def post(self, url, path): session.post(f"{url}{path}")`."""

    parameters: tuple[str, ...]
    """Those that positional arguments land on."""
    url: str
    """With marks for parameters."""
    method: str


@dataclass(frozen=True, slots=True)
class _Text:
    """One thing that an expression may be, and where it was written."""

    text: str
    node: ast.expr


class RequestFinder:
    """Finds the requests of a repository's files."""

    def __init__(self, code: RepositoryCode) -> None:
        self.code = code
        self.senders: dict[str, dict[Sender, None]] = {}
        """By name of the function."""
        self._state = ""
        """What tells these helpers from others."""

    def learn(self, paths: Iterable[str]) -> None:
        """Look for helpers in these files, and for helpers that call them."""
        asked = list(paths)
        asking = set(_ASKERS)
        for number in range(_ROUNDS):
            before = {name: len(found) for name, found in self.senders.items()}
            for path in asked:
                key = f"helpers {number} {self._state} {path} {self.code.digest(path)}"
                made = self.code.remembered.answer(key, partial(self._learn_of_file, path, asking))
                for name, parameters, url, method in made:
                    self.senders.setdefault(name, {})[Sender(parameters, url, method)] = None
                if made:
                    self._state = hashlib.sha256(repr((self._state, made)).encode()).hexdigest()
            asking = {name for name, found in self.senders.items() if len(found) > before.get(name, 0)}
            if not asking:
                return

    def _learn_of_file(self, path: str, asking: set[str]) -> list[tuple[str, tuple[str, ...], str, str]]:
        """Name and values of each helper that a file adds to those that are known, if it calls one of `asking`."""
        module = self.code.at(path)
        found = []
        for node, nodes in self._scopes(path) if module is not None else ():
            if module is None or not isinstance(node, FunctionNode):
                continue
            if asking.isdisjoint(last_name(each.func) for each in nodes if isinstance(each, ast.Call)):
                continue
            for sender in self._learn_of(node, module, nodes):
                known = self.senders.setdefault(node.name, {})
                if sender not in known:
                    known[sender] = None
                    found.append((node.name, sender.parameters, sender.url, sender.method))
        return found

    def _learn_of(self, node: FunctionNode, module: Module, nodes: list[ast.AST]) -> list[Sender]:
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        positional = tuple(name for name in names if name not in {"self", "cls"})
        known = {*positional, *(each.arg for each in node.args.kwonlyargs)}
        place = ast.Name(node.name, lineno=node.lineno, col_offset=node.col_offset)
        scope = _Scope(self, module, node, nodes, {name: [_Text(f"\x00{name}\x00", place)] for name in known})
        return [
            Sender(positional, text.text, method)
            for call in scope.calls
            for text, method in scope.asked(call)
            # The path, or its end, is passed
            if re.split(r"[?#]", text.text, maxsplit=1)[0].endswith("\x00")
        ]

    @once()
    def _scopes(self, path: str) -> list[tuple[ast.AST, list[ast.AST]]]:
        """The functions of a file and its top level, each with its own nodes."""
        module, found = self.code.at(path), []
        waiting: list[ast.AST] = [module.tree] if module is not None else []
        while waiting:
            node = waiting.pop()
            nodes, inner = _own_nodes(node)
            found.append((node, nodes))
            waiting += inner
        return found

    def of(self, path: str) -> list[HttpRequest]:
        """All of a file, each URL at each place once."""
        key = f"requests {self._state} {path} {self.code.digest(path)}"
        return [HttpRequest(*row) for row in self.code.remembered.answer(key, lambda: self._of(path))]

    def _of(self, path: str) -> list[tuple[str, int, int, str, tuple[tuple[str, int, int], ...]]]:
        module = self.code.at(path)
        found: dict[tuple[int, int, str], HttpRequest] = {}
        for node, nodes in self._scopes(path) if module is not None else ():
            if module is None or not any(map(self._may_ask, nodes)):
                continue
            for request in _Scope(self, module, node, nodes).requests():
                key = (request.line, request.column, request.path)
                if key not in found or request.method:
                    found[key] = request
        return [(each.path, each.line, each.column, each.method, each.fields) for each in found.values()]

    def _may_ask(self, node: ast.AST) -> bool:
        """Whether a node may be a request, or a URL: most functions have neither."""
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            return name in _ASKERS or name in self.senders
        if isinstance(node, ast.JoinedStr) and node.values:
            first = node.values[0]
            return not isinstance(first, ast.Constant) or str(first.value).startswith("http")
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


class _Scope:
    """One function, or a module's top level."""

    def __init__(
        self,
        finder: RequestFinder,
        module: Module,
        node: ast.AST,
        nodes: list[ast.AST],
        given: dict[str, list[_Text]] | None = None,
        depth: int = 0,
    ) -> None:
        """given: what parameters stand for, where helpers are looked for. depth: functions that led here."""
        self.depth = depth
        self.finder, self.module, self.nodes = finder, module, nodes
        self.calls = [each for each in self.nodes if isinstance(each, ast.Call)]
        self.texts: dict[str, list[_Text]] = dict(given or {})
        self.dicts: dict[str, ast.Dict] = {}
        if isinstance(node, FunctionNode) and given is None:
            for parameter, _, default in each_parameter(node.args):
                if default is not None:
                    self._assign(ast.Name(parameter.arg), default)
        for each in self.nodes:
            if isinstance(each, ast.Assign):
                for target in each.targets:
                    self._assign(target, each.value)
            elif isinstance(each, ast.AnnAssign) and each.value is not None:
                self._assign(each.target, each.value)
            elif isinstance(each, ast.Call):
                self._changed(each)
            elif isinstance(each, ast.For | ast.AsyncFor | ast.comprehension) and isinstance(each.target, ast.Name):
                self._loop(each.target.id, each.iter)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            sides = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            for side in sides:
                if isinstance(side, ast.Tuple) and len(side.elts) == len(target.elts):
                    for name, each in zip(target.elts, side.elts, strict=True):
                        self._assign(name, each)
            return
        if isinstance(target, ast.Subscript):
            self._extend(dotted_name(target.value), [target.slice])
        held = dotted_name(target)
        if not held:
            return
        body = self._dict(value)
        if body is not None:
            if held in self.dicts and self.dicts[held] is not body:
                body = ast.Dict([], [])  # one of several: which fields are sent is not known
            self.dicts[held] = body
            return
        texts = self.alternatives(value)
        if texts:
            self.texts[held] = [*self.texts.get(held, []), *texts][:_MOST_ALTERNATIVES]

    def _changed(self, node: ast.Call) -> None:
        """`body.update({...})`, `body.setdefault("x", 1)`, `body.pop("x")`."""
        name = dotted_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if name not in self.dicts:
            return
        if last_name(node.func) == "update":
            made = self._dict(ast.Call(ast.Name("dict"), node.args, node.keywords))
            self._extend(name, [key for key in made.keys if key is not None] if made is not None else [])
        elif last_name(node.func) == "setdefault":
            self._extend(name, node.args[:1])
        elif last_name(node.func) == "pop" and node.args:
            taken, body = string_of(node.args[0]), self.dicts[name]
            kept = [key for key in body.keys if key is None or string_of(key) != taken]
            self.dicts[name] = _mapping(kept)

    def _extend(self, name: str, keys: Sequence[ast.expr]) -> None:
        if name in self.dicts:
            self.dicts[name] = _mapping([*self.dicts[name].keys, *keys])

    def _loop(self, name: str, source: ast.expr) -> None:
        """`for path in PATHS`."""
        if isinstance(source, ast.Name | ast.Attribute):
            meant = self.finder.code.named(source, self.module)
            source = meant.node if meant is not None and isinstance(meant.node, ast.expr) else source
        if isinstance(source, ast.List | ast.Tuple | ast.Set):
            self.texts[name] = [text for each in source.elts for text in self.alternatives(each)][:_MOST_ALTERNATIVES]

    def _dict(self, node: ast.expr) -> ast.Dict | None:
        """The mapping that an expression is, or that a function of this file returns, by its keys."""
        if isinstance(node, ast.Dict):
            spread = [self._dict(value) for key, value in zip(node.keys, node.values, strict=True) if key is None]
            keys = [*node.keys, *(key for each in spread if each is not None for key in each.keys)]
            return _mapping(keys) if spread else node
        name = dotted_name(node.func) if isinstance(node, ast.Call) else dotted_name(node)
        if not isinstance(node, ast.Call):
            return self.dicts.get(name) or (
                value if isinstance(value := self.module.values.get(name), ast.Dict) else None
            )
        if name == "dict" and len(node.args) < 2:
            first = self._dict(node.args[0]) if node.args else ast.Dict([], [])
            words = [
                ast.Constant(each.arg, lineno=each.lineno, col_offset=each.col_offset)
                for each in node.keywords
                if each.arg
            ]
            return _mapping([*first.keys, *words]) if first is not None else None
        if name.endswith("dumps") and node.args:
            return self._dict(node.args[0])
        function = self._function(node)
        if function is None:
            return None
        inner = _Scope(self.finder, self.module, function, _own_nodes(function)[0], depth=self.depth + 1)
        returned = [inner._dict(each.value) for each in inner.nodes if isinstance(each, ast.Return) and each.value]
        return next((each for each in returned if each is not None), None)

    # -------------------------------------------------------------------------------------------------- expressions

    def alternatives(self, node: ast.expr) -> list[_Text]:
        """What a URL expression may be; [] for what is not text."""
        if isinstance(node, ast.IfExp):
            return [*self.alternatives(node.body), *self.alternatives(node.orelse)]
        if isinstance(node, ast.JoinedStr):
            texts = [""]
            for each in node.values:
                inner = each.value if isinstance(each, ast.FormattedValue) else each
                texts = _joined(texts, [part.text for part in self.alternatives(inner)] or [HOLE])
            return [_Text(text, node) for text in texts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.alternatives(node.left), self.alternatives(node.right)
            if not right or (not left and not right[0].text.startswith(("/", "\x00"))):
                return []
            texts = _joined([each.text for each in left] or [HOLE], [each.text for each in right])
            return [_Text(text, node) for text in texts]
        if isinstance(node, ast.Call):
            if dotted_name(node.func).endswith("urljoin") and len(node.args) == 2:
                return [_Text(f"{HOLE}/{each.text.lstrip('/')}", node) for each in self.alternatives(node.args[1])]
            text = self.finder.code.text(node, self.module)
            return [_Text(text, node)] if text is not None else self._returned(node)
        name = dotted_name(node)
        if name in self.texts:
            return self.texts[name]
        text = self.finder.code.text(node, self.module)
        return [_Text(text, node)] if text is not None else []

    def _function(self, node: ast.Call) -> FunctionNode | None:
        """The one function of this file, or method, that a call means by its name."""
        name = dotted_name(node.func).removeprefix("self.")
        found = [each for each in self.module.functions() if each.name == name]
        return found[0] if len(found) == 1 and self.depth <= _ROUNDS else None

    def _returned(self, node: ast.Call) -> list[_Text]:
        """What a function makes of the paths that it is given: `self.url("/health")`."""
        function = self._function(node)
        if function is None or not node.args:
            return []
        names = [each.arg for each in function.args.args if each.arg not in {"self", "cls"}]
        given = {name: self.alternatives(value) for name, value in zip(names, node.args, strict=False)}
        nodes = _own_nodes(function)[0]
        inner = _Scope(self.finder, self.module, function, nodes, given, depth=self.depth + 1)
        values = [each.value for each in nodes if isinstance(each, ast.Return) and each.value is not None]
        return [_Text(text.text, node) for value in values for text in inner.alternatives(value)][:_MOST_ALTERNATIVES]

    def asked(self, node: ast.Call) -> list[tuple[_Text, str]]:
        """URLs and methods that a call may request, through helpers too."""
        name = last_name(node.func)
        found = [each for sender in self.finder.senders.get(name, ()) for each in self._sent(node, sender)]
        if name not in _ASKERS or (isinstance(node.func, ast.Name) and name not in {"Request", "urlopen"}):
            return found
        method = name.upper() if name in VERBS else ""
        if name == "request" and node.args:
            verbs = [each.text.upper() for each in self.alternatives(node.args[0])]
            method = verbs[0] if len(verbs) == 1 and (_MARK.match(verbs[0]) or verbs[0].lower() in VERBS) else ""
            method = method.lower() if _MARK.match(method) else method
        for argument in [*node.args[:3], *(each.value for each in node.keywords if each.arg in {"url", "path"})]:
            texts = [each for each in self.alternatives(argument) if is_url(each.text)]
            if texts:
                return [*((each, method) for each in texts), *found]
        return found

    def _sent(self, node: ast.Call, sender: Sender) -> list[tuple[_Text, str]]:
        given: dict[str, ast.expr] = dict(zip(sender.parameters, node.args, strict=False))
        given.update({each.arg: each.value for each in node.keywords if each.arg})
        found = [_Text(sender.url, node)]
        for name in dict.fromkeys(_MARK.findall(sender.url)):
            if name not in given:
                return []  # its default is a request of the helper itself
            values = self.alternatives(given[name])
            filled = []
            for each in found:
                for value in values or [_Text(HOLE, node)]:
                    place = value.node if value.text.startswith("/") else each.node
                    filled.append(_Text(each.text.replace(f"\x00{name}\x00", value.text), place))
            found = filled[:_MOST_ALTERNATIVES]
        method = sender.method
        for name in _MARK.findall(method):
            texts = self.alternatives(given[name]) if name in given else []
            method = texts[0].text.upper() if len(texts) == 1 and not _MARK.search(texts[0].text) else ""
        return [(each, method) for each in found if is_url(each.text)]

    def requests(self) -> list[HttpRequest]:
        """Those of this scope, without the functions in it."""
        found = []
        taken: set[int] = set()
        for call in self.calls:
            asked = self.asked(call) if id(call) not in taken else []
            # Of several routes, which one gets the fields is not known.
            fields = self._fields(call) if len({url_path(text.text) for text, _ in asked}) == 1 else ()
            for text, method in asked:
                path = url_path(text.text)
                if path is not None:
                    taken |= {id(each) for each in (*ast.walk(text.node), call)}
                    found.append(HttpRequest(path, text.node.lineno, text.node.col_offset, method, fields))
        for node in self.nodes:
            if isinstance(node, ast.JoinedStr | ast.BinOp) and id(node) not in taken:
                for text in self.alternatives(node):
                    path = url_path(text.text) if not text.text.startswith("/") else None
                    if path is not None:
                        taken |= {id(each) for each in ast.walk(node)}
                        found.append(HttpRequest(path, node.lineno, node.col_offset))
        return found

    def _fields(self, node: ast.Call) -> tuple[tuple[str, int, int], ...]:
        bodies = [each.value for each in node.keywords if each.arg in {"json", "data", "body", "payload"}]
        literals = [literal for each in (*bodies, *node.args) if (literal := self._dict(each)) is not None]
        keys = literals[0].keys if literals else []
        return tuple((text, key.lineno, key.col_offset) for key in keys if key and (text := string_of(key)) is not None)


def _mapping(keys: Sequence[ast.expr | None]) -> ast.Dict:
    """A dict with these keys, None for those that are not known."""
    return ast.Dict(list(keys), [ast.Constant(None)] * len(keys))


def written_requests(text: str) -> Iterator[HttpRequest]:
    """Those of curl and wget in the text of a script."""
    for words in split_shell(text, 1):
        texts = [word.text for word in words]
        if not {"curl", "wget"} & {each.rpartition("/")[2] for each in texts}:
            continue
        named = [after for before, after in pairwise(texts) if before in {"-X", "--request"}]
        sends = any(re.match(r"-d$|-F$|--data|--form|--json|--post-data", each) for each in texts)
        method = named[0].upper() if named else "POST" if sends else "GET"
        for word in words:
            path = url_path(re.sub(r"\$\{?\w+\}?", HOLE, word.text))
            if path is not None and not word.text.startswith("/"):
                yield HttpRequest(path, word.line, 0, method, tuple(_written_fields(words)))


def _written_fields(words: Sequence[CommandWord]) -> Iterator[tuple[str, int, int]]:
    for word in words:
        if word.text.startswith("{"):
            with suppress(ValueError):
                for key in json.loads(word.text):
                    yield key, word.line + word.text.count("\n", 0, word.text.find(f'"{key}"')), 0


def _own_nodes(scope: ast.AST) -> tuple[list[ast.AST], list[ast.AST]]:
    """The nodes of a scope, and the functions in it, which are scopes of their own."""
    nodes: list[ast.AST] = []
    inner: list[ast.AST] = []
    waiting: list[ast.AST] = list(scope.body) if isinstance(scope, FunctionNode) else children(scope)
    waiting.reverse()
    while waiting:
        node = waiting.pop()
        if isinstance(node, FunctionNode):
            inner.append(node)  # decorators are left out: `@app.get("/x")` serves a path
            continue
        nodes.append(node)
        waiting += reversed(children(node))
    return nodes, inner


def _joined(heads: list[str], tails: list[str]) -> list[str]:
    return [head + tail for head in heads for tail in tails][:_MOST_ALTERNATIVES]


def is_url(text: str) -> bool:
    """Whether a text is a path, a URL, or made of parameters only."""
    return bool(_MARK.search(text)) or url_path(text) is not None


def url_path(text: str) -> str | None:
    """The path of a URL whose beginning may be unknown; parameters in it as "{}"."""
    text = _MARK.sub(HOLE, text)
    if text.startswith("/"):
        path = re.split(r"[\s?#]", text, maxsplit=1)[0]
        return shaped(path.replace(HOLE, "{}")) if len(path) > 1 and not path.startswith("//") else None
    hit = _URL.match(text)
    return shaped(hit["path"].replace(HOLE, "{}")) if hit and len(hit["path"]) > 1 else None


_ASKING = re.compile(rb"https?://|\b(?:requests|httpx|aiohttp|urllib|urljoin|TestClient)\b|_url\b|\burl\b")
_WRITTEN = re.compile(rb"\b(?:curl|wget)\b")
Table = dict[str, list[Route]]
_ROUTES: TypeAdapter[Table] = TypeAdapter(Table)


def judge_routes(files: Sequence[RepositoryFile], pair: InterfacePair) -> Iterator[AuditFinding]:
    """Findings about routes that are gone, and fields that request models lost."""
    asking = {file.path: file for file in files if _asks(file, pair)}
    before = _routes(pair, pair.old) if asking else {}
    if not before:
        return
    after = _routes(pair, pair.new)
    code = RepositoryCode(files, Remembered(pair.remembered("requests")))
    marks = (b"FastAPI", b"APIRouter", b"Route(")
    serving = (file for file in files if file.kind == "python" and any(mark in file.content for mark in marks))
    own = {path for file in serving for path in _served(file, code)}
    requests = list(_requests(files, asking, code))
    code.remembered.save()
    for file, request in requests:
        if pair.is_of_another(file) or not (request.path in before or request.path in after):
            continue
        if not pair.is_reached(file, request.line):
            continue
        known = request.path in before
        pair.look(InterfaceKind.ROUTE, request.path, file.path, request.line, known=known)
        for name, line, _ in request.fields:
            modelled = {field for row in before.get(request.path, []) for field in (*row.body, *row.aliases)}
            if modelled:
                pair.look(InterfaceKind.FIELD, f"{request.path}: {name}", file.path, line, known=name in modelled)
        if known:
            yield from _judge(file, request, before, after, pair, own)


def _served(file: RepositoryFile, code: RepositoryCode) -> list[str]:
    """Paths that a file of the repository serves itself."""
    module = file.module
    return code.remembered.answer(f"served {file.digest}", lambda: sorted(route_paths(module)) if module else [])


def _requests(
    files: Sequence[RepositoryFile], asking: Mapping[str, RepositoryFile], code: RepositoryCode
) -> Iterator[tuple[RepositoryFile, HttpRequest]]:
    """Those of files that ask, and of files that call helpers of such."""
    finder = RequestFinder(code)
    finder.learn(path for path, file in asking.items() if file.kind == "python")
    names = [re.escape(name.encode()) for name in finder.senders if name not in VERBS]
    helpers = re.compile(rb"\.(?:" + b"|".join(names) + rb")\(") if names else None
    for file in files:
        if file.kind != "python":
            for request in written_requests(file.text) if file.path in asking else ():
                yield file, request
        elif file.path in asking or (helpers is not None and helpers.search(file.content)):
            for request in finder.of(file.path):
                yield file, request


def _routes(pair: InterfacePair, modules: ReleaseModules) -> Table:
    return pair.store(modules).answer("routes", _ROUTES, lambda: routes(modules))


def _asks(file: RepositoryFile, pair: InterfacePair) -> bool:
    """Whether a file may send requests at all: it speaks of HTTP, or of a URL, or has a client."""
    speaks = _ASKING if file.kind == "python" else _WRITTEN
    return pair.files.answer(f"asks {file.kind} {file.digest}", lambda: speaks.search(file.content) is not None)


def _methods(rows: list[Route]) -> set[str]:
    return {method for row in rows for method in row.methods}


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
        moved = None if new else _moved(row, before, after, sure=sure)
        kind = FindingKind.HTTP_ROUTE
        yield pair.finding(
            file, place, kind, severity, symbol, message, old=evidence, confidence=confidence, replacement=moved
        )
        return
    yield from _judge_fields(file, request, method, old, new, pair)


def _moved(row: Route, before: Table, after: Table, *, sure: bool) -> Replacement | None:
    """The path that the function of the same name answers now. Certain if the request is one of this server, the name
    is unique in both releases, and the function is in the same file, takes the same and has no parameters."""
    alike = {
        each.path: each
        for path, rows in after.items()
        for each in rows
        if row.handler and path not in before and each.methods & row.methods and each.handler == row.handler
    }
    if len(alike) != 1:
        return None
    found = next(iter(alike.values()))
    places = [
        {(each.file, each.path) for rows in table.values() for each in rows if each.handler == row.handler}
        for table in (before, after)
    ]
    certain = (
        sure
        and found.file == row.file
        and all(len(each) == 1 for each in places)
        and "{" not in row.path + found.path
        and (found.body, found.methods) == (row.body, row.methods)
    )
    return Replacement(found.path, "the same function answers there now", certain=certain)


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
        severity = AuditSeverity.BREAKING if strict else AuditSeverity.WARNING
        symbol = f"{method} {request.path}: {name}"
        message = f"{now.model} has no field {name!r} any more: it is {fate}"
        old_side = Evidence(was.file, was.line, f"{was.model}.{name}")
        new_side = Evidence(now.file, now.line, f"{now.model} (extra = {now.extra})")
        place, kind = (line, column, line), FindingKind.HTTP_FIELD
        made = pair.finding(file, place, kind, severity, symbol, message, old=old_side, new=new_side, confidence=0.8)
        yield replace(made, parameter=name)
