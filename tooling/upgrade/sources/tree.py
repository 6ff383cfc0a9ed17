"""A release over anything that maps paths to bytes: the one implementation of `releases.Release`."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

from tooling.upgrade.sources import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tooling.upgrade.releases import Origin


class Tree:
    """Files of an installation behind a reader. Cheap to make: what costs something is worked out when asked for."""

    def __init__(
        self,
        origin: Origin,
        paths: Sequence[str],
        read: Callable[[str], bytes],
        *,
        requires: Sequence[str] = (),
        scripts: Mapping[str, str] | None = None,
        digest: str = "",
    ) -> None:
        """paths: sources and compiled modules, in any order. read: gives the content of a source. digest: of the
        content, where it is known already."""
        self.origin = origin
        self._all = tuple(
            path for path in layout.without_asides(paths) if (layout.is_source(path) or layout.is_native(path))
        )
        self._files = tuple(path for path in self._all if layout.is_source(path))
        self._known = frozenset(self._files)
        self._read = read
        self._requires = tuple(requires)
        self._scripts = dict(scripts or {})
        self._given_digest = digest

    def files(self) -> Sequence[str]:
        """Sorted paths of sources."""
        return self._files

    def read(self, path: str) -> bytes:
        """Content of one of `files`; KeyError for others."""
        if path not in self._known:
            raise KeyError(path)
        return self._read(path)

    def folders(self) -> frozenset[str]:
        """All folders with sources, and their parents."""
        return self._folders

    def native(self) -> frozenset[str]:
        """Dotted names of compiled modules."""
        return self._native

    def roots(self) -> frozenset[str]:
        """Dotted names this distribution owns."""
        return self._roots

    def requires(self) -> Sequence[str]:
        """Requires-Dist, as written."""
        return self._requires

    def scripts(self) -> Mapping[str, str]:
        """Console scripts: name to "module:object"."""
        return self._scripts

    def digest(self) -> str:
        """SHA-256 over paths and contents."""
        return self._digest

    @cached_property
    def _folders(self) -> frozenset[str]:
        return layout.folders_of(self._files)

    @cached_property
    def _native(self) -> frozenset[str]:
        return layout.native_modules(self._all)

    @cached_property
    def _roots(self) -> frozenset[str]:
        return layout.owned_roots(self._all, self._read)

    @cached_property
    def _digest(self) -> str:
        return self._given_digest or content_digest((path, self._read(path)) for path in self._files)


def content_digest(contents: Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over (path, content) pairs in the order given; equal only for equal paths and contents."""
    total = hashlib.sha256()
    for path, content in contents:
        total.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return total.hexdigest()
