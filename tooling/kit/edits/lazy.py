"""Registries of lazily imported names: a mapping name -> module, and `__all__`, changed together or not at all.

An `__all__` that is computed from the mapping (`list(_LAZY)`, `sorted(_LAZY)`, `[*_LAZY]`) follows by itself.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.kit.edits.bindings import parse_python
from tooling.kit.edits.tables import EXPORTS, MAPPING
from tooling.kit.edits.text import Edit, read_source, refusal

if TYPE_CHECKING:
    from tooling.kit.kind import RegistryEntry


@dataclass(frozen=True, slots=True)
class LazyStrategy:
    """Both edits are proved one after the other; the first that fails leaves the source as it was."""

    def paste(self, entry: RegistryEntry) -> str:
        """The line for the mapping; `__all__` takes the name alone."""
        return MAPPING.paste(entry)

    def keys(self, source: bytes, entry: RegistryEntry) -> list[str]:
        """Names of the mapping, then those that only `__all__` has."""
        names = MAPPING.keys(source, entry)
        exported = [] if _derived(source, entry) else EXPORTS.keys(source, entry)
        return names + [name for name in exported if name not in names]

    def find(self, source: bytes, entry: RegistryEntry) -> tuple[str | None, int] | None:
        """(module, line in the mapping) when the name is in both; RegistryShapeError when it is in one of them."""
        found = MAPPING.find(source, entry)
        self._refuse_drift(source, entry, found[1] if found else None)
        return found

    def add(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One more name in both."""
        self.find(source, entry)
        return self._both(source, entry, adding=True)

    def remove(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One name less in both."""
        self.find(source, entry)
        return self._both(source, entry, adding=False)

    def _both(self, source: bytes, entry: RegistryEntry, *, adding: bool) -> Edit:
        """`__all__` first: the mapping's line is then that of the final text."""
        exports = Edit(source, changed=False, line=0)
        if not _derived(source, entry):
            exports = EXPORTS.add(source, entry) if adding else EXPORTS.remove(source, entry)
        edit = MAPPING.add(exports.source, entry) if adding else MAPPING.remove(exports.source, entry)
        notes = "; ".join(note for note in (edit.note, exports.note) if note)
        return replace(edit, note=notes)

    def _refuse_drift(self, source: bytes, entry: RegistryEntry, line: int | None) -> None:
        if _derived(source, entry):
            return
        exported = EXPORTS.find(source, entry)
        if line is not None and exported is None:
            why = f"{entry.key!r} is in {entry.table} but not in __all__"
            raise refusal(entry.file, line, why, f"paste this line: {EXPORTS.paste(entry)}")
        if line is None and exported is not None:
            why = f"{entry.key!r} is in __all__ but not in {entry.table}"
            raise refusal(entry.file, exported[1], why, f"paste this line: {MAPPING.paste(entry)}")


def _derived(source: bytes, entry: RegistryEntry) -> bool:
    """Whether `__all__` is computed from the mapping."""
    text = read_source(source, entry.file, f"paste this line: {MAPPING.paste(entry)}")
    try:
        tree = parse_python(text.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # the edit of the mapping says so with its line
    return any(
        isinstance(statement, ast.Assign)
        and [ast.unparse(target) for target in statement.targets] == ["__all__"]
        and ast.unparse(statement.value) in _views(entry.table)
        for statement in tree.body
    )


def _views(table: str) -> set[str]:
    keys = {table, f"{table}.keys()"}
    calls = {f"{call}({view})" for call in ("list", "sorted", "tuple") for view in keys}
    return calls | {f"[*{table}]", f"(*{table},)", f"list(sorted({table}))"}
