"""What was fetched before: pages of indexes and the sources of releases, below one folder.

    <cache>/<sha256>.zip           sources of one archive: .py, .pyi, METADATA, entry_points.txt, RECORD; sorted, with
                                   fixed timestamps, so that equal content gives equal bytes
    <cache>/releases/<name>/*.json of each archive fetched: file name, address, hashes, the zip and its hash
    <cache>/pages/*.json           answers of indexes, with what makes asking again cheap

The name of a zip is the SHA-256 of the archive it came from, or of its RECORD where only ranges were read: the hash
that was really checked, so that what an index merely states can never be mistaken for another index's file.

One release takes 0.4 MB (trl) to 12 MB (torch). Above `MAX_BYTES` the zips that were used longest ago are removed; what
audits keep beside them (`KEPT`) has bounds of its own, see `prune_kept`.
Any number of processes may use one folder: files appear whole or not at all, under names that fix their content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from tooling.cli.errors import WriteError
from tooling.upgrade.errors import ArchiveError
from tooling.upgrade.releases import Origin, Release, console_scripts, content_digest, requirements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tooling.upgrade.sources.archive.reading import Contents

_Kept = TypeVar("_Kept")
MAX_BYTES = 2 << 30
KEPT = ("audits", "facts", "interfaces", "repositories", "usage")
"""Folders of what audits work out: whole audits, and what releases and files of repositories say."""
OURS = re.compile(r"[0-9a-f]{30,}(\.\w+)?|\.?facts-[\w-]+|\.\w+\.tmp")
"""Names of the files that are made here; a cache folder may hold others: `--cache .` in a repository."""
KEPT_BYTES = 512 << 20
KEPT_DAYS = 60
UNFINISHED = ".fetch-"
"""How the names of folders begin that hold an archive while it is fetched."""
_ABANDONED_SECONDS = 86_400
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_FACTS = "areal-release.json"
_FILES = "files/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRelease:
    """One archive whose sources are here."""

    origin: Origin
    packed: str = ""
    """File name of the zip."""
    packed_sha256: str = ""
    stamp: str = ""
    """What tells whether the address still has the same file, where no hash is stated: an ETag, or size and time."""


_ENTRY = TypeAdapter(CachedRelease)


def default_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`areal/upgrade` below the user's cache folder: $XDG_CACHE_HOME, ~/.cache, or what the platform has instead."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or Path.home())
    platform = {"darwin": home / "Library/Caches", "win32": Path(environ.get("LOCALAPPDATA") or home / "AppData/Local")}
    named = Path(environ.get("XDG_CACHE_HOME") or "")
    root = named if named.is_absolute() else platform.get(sys.platform, home / ".cache")
    return root / "areal" / "upgrade"


def write_atomically(path: Path, content: bytes) -> None:
    """Make or replace a file, and the folders around it; it appears whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as stream:
        temporary = Path(stream.name)
        try:
            stream.write(content)
            stream.close()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_kept(path: Path, adapter: TypeAdapter[_Kept]) -> _Kept | None:
    """Return what `write_kept` kept; None where there is nothing, or it is damaged."""
    try:
        found = adapter.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    touch(path)
    return found


def write_kept(path: Path, adapter: TypeAdapter[_Kept], value: _Kept) -> None:
    """Keep a value for later runs. A cache that cannot be written only costs time; names that are not UTF-8 cannot
    be."""
    with suppress(OSError, ValueError):
        write_atomically(path, adapter.dump_json(value))


def touch(path: Path) -> None:
    """Count a file as used now: `prune` and `prune_kept` go by last use."""
    with suppress(OSError):
        os.utime(path)


def prune_kept(folder: Path, *, most: int = KEPT_BYTES, now: float | None = None) -> int:
    """Remove what audits kept and nobody used for `KEPT_DAYS`, and, above `most` bytes, what was used longest ago.
    Return the number of bytes removed. Looks at most once a day.

    A file that was used within the last day stays, whatever the size: a run that is going on may read it again."""
    now = time.time() if now is None else now
    looked = folder / "looked-at"
    with suppress(OSError):
        if now - looked.stat().st_mtime < _ABANDONED_SECONDS:
            return 0
    found = _by_last_use(path for name in KEPT for path in (folder / name).rglob("*"))
    total = sum(size for _, size, _ in found)
    removed = 0
    for used, size, path in found:
        age = now - used
        if age < _ABANDONED_SECONDS or (total - removed <= most and age < KEPT_DAYS * 86_400):
            break
        with suppress(OSError):
            path.unlink()
            removed += size
    with suppress(OSError):
        write_atomically(looked, b"")
    return removed


def _by_last_use(paths: Iterable[Path]) -> list[tuple[float, int, Path]]:
    """(time of last use, bytes, path) of the files among these that are made here, those used longest ago first."""
    found = []
    for path in paths:
        with suppress(OSError):
            facts = path.lstat()
            if OURS.fullmatch(path.name) and stat.S_ISREG(facts.st_mode):
                found.append((facts.st_mtime, facts.st_size, path))
    return sorted(found)


