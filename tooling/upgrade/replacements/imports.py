"""Who imports what inside a package, by pattern and without parsing: how its own modules followed a change is the best
evidence of where a name went."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from tooling.upgrade.sources.layout import dotted as module_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.upgrade.releases import Release

_FROM = re.compile(rb"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|(?:\\\n|[^\n#;])+)", re.MULTILINE)
_NAME = re.compile(rb"([A-Za-z_]\w*)(?:[ \t]+as[ \t]+\w+)?")
_COMMENT = re.compile(rb"#[^\n]*|\\\n")

Imported = tuple[str, str]
"""(absolute module, name)."""


class ImportIndex:
    """`from a import b` of all modules of a release."""

    def __init__(self, of: Mapping[str, frozenset[Imported]]) -> None:
        """of: what each module imports."""
        self.of = of
        self._by_name: dict[str, list[tuple[str, str]]] = {}
        for importer, imported in of.items():
            for module, name in sorted(imported):
                self._by_name.setdefault(name, []).append((importer, module))

    def importers(self, name: str) -> list[tuple[str, str]]:
        """(importing module, module it is imported from) of a name."""
        return self._by_name.get(name, [])

    def sources(self, name: str) -> Counter[str]:
        """How often a name is imported from each module; a package that passes on what is in it does not count."""
        return Counter(module for importer, module in self.importers(name) if not module.startswith(f"{importer}."))


def import_index(release: Release) -> ImportIndex:
    """The index of a release; made once per process and content."""
    return _made(_Keyed(release))


class _Keyed:
    """A release that equals others of the same content."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._key = release.digest()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and other._key == self._key


@lru_cache(maxsize=8)
def _made(keyed: _Keyed) -> ImportIndex:
    release = keyed.release
    found: dict[str, frozenset[Imported]] = {}
    for path in release.files():
        importer = module_of(path)
        package = importer if path.rpartition("/")[2].startswith("__init__.") else importer.rpartition(".")[0]
        imported = frozenset(_imported(release.read(path), package))
        if imported:
            found[importer] = found.get(importer, frozenset()) | imported
    return ImportIndex(found)


def _imported(content: bytes, package: str) -> list[Imported]:
    found = []
    for match in _FROM.finditer(content):
        module = _absolute(match[1].decode(), package)
        if module:
            names = _COMMENT.sub(b" ", match[2]).strip(b"() \t\n")
            found += [(module, name.decode()) for name in _NAME.findall(names)]
    return found


def _absolute(module: str, package: str) -> str:
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parts = package.split(".")
    if level > len(parts):
        return ""
    base = ".".join(parts[: len(parts) - level + 1])
    rest = module[level:]
    return f"{base}.{rest}" if rest else base


def votes(old: ImportIndex, new: ImportIndex, name: str, modules: frozenset[str]) -> Counter[Imported]:
    """What the importers of a name from these modules import instead in the new release: the same name from elsewhere,
    or, where one import of a module went and one came, another name."""
    found: Counter[Imported] = Counter()
    for importer, module in old.importers(name):
        if module not in modules or importer not in new.of:
            continue
        gone = old.of[importer] - new.of[importer]
        came = new.of[importer] - old.of[importer]
        if (module, name) not in gone:
            continue
        same = [each for each in came if each[1] == name]
        if same:
            found.update(same)
        elif len([each for each in gone if each[0] == module]) == 1:
            renamed = [each for each in came if each[0] == module]
            found.update(renamed if len(renamed) == 1 else [])
    return found
