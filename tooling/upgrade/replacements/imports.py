"""Who imports what in a package: how its own modules followed a change is the best evidence of where a name went."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.upgrade.symbols import Upstream

Imported = tuple[str, str]
"""(absolute module, name)."""


class ImportIndex:
    """`from a import b` of all modules of a release."""

    def __init__(self, of: Mapping[str, frozenset[Imported]]) -> None:
        """of: what each module imports."""
        self.of = of
        self._by_name: dict[str, list[tuple[str, str]]] = {}
        for importer, imported in of.items():
            for module, name in imported:
                self._by_name.setdefault(name, []).append((importer, module))

    def importers(self, name: str) -> list[tuple[str, str]]:
        """(importing module, module it is imported from) of a name."""
        return sorted(self._by_name.get(name, ()))

    def sources(self, name: str) -> Counter[str]:
        """How often a name is imported from each module; a package that passes on what is in it does not count."""
        return Counter(module for importer, module in self.importers(name) if not module.startswith(f"{importer}."))


def import_index(upstream: Upstream) -> ImportIndex:
    """The index of a release; made once per process and content."""
    return _made(Keyed(upstream))


class Keyed:
    """A release that equals others of the same content: a key for what is made once per process."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._key = upstream.release.digest()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and other._key == self._key


@lru_cache(maxsize=8)
def _made(keyed: Keyed) -> ImportIndex:
    return ImportIndex(
        {
            importer: frozenset((module, name) for module, names in imported.items() for name in names)
            for importer, imported in keyed.upstream.imports().items()
        }
    )


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
