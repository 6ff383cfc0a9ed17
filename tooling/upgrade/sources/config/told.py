"""What one tool's configuration says about indexes, before several are brought together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """What one tool's configuration says. Fields that it does not mention are None or empty."""

    default: str | None = None
    default_name: str = ""
    indexes: tuple[tuple[str, str, bool, bool], ...] = ()
    """(name, URL with credentials, explicit, flat) beside the default one, in order."""
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    first_index: bool = False
    """Whether the first index that knows a package is the only one asked for it."""
    offline: bool = False
    pinned: tuple[tuple[str, str], ...] = ()
    """(distribution, name of an index), of `[tool.uv.sources]`."""
    files: tuple[tuple[str, str], ...] = ()
    """(distribution, path or URL of a file or folder), likewise."""
    credentials: tuple[tuple[str, str, str], ...] = ()
    """(name of an index, user, password)."""
    proxy: str | None = None
    certificates: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout: float | None = None
    retries: int | None = None
