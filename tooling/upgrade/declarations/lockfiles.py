"""What a lock file holds: uv.lock, pylock.toml, poetry.lock, pdm.lock, and files of pins (constraints.txt).

One lock may hold several versions of one package, for different extras or markers: nothing here assumes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from tooling.cli.errors import UsageError
from tooling.cli.toml import TOMLError, parse_toml
from tooling.upgrade.declarations.declaration import ManifestText, read_requirements

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, order=True)
class LockedPackage:
    """One version of one package."""

    name: str
    version: str
    extras: tuple[str, ...] = ()
    """Extras and groups of the project that bring it; "" is the project itself. () where the lock does not tell."""
    source: str = ""
    """Where from, if not from an index: a git URL with commit, a path."""
    requires: tuple[str, ...] = ()
    """Names of what it depends on."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file's packages, sorted."""

    path: str
    packages: tuple[LockedPackage, ...]

    def of(self, name: str) -> tuple[LockedPackage, ...]:
        """All versions of one package (normalised name)."""
        return tuple(each for each in self.packages if each.name == name)


def read_lock(path: str, content: bytes) -> Lock:
    """Read a lock of any of the known kinds. Raises UsageError for damaged ones."""
    if path.endswith((".txt", ".in")):
        return _pins(path, content)
    try:
        document = parse_toml(content)
    except TOMLError as error:
        raise UsageError(f"is not a lock file: {error}", where=path, fix="remove it, and lock again") from error
    tables = document.get("package") or document.get("packages") or []
    rows = [table for table in tables if isinstance(table, dict) and isinstance(table.get("name"), str)]
    reached = _reached(rows)
    packages = []
    for row in rows:
        if _is_project(row):
            continue
        name, version = canonicalize_name(row["name"]), str(row.get("version", ""))
        extras = sorted(extra for extra, keys in reached.items() if (name, version) in keys)
        packages.append(
            LockedPackage(
                name=name,
                version=version,
                extras=tuple(extras),
                source=_source(row.get("source")),
                requires=tuple(sorted({each[0] for each in _edges(row.get("dependencies"))})),
            )
        )
    return Lock(path, tuple(sorted(packages)))


def _pins(path: str, content: bytes) -> Lock:
    declared = read_requirements(ManifestText(path, content.decode("utf-8", errors="replace")))
    pinned = [each for each in declared if each.is_pinned]
    rows = {LockedPackage(each.distribution, each.specifier.lstrip("= ")) for each in pinned}
    return Lock(path, tuple(sorted(rows)))


def _is_project(row: Mapping[str, Any]) -> bool:
    """Return the project itself and members of its workspace."""
    source = row.get("source")
    return isinstance(source, dict) and bool({"editable", "virtual"} & set(source))


def _source(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    return next((str(value[key]) for key in ("git", "url", "path", "directory") if key in value), "")


Edge = tuple[str, str, tuple[str, ...]]
"""Name, version ("" where there is only one), extras."""


def _edges(value: Any) -> list[Edge]:
    if not isinstance(value, list):
        return []
    found: list[Edge] = []
    for row in value:
        if isinstance(row, dict) and isinstance(row.get("name"), str):
            extras = row.get("extra", row.get("extras", []))
            texts = (each for each in extras if isinstance(each, str)) if isinstance(extras, list) else ()
            found.append((canonicalize_name(row["name"]), str(row.get("version", "")), tuple(texts)))
    return found


def _reached(rows: Sequence[Mapping[str, Any]]) -> dict[str, set[tuple[str, str]]]:
    """For each extra and group of the projects ("" for their own dependencies): what it brings, as (name, version)."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(canonicalize_name(row["name"]), []).append(row)
    found: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        if not _is_project(row):
            continue
        for extra, edges in _roots(row):
            found.setdefault(extra, set()).update(_closure(edges, by_name))
    return found


def _roots(row: Mapping[str, Any]) -> Iterable[tuple[str, list[Edge]]]:
    yield "", _edges(row.get("dependencies"))
    for key in ("optional-dependencies", "dev-dependencies"):
        table = row.get(key)
        for extra, listed in table.items() if isinstance(table, dict) else ():
            yield extra, _edges(listed)


def _closure(edges: list[Edge], by_name: Mapping[str, list[Mapping[str, Any]]]) -> set[tuple[str, str]]:
    seen: set[tuple[str, str, tuple[str, ...]]] = set()
    found: set[tuple[str, str]] = set()
    waiting = list(edges)
    while waiting:
        edge = waiting.pop()
        if edge in seen:
            continue
        seen.add(edge)
        name, version, extras = edge
        for row in by_name.get(name, []):
            if version and str(row.get("version", "")) != version:
                continue
            found.add((name, str(row.get("version", ""))))
            waiting += _edges(row.get("dependencies"))
            optional = row.get("optional-dependencies")
            for extra in extras:
                waiting += _edges(optional.get(extra)) if isinstance(optional, dict) else []
    return found
