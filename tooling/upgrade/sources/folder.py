"""Releases that need no archive: an installed package, a checkout's package folder, or files in memory.

folder_release(Path(".venv/lib/python3.11/site-packages"), "transformers", "5.3.0")
memory_release({"pkg/__init__.py": "def f(): ..."}, "pkg", "1.0")
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from tooling.upgrade.errors import UpstreamError
from tooling.upgrade.releases import Origin
from tooling.upgrade.sources import installation
from tooling.upgrade.sources.installation import ReleaseTree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.upgrade.releases import Release


def folder_release(path: Path, distribution: str, version: str) -> Release:
    """Return the release that lies in a folder. `path` is, depending on its content, either
    a site-packages folder with the distribution's `.dist-info` (the files are those its RECORD names),
    a package (it has an `__init__.py`), or a folder that holds packages and nothing else.

    Links that lead out of the folder are left out. Raises UpstreamError when there is no such folder or no source.
    """
    root = path.resolve()
    if not root.is_dir():
        raise UpstreamError(f"no such folder: {path}", fix="name a folder that holds packages")
    information = dist_info(root, distribution)
    if information is not None:
        text = _content(information, "RECORD").decode("utf-8", "replace")
        names = [row[0].replace("\\", "/") for row in csv.reader(text.splitlines()) if row]
        found = [name for name in names if _is_inside(name) and (root / name).is_file()] or _packages_beside(
            root, information
        )
    elif any((root / name).is_file() for name in ("__init__.py", "__init__.pyi")):
        found = [f"{root.name}/{name}" for name in _walk(root)]
        root = root.parent
    else:
        found = list(_walk(root))
    paths = [name for name in found if installation.is_source(name) or installation.is_native(name)]
    if not paths:
        raise UpstreamError(f"no Python source of {distribution} in {path}", fix="name a folder that holds packages")
    origin = _origin(distribution, version, path.name)

    def read(name: str) -> bytes:
        return (root / name).read_bytes()

    requires = installation.requirements(_content(information, "METADATA"))
    scripts = installation.console_scripts(_content(information, "entry_points.txt"))
    return ReleaseTree(origin, paths, read, requires=requires, scripts=scripts)


def memory_release(
    files: Mapping[str, str | bytes],
    distribution: str,
    version: str,
    *,
    scripts: Mapping[str, str] | None = None,
) -> Release:
    """Return a release of the files given, by their path in an installation. Paths that end in .so or .pyd are compiled
    modules, whatever their content."""
    contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    origin = _origin(distribution, version, "memory")
    return ReleaseTree(origin, list(contents), contents.__getitem__, scripts=scripts)


def _origin(distribution: str, version: str, filename: str) -> Origin:
    name = canonicalize_name(distribution)
    return Origin(distribution=name, version=version, filename=filename, url="", sha256="", verified="folder")


def dist_info(root: Path, distribution: str) -> Path | None:
    """Return the folder with the metadata of a distribution that is installed in a folder."""
    wanted = canonicalize_name(distribution)
    for candidate in sorted(root.glob("*.dist-info")):
        if canonicalize_name(candidate.name.removesuffix(".dist-info").rpartition("-")[0]) == wanted:
            return candidate
    return None


def _packages_beside(root: Path, information: Path) -> list[str]:
    """For a `.dist-info` without RECORD (some system packages): what top_level.txt names."""
    found: list[str] = []
    for name in _content(information, "top_level.txt").decode("utf-8", "replace").split():
        if not _is_inside(name):
            continue
        if (root / name).is_dir():
            found.extend(f"{name}/{path}" for path in _walk(root / name))
        found.extend(f"{name}{ending}" for ending in installation.SOURCES if (root / f"{name}{ending}").is_file())
    return found


def _is_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and ":" not in name


def _walk(root: Path) -> Iterator[str]:
    """Regular files below, folders in order, without hidden folders and bytecode. Links are followed for files only,
    and only where they stay inside."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        here = Path(folder)
        for name in sorted(names):
            path = here / name
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                continue
            yield path.relative_to(root).as_posix()


def _content(information: Path | None, name: str) -> bytes:
    path = information / name if information is not None else None
    return path.read_bytes() if path is not None and path.is_file() else b""
