"""URLs and JSON bodies of a repository against the servers of two releases."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Evidence, Finding, Severity, Verdict
from tooling.upgrade.surfaces.pair import What
from tooling.upgrade.surfaces.requests import Request, requests
from tooling.upgrade.surfaces.routes import Route, route_paths, routes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.surfaces.modules import Modules
    from tooling.upgrade.surfaces.pair import Pair
    from tooling.upgrade.surfaces.repository import SourceFile

_ASKING = re.compile(rb"https?://|\b(?:requests|httpx|aiohttp|urllib|urljoin|TestClient)\b|_url\b|\burl\b")
Table = dict[str, list[Route]]


def judge_routes(files: Sequence[SourceFile], pair: Pair) -> Iterator[Finding]:
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
        if not new or _methods(old) - _methods(new) or (not open_ended and _fields(old) - _fields(new)):
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


def _routes(pair: Pair, modules: Modules) -> Table:
    store = pair.store(modules)
    table = store.routes()
    if table is None:
        table = routes(modules)
        store.keep_routes(table)
    return table


def _asks(file: SourceFile) -> bool:
    """Whether a file may send requests at all: it speaks of HTTP, or of a URL, or has a client."""
    return file.kind == "python" and _ASKING.search(file.content) is not None


def _methods(rows: list[Route]) -> set[str]:
    return {method for row in rows for method in row.methods}


def _fields(rows: list[Route]) -> set[str]:
    return {name for row in rows for name in (*row.body, *row.aliases)}


def _judge(
    file: SourceFile, request: Request, before: Table, after: Table, pair: Pair, own: set[str]
) -> Iterator[Finding]:
    old, new = before[request.path], after.get(request.path, [])
    if request.method and request.method not in _methods(old):
        return
    method = request.method or min(_methods(old))
    row = next((each for each in old if method in each.methods), old[0])
    evidence = Evidence(row.file, row.line, f"{method} {request.path}")
    if not new or (request.method and request.method not in _methods(new)):
        # Servers of other packages, and the repository's own, may have the path too.
        sure = request.path not in own and pair.package.split(".")[0].encode() in file.content.lower()
        severity, confidence = (Severity.BREAKING, 0.85) if sure else (Severity.WARNING, 0.5)
        left = f"; it answers {', '.join(sorted(_methods(new)))} only" if new else ""
        message = f"the server of {pair.distribution} has no {method} {request.path} any more{left}"
        place = (request.line, request.column, request.line)
        symbol = f"{method} {request.path}"
        what = What(Verdict.HTTP_ROUTE, severity, symbol, message, confidence)
        yield pair.finding(file, place, what, old=evidence)
        return
    yield from _judge_fields(file, request, method, old, new, pair)


def _judge_fields(
    file: SourceFile, request: Request, method: str, old: list[Route], new: list[Route], pair: Pair
) -> Iterator[Finding]:
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
            Verdict.HTTP_FIELD,
            Severity.BREAKING if strict else Severity.WARNING,
            f"{method} {request.path}: {name}",
            f"{now.model} has no field {name!r} any more: it is {fate}",
            0.8,
            name,
        )
        old_side = Evidence(was.file, was.line, f"{was.model}.{name}")
        new_side = Evidence(now.file, now.line, f"{now.model} (extra = {now.extra})")
        yield pair.finding(file, (line, column, line), what, old=old_side, new=new_side)
