"""Source distributions: what a build would install, guessed from layout and metadata. Nothing is built or run.

setuptools leaves `top_level.txt`; others declare their packages in pyproject.toml; failing both, the folder with the
distribution's name counts, then every folder that looks like a package and is none of tests, documents or examples.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from tooling.upgrade.errors import ArchiveError
from tooling.upgrade.sources.archive.contents import Contents
from tooling.upgrade.sources.archive.reading import FileReader
from tooling.upgrade.sources.archive.tar import tar_members
from tooling.upgrade.sources.archive.zip import contents as zip_contents
from tooling.upgrade.sources.archive.zip import directory
from tooling.upgrade.sources.layout import is_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FACTS = frozenset({"PKG-INFO", "pyproject.toml", "top_level.txt", "entry_points.txt"})
_HOMES = ("src", "lib", "python", "")
"""Folders that packages are looked for in, in this order."""
_ASIDE = """
    benchmark benchmarks build ci cmake conftest csrc dist doc docs example examples notebooks noxfile requirements
    script scripts setup tasks templates test testing tests third_party tool tools vendor versioneer
"""
_NOT_PACKAGES = frozenset(_ASIDE.split())


def read_sdist(path: Path, filename: str, distribution: str) -> Contents:
    """The sources of an sdist (.tar.gz or .zip) that lies at `path`.

    Raises ArchiveError when it is damaged, hostile, or holds no package."""
    if filename.endswith(".zip"):
        reader = FileReader.of(path, filename)
        found = dict(zip_contents(reader, [member for member in directory(reader) if _is_wanted(member.name)]))
    else:
        found = tar_members(path, filename, _is_wanted)
    found = _without_top_folder(found)
    project = _toml(found.get("pyproject.toml", b""))
    files = _installed(found, project, distribution)
    if not files:
        raise ArchiveError("no package was found in the source distribution", where=filename)
    information = _information_folder(found)
    return Contents(
        files=files,
        metadata=found.get("PKG-INFO", found.get(f"{information}/PKG-INFO", b"")),
        entry_points=found.get(f"{information}/entry_points.txt", b""),
        scripts={
            name: value for name, value in _table(project, "project", "scripts").items() if isinstance(value, str)
        },
    )


def _is_wanted(name: str) -> bool:
    return is_source(name) or name.rpartition("/")[2] in _FACTS


def _without_top_folder(found: Mapping[str, bytes]) -> dict[str, bytes]:
    tops = {name.partition("/")[0] for name in found}
    if len(tops) == 1 and all("/" in name for name in found):
        return {name.partition("/")[2]: content for name, content in found.items()}
    return dict(found)


def _installed(found: Mapping[str, bytes], project: Mapping[str, Any], distribution: str) -> dict[str, bytes]:
    for home, tops in _candidates(found, project, distribution):
        prefix = f"{home}/" if home else ""
        inside = {name[len(prefix) :]: content for name, content in found.items() if name.startswith(prefix)}
        files = {
            name: content
            for name, content in inside.items()
            if is_source(name)
            and any(name.startswith(f"{top}/") or name in (f"{top}.py", f"{top}.pyi") for top in tops)
        }
        if files:
            return files
    return {}


def _candidates(
    found: Mapping[str, bytes], project: Mapping[str, Any], distribution: str
) -> list[tuple[str, Sequence[str]]]:
    """(folder, top-level names or paths in it), the best evidence first."""
    where = _table(project, "tool", "setuptools", "packages", "find").get("where")
    declared = where if isinstance(where, list) else [where]
    declared = [*declared, _table(project, "tool", "setuptools", "package-dir").get("")]
    homes = [*[text.strip("./") for text in declared if isinstance(text, str) and ".." not in text], *_HOMES]
    candidates: list[tuple[str, Sequence[str]]] = []
    listed = found.get(f"{_information_folder(found)}/top_level.txt", b"").decode("utf-8", "replace").split()
    listed = [name for name in listed if name not in _NOT_PACKAGES] or listed
    if listed:
        candidates += [(home, listed) for home in homes]
    for path in _declared_packages(project):
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


def _declared_packages(project: Mapping[str, Any]) -> list[str]:
    """Paths of packages that hatch, poetry, flit or maturin are told to take."""
    found: list[object] = []
    wheel = _table(project, "tool", "hatch", "build", "targets", "wheel").get("packages")
    found += wheel if isinstance(wheel, list) else []
    poetry = _table(project, "tool", "poetry").get("packages")
    for entry in poetry if isinstance(poetry, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("include"), str):
            found.append(
                f"{entry['from']}/{entry['include']}" if isinstance(entry.get("from"), str) else entry["include"]
            )
    module = _table(project, "tool", "flit", "module").get("name")
    found += [module, f"src/{module}"] if isinstance(module, str) else []
    return [text for text in found if isinstance(text, str) and ".." not in text]


def _table(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    found: Any = table
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _toml(content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (UnicodeError, tomllib.TOMLDecodeError, RecursionError):
        return {}
