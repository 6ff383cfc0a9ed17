"""Contract between `sources` and everything that reads a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tooling.python.source import SourceTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.python.symbols.tree import SymbolTree

    Upstream = SymbolTree["Release"]
    """A release as symbols."""


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
    doubt: str = ""
    """What its archive says wrongly of itself, although its index vouches for the whole of it; "" for nothing."""
    yanked: str | None = None
    """Why it was yanked; None if it was not."""
    bytes_read: int = 0
    """From the network in this run; 0 when the cache had it."""
    seconds: float = 0.0


class Release(SourceTree, Protocol):
    """One version of one distribution as text. Reading is lazy; nothing is extracted, imported or run. `read` raises
    ArchiveError for what does not match its hash; tests, CI files and examples outside the packages are left out.

    Paths are those inside the package root of an installation ("vllm/__init__.py"), whatever the archive's layout.
    """

    origin: Origin

    def requires(self) -> Sequence[str]:
        """Requires-Dist of METADATA, as written."""
        ...

    def scripts(self) -> Mapping[str, str]:
        """Console scripts: name to "module:object"."""
        ...
