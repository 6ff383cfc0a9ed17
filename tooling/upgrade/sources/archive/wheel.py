"""Wheels: which members an installation would have, and that each is what RECORD says."""

from __future__ import annotations

import base64
import csv
import hashlib
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from tooling.python.versions import version_or_none
from tooling.upgrade.errors import ArchiveError
from tooling.upgrade.releases import is_native, is_source
from tooling.upgrade.sources.archive.reading import Contents, PlainZip

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

_INSTALLED = ("purelib", "platlib")
"""Folders of `<name>.data` whose content lands beside the packages."""


def read_wheel(
    stream: io.RawIOBase,
    filename: str,
    *,
    vouched: bool,
    prepare: Callable[[list[tuple[int, int]]], None] = lambda parts: None,
) -> Contents:
    """Return the sources of a wheel, and what is to be doubted since RECORD says otherwise. vouched: whether the whole
    file's hash was checked; otherwise RECORD is all there is, and must name each member. prepare: as of
    `PlainZip.contents`.

    Raises ArchiveError when the wheel is damaged, forged or none."""
    archive = PlainZip(stream, filename)
    names = set(archive.names)
    information = _information_folder(archive.names, filename)
    paths = {name: _installed_path(name, information) for name in archive.names}
    wanted = {name: path for name, path in paths.items() if is_source(path)}
    if len(set(wanted.values())) != len(wanted):
        raise ArchiveError("two members would be installed at one place", where=filename)
    facts = {f"{information}/{name}" for name in ("METADATA", "RECORD", "entry_points.txt")}
    found = archive.contents([*wanted, *sorted(facts & names)], prepare)
    record = found.get(f"{information}/RECORD", b"")
    recorded = {}
    try:
        for row in csv.reader(record.decode("utf-8", "replace").splitlines()):
            if len(row) >= 2 and "=" in row[1]:
                algorithm, _, digest = row[1].partition("=")
                recorded[row[0].replace("\\", "/")] = (algorithm.lower(), digest.rstrip("="))
    except csv.Error:
        pass  # what could be read counts; the rest is missing and judged so
    missing = [] if vouched else sorted(name for name in recorded if is_source(name) and name not in names)
    doubts = [f"RECORD names {name!r}, which the archive lacks" for name in missing]
    for name, content in found.items():
        if name == f"{information}/RECORD":
            continue
        kind, stated = recorded.get(name, ("", ""))
        if kind not in {"sha256", "sha384", "sha512"}:
            doubts += [] if vouched else [f"RECORD has no hash of {name!r}, and nothing else vouches for it"]
            continue
        actual = base64.urlsafe_b64encode(hashlib.new(kind, content).digest()).decode().rstrip("=")
        if actual != stated:
            doubts.append(f"{name!r} is not what RECORD says (hash mismatch)")
    return Contents(
        files={path: found[name] for name, path in wanted.items()},
        native=tuple(sorted(path for path in paths.values() if is_native(path))),
        metadata=found[f"{information}/METADATA"],
        entry_points=found.get(f"{information}/entry_points.txt", b""),
        record=record,
        doubt=doubts[0] if doubts else "",
    )


def _information_folder(names: Sequence[str], filename: str) -> str:
    tops = {name.partition("/")[0] for name in names if name.endswith("/METADATA")}
    folders = {top for top in tops if top.endswith(".dist-info")}
    try:
        expected, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        raise ArchiveError("that is not the name of a wheel", where=filename) from None
    found = [
        folder
        for folder in folders
        if (parts := folder.removesuffix(".dist-info").rpartition("-"))
        and (canonicalize_name(parts[0]), version_or_none(parts[2])) == (expected, version)
    ]
    if len(folders) != 1 or len(found) != 1:
        others = ", ".join(sorted(folders)) or "none"
        raise ArchiveError(
            f"expected the metadata of {expected} {version} and no other, found {others}", where=filename
        )
    return found[0]


def _installed_path(name: str, information: str) -> str:
    """Where a member lands beside the packages; "" if it does not."""
    top, _, rest = name.partition("/")
    if top.endswith(".dist-info"):
        return ""
    if top == f"{information.removesuffix('.dist-info')}.data":
        scheme, _, path = rest.partition("/")
        return path if scheme in _INSTALLED else ""
    return name
