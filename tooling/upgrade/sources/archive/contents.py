"""What is kept of an archive: its sources by the path they have in an installation, and a few facts of its metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """An archive, read."""

    files: Mapping[str, bytes]
    """.py and .pyi files by their path in an installation."""
    native: tuple[str, ...] = ()
    """Paths of compiled modules, likewise."""
    metadata: bytes = b""
    """METADATA or PKG-INFO."""
    entry_points: bytes = b""
    record: bytes = b""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """Console scripts that the metadata of an sdist's build system declares."""
