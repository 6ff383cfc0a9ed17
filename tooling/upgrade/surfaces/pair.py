"""The two releases of one audit, and findings about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Evidence, Finding
from tooling.upgrade.surfaces.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.upgrade.findings import Replacement, Severity, Verdict
    from tooling.upgrade.surfaces.modules import Modules
    from tooling.upgrade.surfaces.repository import SourceFile


@dataclass(frozen=True, slots=True)
class What:
    """The gist of a finding."""

    kind: Verdict
    severity: Severity
    symbol: str
    message: str
    confidence: float = 0.9
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Old and new."""

    old: Modules
    new: Modules
    package: str
    cache: Path | None = None

    def store(self, modules: Modules) -> Store:
        """What is kept about one side."""
        return Store(self.cache, modules.release)

    @property
    def distribution(self) -> str:
        """Whose releases they are."""
        return self.new.release.origin.distribution

    @property
    def roots(self) -> tuple[str, ...]:
        """Import names of both."""
        return tuple(sorted({self.package, *self.old.release.roots(), *self.new.release.roots()}))

    def versions(self, modules: Modules) -> dict[str, str]:
        """Import names and the distribution, to the version of one side: what guards compare."""
        version = modules.release.origin.version
        return dict.fromkeys((*self.roots, self.distribution), version)

    def is_reached(self, file: SourceFile, line: int) -> bool:
        """Whether a line runs on the new version, as far as guards tell."""
        return file.guards is None or file.guards.reached(line, self.versions(self.new)) is not False

    def finding(
        self,
        file: SourceFile,
        place: tuple[int, int, int],
        what: What,
        *,
        old: Evidence,
        new: Evidence | None = None,
        replacement: Replacement | None = None,
    ) -> Finding:
        """A finding at (line, column, end line)."""
        line, column, end_line = place
        return Finding(
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
