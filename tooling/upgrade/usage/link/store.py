"""Facts of the files of a checkout, made or loaded when they are asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tooling.python.once import once
from tooling.python.source import Lines, decode
from tooling.upgrade.usage.scan import scan

if TYPE_CHECKING:
    from tooling.upgrade.usage.checkout import Checkout
    from tooling.upgrade.usage.facts import FactsCache, FileFacts


class FactsStore:
    """Facts by path."""

    def __init__(self, checkout: Checkout, cache: FactsCache) -> None:
        self.checkout = checkout
        self._cache = cache
        self._facts: dict[str, FileFacts] = {}
        self.scanned = 0
        self.scan_seconds = 0.0

    def facts(self, path: str) -> FileFacts:
        """What a file says."""
        found = self._facts.get(path)
        if found is None:
            digest = self.checkout.digest(path)
            found = self._cache.load(digest)
            if found is None:
                started = time.process_time()
                found = scan(self.checkout.content(path))
                self._cache.store(digest, found)
                self.scanned += 1
                self.scan_seconds += time.process_time() - started
            self._facts[path] = found
        return found

    def loaded(self) -> list[str]:
        """Files whose facts are known so far."""
        return sorted(self._facts)

    def text(self, path: str, span: tuple[int, ...]) -> str:
        """Source between two places; a fifth number is an element that is taken of it."""
        text = self._lines(path).between(*span[:4])
        return f"({text})[{span[4]}]" if len(span) > 4 else text

    @once()
    def _lines(self, path: str) -> Lines:
        return Lines(decode(self.checkout.content(path)))
