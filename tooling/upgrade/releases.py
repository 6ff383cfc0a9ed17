"""Contract between `sources` and everything that reads a release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a release was read from; part of each report."""

    distribution: str
    """Normalised name."""
    version: str
    filename: str
    """Of the wheel or sdist."""
    url: str
    """Without credentials; "" for a folder."""
    sha256: str
    """Of the whole archive as the index states it; "" if it states none."""
    verified: str
    """"whole": the archive's hash was checked; "ranged": CRC-32 and RECORD of each member read were; "folder"; "": an
    sdist of which the index states no hash."""
    yanked: str | None = None
    """Why it was yanked; None if it was not."""
    bytes_read: int = 0
    """From the network in this run; 0 when the cache had it."""
    seconds: float = 0.0


class Release(Protocol):
    """One version of one distribution as text. Reading is lazy; nothing is extracted, imported or run.

    Paths are those inside the package root of an installation ("vllm/__init__.py"), whatever the archive's layout.
    """

    origin: Origin

    def files(self) -> Sequence[str]:
        """Sorted paths of the .py and .pyi files that an installation would have. Tests, CI files and examples outside
        the packages are not among them."""
        ...

    def read(self, path: str) -> bytes:
        """Content of one of `files`. Raises KeyError for others, ArchiveError when it does not match its hash."""
        ...

    def folders(self) -> frozenset[str]:
        """All folders that hold a .py or .pyi file, at any depth, with their parents: each counts as a package."""
        ...

    def native(self) -> frozenset[str]:
        """Dotted names of extension modules (.so, .pyd) of the installation: they exist, and cannot be read."""
        ...

    def roots(self) -> frozenset[str]:
        """Dotted names this distribution owns: top-level packages and modules, or for a namespace shared by several
        distributions the parts below it ("megatron.core")."""
        ...

    def requires(self) -> Sequence[str]:
        """Requires-Dist of METADATA, as written."""
        ...

    def scripts(self) -> Mapping[str, str]:
        """Console scripts: name to "module:object"."""
        ...

    def digest(self) -> str:
        """Return a key for caches: equal for equal content of `files`."""
        ...


@dataclass(frozen=True, slots=True)
class TopLevelName:
    """A row of the table of top-level names."""

    module: str
    kind: str
    """"class", "function" or "value"."""
    line: int


@dataclass(frozen=True, slots=True)
class NameTable:
    """Where each top-level name of a release is defined, by pattern and without parsing."""

    by_name: Mapping[str, Sequence[TopLevelName]] = field(default_factory=dict)
