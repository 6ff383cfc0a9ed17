"""Remember what was read off a repository's files, together with everything that the answer depends on.

An answer about one file may lead through others: a constant that it imports, a helper that it calls. While an answer
is made, `RepositoryCode` notes what it looks at, and the answer holds for as long as all of that is as it was:

    a.py: post(f"{url}{b.PATH}")    ->    POST /generate; depends on the bytes of a.py and of b.py, and on which file
                                          `b` is. Whoever edits c.py gets this answer without a tree being built.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tooling.upgrade.sources.cache import touch, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

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
