"""Where this user's tools look for packages: what pip and uv are told, brought together.

    settings = read_settings(project=Path("."))
    settings.indexes     # in the order they are asked

Nothing is asked here. pip reads no configuration of uv and the other way round; a project that uses uv is read as uv
would first, any other as pip would. The public index is asked only if neither names another default, and never if one
of them forbids indexes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.upgrade.sources.config import pip_settings, uv_settings
from tooling.upgrade.sources.links import credentials_of, without_credentials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tooling.upgrade.sources.config.told import Told

PUBLIC_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class Index:
    """A place that answers the Simple API."""

    url: str
    """Without credentials and trailing slash."""
    name: str = ""
    explicit: bool = False
    """Asked only for packages that `[tool.uv.sources]` pins to it."""
    flat: bool = False
    """A page or folder of files instead of one page per project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Everything that decides where releases come from."""

    indexes: tuple[Index, ...] = (Index(PUBLIC_INDEX),)
    find_links: tuple[str, ...] = ()
    """Folders, archives, and addresses of pages with links."""
    first_index: bool = False
    offline: bool = False
    pinned: Mapping[str, str] = field(default_factory=dict)
    """Distribution to name of the index that alone is asked."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Distribution to a path or URL that replaces every index."""
    credentials: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    """Host with port (lower case) to user and password. Never shown."""
    proxy: str | None = field(default=None, repr=False)
    certificates: str | None = None
    trusted_hosts: frozenset[str] = frozenset()
    timeout: float = 15.0
    """Seconds without a byte."""
    retries: int = 4

    def indexes_for(self, distribution: str) -> Sequence[Index]:
        """The indexes to ask for a distribution, in order."""
        pinned = self.pinned.get(distribution)
        if pinned is not None:
            return [index for index in self.indexes if index.name == pinned]
        return [index for index in self.indexes if not index.explicit]


def read_settings(project: Path | None = None, environ: Mapping[str, str] | None = None) -> IndexSettings:
    """What this user, in this project, has configured. environ: instead of the process's, for tests. Files that
    cannot be read or understood count as absent: which tool complains about them is not this one's matter."""
    environ = os.environ if environ is None else environ
    pip = pip_settings.told(environ, project)
    uv = uv_settings.told(environ, project)
    preferred = [uv, pip] if project is not None and uv_settings.is_used(project) else [pip, uv]
    return combined(preferred)


def combined(preferred: Sequence[Told]) -> IndexSettings:
    """Several tools' configurations as one, the preferred tool first."""
    credentials: dict[str, tuple[str, str]] = {}
    by_name = {name: (user, password) for told in preferred for name, user, password in told.credentials}
    indexes = []
    for name, url, explicit, flat in _ordered(preferred):
        indexes.append(Index(without_credentials(url).rstrip("/"), name, explicit, flat))
        known = by_name.get(
            "".join(character if character.isalnum() else "_" for character in name).upper()
        ) or credentials_of(url)
        if known is not None:
            credentials.setdefault(host_of(url), known)
    for told in preferred:
        for url in told.find_links:
            known = credentials_of(url) if "://" in url else None
            if known is not None:
                credentials.setdefault(host_of(url), known)
    return IndexSettings(
        indexes=tuple(dict.fromkeys(indexes)),
        find_links=_unique(
            without_credentials(url) if "://" in url else url for t in preferred for url in t.find_links
        ),
        first_index=preferred[0].first_index,
        offline=any(told.offline for told in preferred),
        pinned={name: index for told in reversed(preferred) for name, index in told.pinned},
        files={name: place for told in reversed(preferred) for name, place in told.files},
        credentials=credentials,
        proxy=next((told.proxy for told in preferred if told.proxy), None),
        certificates=next((told.certificates for told in preferred if told.certificates), None),
        trusted_hosts=frozenset(host.lower() for told in preferred for host in told.trusted_hosts),
        timeout=next((told.timeout for told in preferred if told.timeout), 15.0),
        retries=next((told.retries for told in preferred if told.retries is not None), 4),
    )


def host_of(url: str) -> str:
    """Host and port as credentials are kept by."""
    return without_credentials(url).partition("://")[2].partition("/")[0].lower()


def _ordered(preferred: Sequence[Told]) -> list[tuple[str, str, bool, bool]]:
    if any(told.no_index for told in preferred):
        return []
    name, default = next(((told.default_name, told.default) for told in preferred if told.default), ("", PUBLIC_INDEX))
    others = [index for told in preferred for index in told.indexes]
    main = (name, default, False, False)
    # uv asks its default last, pip its main one first; with pip's rules the order decides only between equal files.
    return [*others, main] if preferred[0].first_index else [main, *others]


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
