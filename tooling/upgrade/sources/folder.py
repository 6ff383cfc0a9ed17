"""Releases that need no archive: what is installed in a folder, or files in memory.

installed_release("transformers", [Path(".venv/lib/python3.11/site-packages")])
memory_release({"pkg/__init__.py": "def f(): ..."}, "pkg", "1.0")
"""

from __future__ import annotations

import csv
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from tooling.upgrade.releases import Origin, Release, console_scripts, is_native, is_source, requirements

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def installed_release(distribution: str, folders: Iterable[Path]) -> Release | None:
    """Return the release of a distribution that is installed in one of these site-packages folders: the files that its
    RECORD names. None where none is, or only a link to a checkout: that is not a copy of a release."""
    try:
        found = next(iter(metadata.distributions(name=distribution, path=list(map(str, folders)))), None)
        if found is None:
            return None
        names = [file.as_posix() for file in found.files or () if ".." not in file.parts and not file.is_absolute()]
        root, version = Path(str(found.locate_file(""))), found.version or ""
        requires = requirements((found.read_text("METADATA") or "").encode())
        scripts = console_scripts((found.read_text("entry_points.txt") or "").encode())
    except (OSError, ValueError, KeyError, csv.Error):  # a damaged installation says nothing
        return None
    modules = (name for name in names if is_source(name) or is_native(name))
    paths = [name for name in modules if not name.startswith("__editable__") and (root / name).is_file()]
    if not paths:
        return None
    origin = _origin(distribution, version, root.name)
    return Release(origin, paths, lambda name: (root / name).read_bytes(), requires=requires, scripts=scripts)


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
    return Release(origin, list(contents), contents.__getitem__, scripts=scripts)


def _origin(distribution: str, version: str, filename: str) -> Origin:
    name = canonicalize_name(distribution)
    return Origin(distribution=name, version=version, filename=filename, url="", sha256="", verified="folder")
