"""Add an entry to a registry in source code, remove it, look it up: one explicit strategy per shape.

    entry = RegistryEntry("areal/reward/registry.py", "mapping", "REWARDS", "digits", "areal.reward.digits:f")
    edit = add_entry(source, entry)
    remove_entry(edit.source, entry).source == source

Pure functions on bytes: they read and write no file. Nothing is returned that was not proved
(`tooling.kit.edits.proof`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tooling.kit.edits.imports import ImportStrategy
from tooling.kit.edits.lazy import LazyStrategy
from tooling.kit.edits.tables import EXPORTS, MAPPING, SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.kit.edits.text import Edit
    from tooling.kit.kind import RegistryEntry, RegistryShape


class Strategy(Protocol):
    """How one shape is read and edited."""

    def paste(self, entry: RegistryEntry) -> str:
        """The line that a person would add."""

    def keys(self, source: bytes, entry: RegistryEntry) -> list[str]:
        """Existing keys."""

    def find(self, source: bytes, entry: RegistryEntry) -> tuple[str | None, int] | None:
        """(value, line) of the entry's key."""

    def add(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One entry more."""

    def remove(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One entry less."""


STRATEGIES: Final[Mapping[RegistryShape, Strategy]] = {
    "all": EXPORTS,
    "import": ImportStrategy(),
    "lazy": LazyStrategy(),
    "mapping": MAPPING,
    "sequence": SEQUENCE,
}


def add_entry(source: bytes, entry: RegistryEntry) -> Edit:
    """The source with the entry in its sorted place; unchanged when it is there already.

    Raises ConflictError (exit 3) when the key has another value, RegistryShapeError (exit 6) with file:line and the
    line to paste when the registry has a shape that is not edited.
    """
    return STRATEGIES[entry.shape].add(source, entry)


def remove_entry(source: bytes, entry: RegistryEntry) -> Edit:
    """The inverse of `add_entry`, down to the byte; unchanged when the key is absent. Raises as `add_entry` does."""
    return STRATEGIES[entry.shape].remove(source, entry)


def has_entry(source: bytes, entry: RegistryEntry) -> bool:
    """Whether the key is registered with this very value."""
    found = STRATEGIES[entry.shape].find(source, entry)
    return found is not None and found[0] == entry.value


def find_entry(source: bytes, entry: RegistryEntry) -> tuple[str | None, int] | None:
    """(value, line) of what is registered under the entry's key, whatever its value; None when the key is absent.

    Example: ("areal.reward.digits:digits_reward", 12). The value is None when it is no string literal.
    """
    return STRATEGIES[entry.shape].find(source, entry)


def keys(source: bytes, entry: RegistryEntry) -> list[str]:
    """Keys of the table that the entry names, to check a new name against."""
    return STRATEGIES[entry.shape].keys(source, entry)


def line_to_paste(entry: RegistryEntry) -> str:
    """The line that a person would add by hand: `"digits": "areal.reward.digits:digits_reward",`."""
    return STRATEGIES[entry.shape].paste(entry)
