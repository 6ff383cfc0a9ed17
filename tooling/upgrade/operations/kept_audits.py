"""Keep the audits of a run, so that the same question about the same files is answered by reading them once.

The key is everything that an audit depends on: the repository's files, both releases, the policy, and the code of the
audit itself. Whoever edits one file of the repository asks another question.
"""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.findings import Audit
from tooling.upgrade.sources.cache import OURS, touch, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.upgrade.operations.context import UpgradeContext
    from tooling.upgrade.verdicts.comparison import ReleasePair

MOST_KEPT: Final = 64
"""Answers in one cache folder; those used longest ago go first."""
_LARGE: Final = 4_000_000
"""Bytes from which a file is identified by size and time; an audit reads nothing that large."""
_UNFINISHED: Final = 3600
"""Seconds after which a file that nobody finished writing goes."""
_CODE: Final = ("python", "upgrade")
"""Packages of `tooling` whose code makes an audit."""


class KeptAudits:
    """The answer to one question. key: see `audit_key`."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / f"{key}.json"
        self._adapter = TypeAdapter(tuple[tuple[Audit, ...], tuple[tuple[str, str], ...]])

    def read(self) -> tuple[tuple[Audit, ...], tuple[tuple[str, str], ...]] | None:
        """Return the audits, without the time they took, and the name and version of each release that was asked beside
        old and new; None where there are none, or the file is damaged."""
        try:
            found, asked = self._adapter.validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return None
        touch(self._path)
        return tuple(replace(each, seconds=dict.fromkeys(each.seconds, 0.0)) for each in found), asked

    def write(self, audits: tuple[Audit, ...], asked: tuple[tuple[str, str], ...]) -> None:
        """Keep what `read` returns, and no more than `MOST_KEPT` answers in all."""
        folder = self._path.parent
        # A cache that cannot be written only costs time; names that are not UTF-8 cannot be
        with suppress(OSError, ValueError):
            write_atomically(self._path, self._adapter.dump_json((audits, asked)))
            for left in folder.glob(".*.tmp"):
                if left.stat().st_mtime < time.time() - _UNFINISHED:
                    left.unlink(missing_ok=True)
            ours = [path for path in folder.glob("*.json") if OURS.fullmatch(path.name)]
            for old in sorted(ours, key=lambda path: path.stat().st_mtime_ns)[:-MOST_KEPT]:
                old.unlink(missing_ok=True)


def audit_key(context: UpgradeContext, pairs: Sequence[ReleasePair], details: Iterable[str]) -> str:
    """Return what tells one question from another. details: what was asked besides the releases. A file of
    the repository that cannot be read counts as such. Raises ToolError for a release that is damaged."""
    tooling = Path(__file__).resolve().parents[2]
    code = sorted(path for package in _CODE for path in (tooling / package).rglob("*.py"))
    texts = [sys.version, sys.platform, repr(context.policy), *details]
    for release in (upstream.source for pair in pairs for upstream in (pair.old, pair.new)):
        texts += [release.digest(), repr(sorted(release.native())), repr(sorted(release.scripts().items()))]
    texts += [f"{path.name} {facts.st_size} {facts.st_mtime_ns}" for path in code if (facts := path.stat())]
    total = hashlib.sha256()
    for text in texts:
        total.update(text.encode("utf-8", "surrogatepass") + b"\0")
    for path in repository_files(context.root):
        total.update(path.encode("utf-8", "surrogatepass") + b"\0" + _content(context.root / path))
    return total.hexdigest()


def _content(path: Path) -> bytes:
    try:
        facts = path.lstat()
        if path.is_symlink() or facts.st_size > _LARGE:
            return f"{facts.st_size} {facts.st_mtime_ns}".encode()
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        return f"{error.strerror}".encode()
