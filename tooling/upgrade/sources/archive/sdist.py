"""Read source distributions: safe tar archives, and where an installation would put their files."""

from __future__ import annotations

import gzip
import posixpath
import tarfile
import tomllib
import zlib
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from tooling.cli.toml import table_in
from tooling.upgrade.errors import ArchiveError
from tooling.upgrade.releases import is_source
from tooling.upgrade.sources.archive.reading import MAX_MEMBERS, ArchiveFile, Budget, Contents, PlainZip, checked_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


_MAX_STREAM = 2 << 30
"""Most bytes of the whole archive, inflated, also of what is not kept."""
_EXTENDED = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_MAX_EXTENDED = 1 << 20
"""Most bytes of a header that extends another: the standard library reads it whole."""


def tar_members(path: Path, filename: str, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Contents of the members whose name is wanted, links followed. Raises ArchiveError."""
    found: dict[str, bytes] = {}
    links: dict[str, str] = {}
    budget = Budget(filename)
    try:
        with gzip.open(path, "rb") as unpacked:
            stream = _Bounded(unpacked, filename)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]  # a stream is read from only
                for count, member in enumerate(archive):
                    if count > MAX_MEMBERS:
                        raise ArchiveError(f"it has more than {MAX_MEMBERS} members", where=filename)
                    name = member.name.removeprefix("./").rstrip("/")
                    if (name in {"", "."} and member.isdir()) or not checked_name(name, filename):
                        continue
                    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                        raise ArchiveError(f"{name!r} is a device or something unknown", where=filename)
                    if member.isdir() or (member.isfile() and not wanted(name)):
                        continue
                    if name in found or name in links:
                        raise ArchiveError(f"{name!r} is there twice", where=filename)
                    if not member.isfile():
                        links[name] = _linked(member, name, filename)
                        continue
                    budget.take(name, member.size)
                    content = archive.extractfile(member)
                    found[name] = content.read() if content is not None else b""
                    if len(found[name]) != member.size:
                        raise ArchiveError(f"{name!r} ends too early", where=filename)
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError) as error:
        raise ArchiveError(f"damaged archive: {error}", where=filename, fix="nothing of it was kept") from error
    for name in filter(wanted, links):  # at the end, since a link's target may come later
        target = name
        for _ in range(16):  # a circle ends at a name without a file
            target = links.get(target, target)
        if target in found:
            budget.take(name, len(found[target]))
            found[name] = found[target]
    return found


def _linked(member: tarfile.TarInfo, name: str, where: str) -> str:
    start = posixpath.dirname(name) if member.issym() else ""
    target = posixpath.normpath(posixpath.join(start, member.linkname))
    outside = target == ".." or target.startswith(("/", "../"))
    if outside or "\\" in target or ":" in target.partition("/")[0]:
        raise ArchiveError(f"{name!r} is a link that leads out of the archive", where=where)
    return target


class _Bounded:
    """A stream that ends in an error instead of going on for ever."""

    def __init__(self, stream: gzip.GzipFile, where: str) -> None:
        self._stream = stream
        self._where = where
        self._left = _MAX_STREAM

    def read(self, size: int) -> bytes:
        found = self._stream.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise ArchiveError(f"it would take more than {_MAX_STREAM >> 20} MB", where=self._where)
        return found


class _Header(tarfile.TarInfo):
    """Refuses headers that would be read into memory at any size, and sparse files."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED and header.size > _MAX_EXTENDED:
            raise ArchiveError("an extended header is too long")
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise ArchiveError("it holds a sparse file")
        return header


_FACTS = frozenset({"PKG-INFO", "pyproject.toml", "top_level.txt", "entry_points.txt"})
_HOMES = ("src", "lib", "python", "")
"""Folders that packages are looked for in, in this order."""
_ASIDE = """
    benchmark benchmarks build ci cmake conftest csrc dist doc docs example examples notebooks noxfile requirements
    script scripts setup tasks templates test testing tests third_party tool tools vendor versioneer
"""
_NOT_PACKAGES = frozenset(_ASIDE.split())


def read_sdist(path: Path, filename: str, distribution: str) -> Contents:
    """Return the sources of an sdist (.tar.gz or .zip) that lies at `path`.

    Raises ArchiveError when it is damaged, hostile, or holds no package."""
    if filename.endswith(".zip"):
        with ArchiveFile(path) as stream:
            archive = PlainZip(stream, filename)
            found = archive.contents([name for name in archive.names if _is_wanted(name)])
    else:
        found = tar_members(path, filename, _is_wanted)
    tops = {name.partition("/")[0] for name in found}
    if len(tops) == 1 and all("/" in name for name in found):
        found = {name.partition("/")[2]: content for name, content in found.items()}
    try:
        project = tomllib.loads(found.get("pyproject.toml", b"").decode("utf-8"))
    except (UnicodeError, tomllib.TOMLDecodeError, RecursionError):
        project = {}
    files: dict[str, bytes] = {}
    for home, packages in _candidates(found, project, distribution):
        prefix = f"{home}/" if home else ""
        inside = {name[len(prefix) :]: content for name, content in found.items() if name.startswith(prefix)}
        files = {
            name: content
            for name, content in inside.items()
            if is_source(name)
            and any(name.startswith(f"{top}/") or name in (f"{top}.py", f"{top}.pyi") for top in packages)
        }
        if files:
            break
    else:
        raise ArchiveError("no package was found in the source distribution", where=filename)
    information = _information_folder(found)
    return Contents(
        files=files,
        metadata=found.get("PKG-INFO", found.get(f"{information}/PKG-INFO", b"")),
        entry_points=found.get(f"{information}/entry_points.txt", b""),
        scripts={
            name: value for name, value in table_in(project, "project", "scripts").items() if isinstance(value, str)
        },
    )


def _is_wanted(name: str) -> bool:
    return is_source(name) or name.rpartition("/")[2] in _FACTS


def _candidates(
    found: Mapping[str, bytes], project: Mapping[str, Any], distribution: str
) -> list[tuple[str, Sequence[str]]]:
    """(folder, top-level names or paths in it), the best evidence first."""
    where = table_in(project, "tool", "setuptools", "packages", "find").get("where")
    declared = where if isinstance(where, list) else [where]
    declared = [*declared, table_in(project, "tool", "setuptools", "package-dir").get("")]
    homes = [*[text.strip("./") for text in declared if isinstance(text, str) and ".." not in text], *_HOMES]
    candidates: list[tuple[str, Sequence[str]]] = []
    listed = found.get(f"{_information_folder(found)}/top_level.txt", b"").decode("utf-8", "replace").split()
    listed = [name for name in listed if name not in _NOT_PACKAGES] or listed
    if listed:
        candidates += [(home, listed) for home in homes]
    # Packages that hatch, poetry or flit are configured to take
    poetry = table_in(project, "tool", "poetry").get("packages")
    tables = [table for table in poetry if isinstance(table, dict)] if isinstance(poetry, list) else []
    taken = table_in(project, "tool", "hatch", "build", "targets", "wheel").get("packages")
    module = table_in(project, "tool", "flit", "module").get("name")
    paths = [
        *(taken if isinstance(taken, list) else []),
        *(f"{table.get('from', '')}/{table['include']}" for table in tables if "include" in table),
        *([module, f"src/{module}"] if module else []),
    ]
    for path in (text for text in paths if isinstance(text, str) and ".." not in text):
        home, _, name = path.strip("/").rpartition("/")
        candidates.append((home, [name]))
    wanted = canonicalize_name(distribution)
    for home in homes:
        named = [name for name in _tops(found, home) if canonicalize_name(name) == wanted]
        candidates.append((home, named))
    candidates += [(home, [name for name in _tops(found, home) if name not in _NOT_PACKAGES]) for home in homes]
    return candidates


def _tops(found: Mapping[str, bytes], home: str) -> list[str]:
    """Top-level packages and modules of a folder."""
    prefix = f"{home}/" if home else ""
    names = set()
    for path in found:
        if path.startswith(prefix) and is_source(path):
            first, _, rest = path[len(prefix) :].partition("/")
            name = first if rest else first.rpartition(".")[0]
            if name.isidentifier() and not name.startswith("_") and first != "setup.py":
                names.add(name)
    return sorted(names - set(_HOMES)) if not home else sorted(names)


def _information_folder(found: Mapping[str, bytes]) -> str:
    folders = sorted({name.rpartition("/")[0] for name in found if name.rpartition("/")[0].endswith(".egg-info")})
    return folders[0] if folders else ".egg-info"
