"""Judge the routes and fields of HTTP requests that a repository makes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from tooling.upgrade.findings import AuditFinding, AuditSeverity, Evidence, FindingKind, InterfaceKind, Replacement
from tooling.upgrade.interfaces.code import RepositoryCode
from tooling.upgrade.interfaces.pair import What
from tooling.upgrade.interfaces.remembered import Remembered
from tooling.upgrade.interfaces.request_finder import RequestFinder, written_requests
from tooling.upgrade.interfaces.routes import VERBS, Route, route_paths, routes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.upgrade.interfaces.modules import ReleaseModules
    from tooling.upgrade.interfaces.pair import InterfacePair
    from tooling.upgrade.interfaces.repository import RepositoryFile
    from tooling.upgrade.interfaces.request_finder import HttpRequest


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
        calls = helpers is not None and file.path not in asking
        if file.kind != "python":
            for request in written_requests(file.text) if file.path in asking else ():
                yield file, request
        elif file.path in asking or (calls and helpers is not None and helpers.search(file.content)):
            for request in finder.of(file.path):
                yield file, request


def _routes(pair: InterfacePair, modules: ReleaseModules) -> Table:
    store = pair.store(modules)
    table = store.read("routes", _ROUTES)
    if table is None:
        table = routes(modules)
        store.write("routes", _ROUTES, table)
    return table


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
        what = What(FindingKind.HTTP_ROUTE, severity, symbol, message, confidence)
        moved = None if new else _moved(row, before, after, sure=sure)
        yield pair.finding(file, place, what, old=evidence, replacement=moved)
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
