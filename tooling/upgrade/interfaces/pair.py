"""Hold what both releases offer, worked out once and cached by content; and remember what was read off a repository's
files, together with everything that the answer depends on.

An answer about one file may lead through others: a constant that it imports, a helper that it calls. While an answer
is made, `RepositoryCode` notes what it looks at, and the answer holds for as long as all of that is as it was:

    a.py: post(f"{url}{b.PATH}")    ->    POST /generate; depends on the bytes of a.py and of b.py, and on which file
                                          `b` is. Whoever edits c.py gets this answer without a tree being built.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tooling.python import tables
from tooling.upgrade.findings import AuditFinding, AuditSeverity, Evidence, InterfaceUse, Unfollowed
from tooling.upgrade.sources.cache import read_kept, touch, write_atomically, write_kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import TypeAdapter

    from tooling.upgrade.findings import FindingKind, InterfaceKind, Replacement
    from tooling.upgrade.interfaces.modules import ReleaseModules
    from tooling.upgrade.interfaces.repository import RepositoryFile
    from tooling.upgrade.releases import Release


_Answer = TypeVar("_Answer")
_Noted = dict[tuple[str, str], Any]
"""(question, its subject) to the answer: ("content", "a.py") to a digest."""


@dataclass(slots=True)
class Remembered:
    """Answers in one file, which holds no more than the last run needed; without a file nothing is kept.

    holds: by question, whether the answer about a subject is still what `note` recorded; see `RepositoryCode`."""

    path: Path | None = None
    holds: dict[str, Callable[[str, Any], bool]] = field(default_factory=dict)
    _kept: dict[str, tuple[Any, _Noted]] | None = None
    _used: dict[str, tuple[Any, _Noted]] = field(default_factory=dict)
    _noting: _Noted | None = None
    _changed: bool = False

    def note(self, question: str, subject: str, answer: Any) -> None:
        """Record that what is being made depends on this answer, which is made of plain values."""
        if self._noting is not None:
            self._noting[question, subject] = answer

    def answer(self, key: str, make: Callable[[], _Answer]) -> _Answer:
        """Return what `make` returns, made only if it was not made before under that key, or something that it depends
        on has changed. It must be made of plain values, tuples and lists."""
        found = self._used.get(key) or self._read().get(key)
        if found is None or not all(
            self.holds[question](subject, was) for (question, subject), was in found[1].items()
        ):
            outer, self._noting = self._noting, {}
            try:
                found = make(), self._noting
            finally:
                self._noting = outer
            self._changed = True
        if self._noting is not None:
            self._noting.update(found[1])
        self._used[key] = found
        made: _Answer = found[0]
        return made

    def save(self) -> None:
        """Keep what this run used. A cache that cannot be written only costs time."""
        if self.path is None:
            return
        if not self._changed and len(self._used) == len(self._read()):
            touch(self.path)
        else:
            with suppress(OSError, ValueError):
                write_atomically(self.path, _mark() + marshal.dumps(self._used))

    def _read(self) -> dict[str, tuple[Any, _Noted]]:
        if self._kept is None:
            self._kept = {}
            with suppress(OSError, ValueError, EOFError, TypeError):
                data = self.path.read_bytes() if self.path is not None else b""
                found = marshal.loads(data[len(_mark()) :]) if data.startswith(_mark()) else {}
                self._kept = found if isinstance(found, dict) else {}
        return self._kept


@cache
def _mark() -> bytes:
    """What the bytes are good for: this Python, and the code that makes the answers."""
    here = Path(__file__).resolve()
    code = sorted([*here.parent.glob("*.py"), *(here.parents[2] / "python").glob("*.py")])
    facts = [(path.name, facts.st_size, facts.st_mtime_ns) for path in code if (facts := path.stat())]
    return hashlib.sha256(repr((sys.version, facts)).encode()).digest()


_SCHEMA = 11
"""To be raised whenever the same release would give other rows. Models of requests are read as symbols, whose own
number counts too."""
_Kept = TypeVar("_Kept")


class InterfaceStore:
    """Entries of one release. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None, release: Release) -> None:
        self._folder = folder
        self._release = release

    def _path(self, name: str) -> Path:
        key = hashlib.sha256(f"{_SCHEMA} {tables.SCHEMA}\n{self._release.digest()}\n{name}".encode()).hexdigest()
        return (self._folder or Path(os.devnull)) / "interfaces" / f"{key}.json"

    def read(self, name: str, adapter: TypeAdapter[_Kept]) -> _Kept | None:
        """What was kept under a name; None if there is nothing, or it is damaged."""
        return read_kept(self._path(name), adapter) if self._folder is not None else None

    def answer(self, name: str, adapter: TypeAdapter[_Kept], make: Callable[[], _Kept]) -> _Kept:
        """What was kept under a name, made and kept now if nothing was."""
        found = self.read(name, adapter)
        if found is None:
            found = make()
            self.write(name, adapter, found)
        return found

    def write(self, name: str, adapter: TypeAdapter[_Kept], value: _Kept) -> None:
        """Keep something under a name, for the next run."""
        if self._folder is not None:
            write_kept(self._path(name), adapter, value)


@dataclass(frozen=True, slots=True)
class InterfacePair:
    """Old and new."""

    old: ReleaseModules
    new: ReleaseModules
    package: str
    cache: Path | None = None
    rivals: tuple[str, ...] = ()
    """Import names of other packages that the repository uses: a file named after one speaks to that one's server."""
    repository: Path | None = None
    uses: set[InterfaceUse] = field(default_factory=set)
    unfollowed: set[Unfollowed] = field(default_factory=set)
    files: Remembered = field(default_factory=Remembered)
    """What depends on the text of one file alone, besides the two releases."""

    def __post_init__(self) -> None:
        """Say where it is remembered."""
        self.files.path = self.remembered(f"files of {self.package}")

    def remembered(self, name: str) -> Path | None:
        """The file for what earlier runs read off this repository. name: what of it, and for whom."""
        where = hashlib.sha256(f"{self.repository}\n{name}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self.cache / "repositories" / f"{where}.bin" if self.cache is not None and self.repository else None

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
        if file.kind != "python":
            return True
        versions = self.versions(self.new)
        skipped = self.files.answer(
            f"skipped {versions} {file.path} {file.digest}",
            lambda: file.guards.skipped(versions) if file.guards is not None else [],
        )
        return not any(first <= line <= last for first, last in skipped)

    def finding(
        self,
        file: RepositoryFile,
        place: tuple[int, int, int],
        kind: FindingKind,
        severity: AuditSeverity,
        symbol: str,
        message: str,
        *,
        old: Evidence,
        confidence: float = 0.9,
        new: Evidence | None = None,
        replacement: Replacement | None = None,
    ) -> AuditFinding:
        """A finding at (line, column, end line)."""
        line, column, end_line = place
        if file.kind == "page" and severity is AuditSeverity.BREAKING:  # nothing runs a page
            severity = AuditSeverity.WARNING
        return AuditFinding(
            path=file.path,
            line=line,
            column=column,
            end_line=max(line, end_line),
            kind=kind,
            severity=severity,
            confidence=confidence,
            distribution=self.distribution,
            symbol=symbol,
            message=message,
            old=old,
            new=new or Evidence(),
            replacement=replacement,
            fixable=bool(replacement and replacement.certain),
            guard=file.guards.words(line, self.versions(self.new)) if file.guards is not None else "",
        )
