"""Facts kept between runs: one file per content, named by its hash and the schema, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING

from tooling.upgrade.usage.facts import SCHEMA, Facts, pack, unpack

if TYPE_CHECKING:
    from pathlib import Path

_MARK = f"areal usage {SCHEMA} {sys.version_info.major}.{sys.version_info.minor}\n".encode()


class FactsCache:
    """A folder of facts. Without one nothing is kept. A damaged entry is as good as none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / f"usage-{SCHEMA}"
        self.hits = 0

    def load(self, digest: str) -> Facts | None:
        """Facts of a content."""
        if self._folder is None:
            return None
        try:
            data = (self._folder / digest[:2] / digest[2:]).read_bytes()
        except OSError:
            return None
        facts = unpack(data[len(_MARK) :]) if data.startswith(_MARK) else None
        self.hits += facts is not None
        return facts

    def store(self, digest: str, facts: Facts) -> None:
        """Keep facts. A cache that cannot be written is no reason to fail."""
        if self._folder is None:
            return
        target = self._folder / digest[:2] / digest[2:]
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(_MARK + pack(facts))
            os.replace(name, target)
