"""What a lock file holds: uv.lock, pylock.toml, poetry.lock, pdm.lock, and files of pins (constraints.txt).

One lock may hold several versions of one package, for different extras or markers: nothing here assumes one.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.utils import canonicalize_name

from tooling.cli.errors import UsageError
from tooling.cli.toml import TOMLError, parse_toml, table_in
from tooling.upgrade.declarations.declaration import ManifestText, read_requirements


@dataclass(frozen=True, slots=True, order=True)
class LockedPackage:
    """One version of one package."""

    name: str
    version: str
    source: str = ""
    """Where from, if not from an index: a git URL with commit, a path."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file's packages, sorted."""

    path: str
    packages: tuple[LockedPackage, ...]

    def of(self, name: str) -> tuple[LockedPackage, ...]:
        """All versions of one package (normalised name)."""
        return tuple(each for each in self.packages if each.name == name)


def read_lock(path: str, content: bytes) -> Lock:
    """Read a lock of any of the known kinds. Raises UsageError for damaged ones."""
    found: set[LockedPackage] = set()
    if path.endswith((".txt", ".in")):
        declared = read_requirements(ManifestText(path, content.decode("utf-8", errors="replace")))
        found = {LockedPackage(each.distribution, each.specifier.lstrip("= ")) for each in declared if each.is_pinned}
        return Lock(path, tuple(sorted(found)))
    try:
        document = parse_toml(content)
    except TOMLError as error:
        raise UsageError(f"is not a lock file: {error}", where=path, fix="remove it, and lock again") from error
    rows = document.get("package") or document.get("packages")
    for row in rows if isinstance(rows, list) else ():
        source = table_in(row, "source") if isinstance(row, dict) else {}
        # Those are the project itself and members of its workspace
        if isinstance(row, dict) and isinstance(row.get("name"), str) and not {"editable", "virtual"} & set(source):
            place = next((str(source[key]) for key in ("git", "url", "path", "directory") if key in source), "")
            found.add(LockedPackage(canonicalize_name(row["name"]), str(row.get("version", "")), place))
    return Lock(path, tuple(sorted(found)))
