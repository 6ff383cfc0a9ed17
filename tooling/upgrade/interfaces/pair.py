"""Hold what both releases offer, worked out once and cached by content."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.upgrade.findings import AuditFinding, Evidence, InterfaceUse, Unfollowed
from tooling.upgrade.interfaces.parsers import Flag, ParserNode
from tooling.upgrade.interfaces.routes import Route

if TYPE_CHECKING:
    from tooling.upgrade.findings import AuditSeverity, FindingKind, InterfaceKind, Replacement
    from tooling.upgrade.interfaces.modules import ReleaseModules
    from tooling.upgrade.interfaces.repository import RepositoryFile
    from tooling.upgrade.releases import Release


_SCHEMA = 3
"""To be raised whenever the same release would give other rows."""
_MOST_BYTES = 16_000_000


class InterfaceStore:
    """Entries of one release. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None, release: Release) -> None:
        self._folder = folder
        self._release = release

    def _path(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        key = hashlib.sha256(f"{_SCHEMA}\n{self._release.digest()}\n{name}".encode()).hexdigest()
        return self._folder / "interfaces" / f"{key}.json"

    def _read(self, name: str) -> Any:
        path = self._path(name)
        try:
            if path is None or path.stat().st_size > _MOST_BYTES:
                return None
            return json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None

    def _write(self, name: str, value: Any) -> None:
        path = self._path(name)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(value, file)
            Path(temporary).replace(path)
        except OSError:
            return  # a cache that cannot be written only costs time

    def routes(self) -> dict[str, list[Route]] | None:
        """Kept routes; None if there are none."""
        try:
            return {path: [_route(row) for row in rows] for path, rows in self._read("routes").items()}
        except (AttributeError, KeyError, TypeError):
            return None

    def keep_routes(self, table: dict[str, list[Route]]) -> None:
        """For the next run."""
        rows = {path: [{**asdict(row), "methods": sorted(row.methods)} for row in each] for path, each in table.items()}
        self._write("routes", rows)

    def parser(self, program: str) -> tuple[bool, ParserNode | None]:
        """(whether it is known, the program's parser)."""
        kept = self._read(f"program {program}")
        try:
            return (True, _node(kept["parser"]) if kept["parser"] is not None else None)
        except (AttributeError, KeyError, TypeError):
            return (False, None)

    def keep_parser(self, program: str, parser: ParserNode | None) -> None:
        """For the next run."""
        self._write(f"program {program}", {"parser": None if parser is None else _row(parser, 0)})


def _route(row: dict[str, Any]) -> Route:
    methods, body, aliases = frozenset(row["methods"]), tuple(row["body"]), tuple(row["aliases"])
    return Route(row["path"], methods, row["file"], row["line"], body, row["model"], row["extra"], aliases)


def _row(node: ParserNode, depth: int) -> dict[str, Any]:
    children = {name: _row(child, depth + 1) for name, child in node.children.items()} if depth < 8 else {}
    return {
        "flags": [asdict(flag) for flag in node.merged().values()],
        "names": list(node.merged()),
        "children": children,
        "unknown": node.unknown,
        "lenient": node.lenient,
        "dashes": node.dashes,
        "handled": sorted(node.handled),
    }


def _node(row: dict[str, Any]) -> ParserNode:
    return ParserNode(
        flags={name: Flag(**flag) for name, flag in zip(row["names"], row["flags"], strict=True)},
        children={name: _node(child) for name, child in row["children"].items()},
        unknown=list(row["unknown"]),
        lenient=bool(row["lenient"]),
        dashes=bool(row["dashes"]),
        handled=frozenset(row["handled"]),
    )


@dataclass(frozen=True, slots=True)
class What:
    """The gist of a finding."""

    kind: FindingKind
    severity: AuditSeverity
    symbol: str
    message: str
    confidence: float = 0.9
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class InterfacePair:
    """Old and new."""

    old: ReleaseModules
    new: ReleaseModules
    package: str
    cache: Path | None = None
    rivals: tuple[str, ...] = ()
    """Import names of other packages that the repository uses: a file named after one speaks to that one's server."""
    uses: set[InterfaceUse] = field(default_factory=set)
    unfollowed: set[Unfollowed] = field(default_factory=set)

    def look(self, kind: InterfaceKind, name: str, path: str, line: int, *, known: bool = True) -> None:
        """Count a use."""
        self.uses.add(InterfaceUse(kind=kind, name=name, path=path, line=line, known=known))

    def is_of_another(self, file: RepositoryFile) -> bool:
        """Whether a file's path names other packages, and not this one."""
        words = set(re.split(r"[^a-z0-9]+", file.path.lower()))
        return self.package.split(".")[0] not in words and any(each.split(".")[0] in words for each in self.rivals)

    def store(self, modules: ReleaseModules) -> InterfaceStore:
        """What is kept about one side."""
        return InterfaceStore(self.cache, modules.release)

    @property
    def distribution(self) -> str:
        """Whose releases they are."""
        return self.new.release.origin.distribution

    @property
    def roots(self) -> tuple[str, ...]:
        """Import names of both."""
        return tuple(sorted({self.package, *self.old.release.roots(), *self.new.release.roots()}))

    def versions(self, modules: ReleaseModules) -> dict[str, str]:
        """Import names and the distribution, to the version of one side: what guards compare."""
        version = modules.release.origin.version
        return dict.fromkeys((*self.roots, self.distribution), version)

    def is_reached(self, file: RepositoryFile, line: int) -> bool:
        """Whether a line runs on the new version, as far as guards tell."""
        return file.guards is None or file.guards.reached(line, self.versions(self.new)) is not False

    def finding(
        self,
        file: RepositoryFile,
        place: tuple[int, int, int],
        what: What,
        *,
        old: Evidence,
        new: Evidence | None = None,
        replacement: Replacement | None = None,
    ) -> AuditFinding:
        """A finding at (line, column, end line)."""
        line, column, end_line = place
        return AuditFinding(
            path=file.path,
            line=line,
            column=column,
            end_line=max(line, end_line),
            kind=what.kind,
            severity=what.severity,
            confidence=what.confidence,
            distribution=self.distribution,
            symbol=what.symbol,
            parameter=what.parameter,
            message=what.message,
            old=old,
            new=new or Evidence(),
            replacement=replacement,
            guard=file.guards.words(line, self.versions(self.new)) if file.guards is not None else "",
        )