class Cache:
    """The folder. Reading never raises for what is missing or damaged; that is then removed, and fetched again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ------------------------------------------------------------------------------------------------------- releases

    def entries(self, distribution: str) -> Iterator[CachedRelease]:
        """Everything known of a distribution, in a fixed order."""
        for path in sorted((self.folder / "releases" / distribution).glob("*.json")):
            entry = _entry(path)
            if entry is not None:
                yield entry

    def versions(self, distribution: str) -> list[str]:
        """Versions whose sources are here, in the order of their records."""
        found = (entry for entry in self.entries(distribution) if (self.folder / entry.packed).is_file())
        return [entry.origin.version for entry in found]

    def distributions(self) -> list[str]:
        """Names of all distributions something is known of."""
        return sorted(path.name for path in (self.folder / "releases").glob("*") if path.is_dir())

    def entry(self, distribution: str, url: str, sha256: str) -> CachedRelease | None:
        """Return what is known of one file."""
        return _entry(self._entry_path(distribution, url, sha256))

    def release(self, entry: CachedRelease) -> Release | None:
        """Return the sources of an entry; None when they are gone or damaged."""
        path = self.folder / entry.packed
        try:
            packed = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(packed).hexdigest() != entry.packed_sha256:
            path.unlink(missing_ok=True)
            return None
        touch(path)
        return _opened(packed, entry.origin)

    def keep(self, entry: CachedRelease, contents: Contents, archive_sha256: str) -> Release:
        """Store the sources of an archive. archive_sha256: of the whole archive, "" where only ranges were read.

        Raises WriteError when the folder cannot be written."""
        packed = _packed(contents)
        name = archive_sha256 or hashlib.sha256(contents.record).hexdigest()
        digest = hashlib.sha256(packed).hexdigest()
        kept = replace(entry, packed=f"{name}.zip", packed_sha256=digest)
        self.write(kept.packed, packed)
        path = self._entry_path(entry.origin.distribution, entry.origin.url, entry.origin.sha256)
        self.write(str(path.relative_to(self.folder)), _ENTRY.dump_json(kept))
        self.prune()
        return _opened(packed, kept.origin)

    def _entry_path(self, distribution: str, url: str, sha256: str) -> Path:
        name = hashlib.sha256(f"{url}\n{sha256}".encode()).hexdigest()[:32]
        return self.folder / "releases" / distribution / f"{name}.json"

    # ---------------------------------------------------------------------------------------------------------- files

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file atomically. Raises WriteError."""
        path = self.folder / name
        try:
            write_atomically(path, content)
        except OSError as error:
            fix = "make it writable, or name another cache folder"
            raise WriteError(f"the cache cannot be written: {error.strerror}", where=str(path), fix=fix) from error

    def prune(self, most: int = MAX_BYTES) -> None:
        """Remove the zips used longest ago until the rest fits, and what killed processes left behind."""
        for left in self.folder.glob(f"{UNFINISHED}*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        found = _by_last_use(self.folder.glob("*.zip"))
        total = sum(size for _, size, _ in found)
        for _, size, path in found[:-1]:
            if total <= most:
                break
            path.unlink(missing_ok=True)
            total -= size


def _entry(path: Path) -> CachedRelease | None:
    entry = read_kept(path, _ENTRY)
    # The name comes from a file that anyone may have edited.
    is_ours = entry is not None and Path(entry.packed).name == entry.packed and entry.packed.endswith(".zip")
    return entry if is_ours else None


def _packed(contents: Contents) -> bytes:
    digest = content_digest(sorted(contents.files.items()))
    facts = {"digest": digest, "native": list(contents.native), "scripts": dict(sorted(contents.scripts.items()))}
    members = {f"{_FILES}{path}": content for path, content in contents.files.items()}
    members |= {"METADATA": contents.metadata, "entry_points.txt": contents.entry_points, "RECORD": contents.record}
    members[_FACTS] = json.dumps(facts, sort_keys=True).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in sorted(members.items()):
            information = zipfile.ZipInfo(name, _TIMESTAMP)
            information.compress_type = zipfile.ZIP_DEFLATED
            information.create_system = 3
            archive.writestr(information, content, compresslevel=5)
    return target.getvalue()


def _opened(packed: bytes, origin: Origin) -> Release:
    archive = zipfile.ZipFile(io.BytesIO(packed))
    facts = json.loads(archive.read(_FACTS))
    names = [name[len(_FILES) :] for name in archive.namelist() if name.startswith(_FILES)]

    def read(path: str) -> bytes:
        try:
            return archive.read(_FILES + path)
        except zipfile.BadZipFile as error:
            raise ArchiveError(f"damaged cache: {error}", where=origin.filename, fix="remove it") from error

    scripts = console_scripts(archive.read("entry_points.txt")) or facts["scripts"]
    requires = requirements(archive.read("METADATA"))
    return Release(origin, [*names, *facts["native"]], read, requires=requires, scripts=scripts, digest=facts["digest"])
