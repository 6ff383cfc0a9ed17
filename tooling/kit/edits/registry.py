"""Add an entry to a registry in source code or a line to a document, remove it, look it up: one strategy per shape.

    entry = RegistryEntry("areal/reward/registry.py", "mapping", "REWARDS", "digits", "areal.reward.digits:f")
    edit = add_entry(source, entry)
    remove_entry(edit.source, entry).source == source

Pure functions on bytes: they read and write no file. Nothing is returned that was not proved (`text.prove`).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from tooling.cli.errors import ConflictError
from tooling.kit.edits.documents import DocumentStrategy
from tooling.kit.edits.literals import assignment_to, find_table, parse_module
from tooling.kit.edits.splice import EXPORT_ORDERS, TABLE_ORDERS, insert, place, remove
from tooling.kit.edits.text import SourceEdit, prove, read_source, refusal, string_literal
from tooling.python.source import parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.kit.edits.literals import LocatedTable, TableItem
    from tooling.kit.edits.splice import Order, Splice
    from tooling.kit.kind import DocumentEntry, RegistryEntry


def add_entry(source: bytes, entry: RegistryEntry | DocumentEntry) -> SourceEdit:
    """Return the source with the entry in its sorted place; unchanged when it is there already.

    Raises ConflictError when the key has another value, RegistryShapeError with file:line and the line to paste when
    the registry or document has a shape that is not edited.
    """
    return _strategy(entry).add(source, cast("Any", entry))


def remove_entry(source: bytes, entry: RegistryEntry | DocumentEntry) -> SourceEdit:
    """Invert `add_entry`, down to the byte; unchanged when the key is absent. Raises as `add_entry` does."""
    return _strategy(entry).remove(source, cast("Any", entry))


def has_entry(source: bytes, entry: RegistryEntry | DocumentEntry) -> bool:
    """Check whether the key is registered with this very value."""
    found = find_entry(source, entry)
    return found is not None and found[0] == entry.value


def find_entry(source: bytes, entry: RegistryEntry | DocumentEntry) -> tuple[str | None, int] | None:
    """Return (value, line) of what is registered under the entry's key; None when the key is absent.

    Example: ("areal.reward.digits:digits_reward", 12). The value is None when it is not a string literal.
    """
    return _strategy(entry).find(source, cast("Any", entry))


def keys(source: bytes, entry: RegistryEntry | DocumentEntry) -> list[str]:
    """Return the keys of the table that the entry names, to check a new name against."""
    return _strategy(entry).keys(source, cast("Any", entry))


def line_to_paste(entry: RegistryEntry | DocumentEntry) -> str:
    """Return the line that a person would add by hand: `"digits": "areal.reward.digits:digits_reward",`."""
    return _strategy(entry).paste(cast("Any", entry))


@dataclass(frozen=True, slots=True)
class TableStrategy:
    """Adds to and removes from one literal; each edit is proved before it is returned."""

    mapping: bool
    orders: Sequence[Order] = TABLE_ORDERS
    table: str = ""
    """Name of the table where the shape fixes it; else the entry's."""

    def paste(self, entry: RegistryEntry) -> str:
        """Return the entry with its comma."""
        key = string_literal(entry.key)
        return f"{key}: {string_literal(entry.value)}," if self.mapping else f"{key},"

    def keys(self, source: bytes, entry: RegistryEntry) -> list[str]:
        """Return the keys of the literal."""
        return self._locate(source, entry, f"paste this line: {self.paste(entry)}").keys

    def find(self, source: bytes, entry: RegistryEntry) -> tuple[str | None, int] | None:
        """Return (value, line) of the entry's key."""
        table = self._locate(source, entry, f"paste this line: {self.paste(entry)}")
        item = table.find(entry.key)
        return (item.value if self.mapping else entry.value, table.line(item)) if item else None

    def add(self, source: bytes, entry: RegistryEntry) -> SourceEdit:
        """Add one entry. Raises ConflictError when the key has another value, RegistryShapeError for odd shapes."""
        fix = f"paste this line: {self.paste(entry)}"
        table = self._locate(source, entry, fix)
        present = table.find(entry.key)
        if present:
            self._same_or_conflict(table, present, entry)
            return SourceEdit(source, changed=False, line=table.line(present))
        for item in table.items:
            if item.value is None:
                raise refusal(table.text.file, table.line(item), f"the value of {item.key!r} is not a string", fix)
        index, ordered = place(table.keys, entry.key, self.orders)
        quote = table.items[max(index - 1, 0)].quote if table.items else '"'
        key = string_literal(entry.key, quote, table.text.encoding)
        value = string_literal(entry.value, quote, table.text.encoding)
        text = {"dict": f"{key}: {value}", "pairs": f"({key}, {value})"}.get(table.kind, key)
        splice = insert(table, index, text.encode("utf-8"), fix)
        edit = self._proved(source, table, splice, index, entry, fix)
        return replace(edit, note=splice.note if ordered else f"{table.name} is not sorted: added at its end")

    def remove(self, source: bytes, entry: RegistryEntry) -> SourceEdit:
        """Remove one entry. Raises ConflictError when the key has another value; an absent key is not a change."""
        fix = f"remove this line by hand: {self.paste(entry)}"
        table = self._locate(source, entry, fix)
        present = table.find(entry.key)
        if present is None:
            return SourceEdit(source, changed=False, line=0)
        self._same_or_conflict(table, present, entry)
        if table.kind == "set" and len(table.items) == 1:
            why = f"{entry.key!r} is the last element of a set literal, and {{}} would be a mapping"
            raise refusal(entry.file, table.line(present), why, fix)
        return self._proved(source, table, remove(table, present, fix), table.items.index(present), None, fix)

    def _locate(self, source: bytes, entry: RegistryEntry, fix: str) -> LocatedTable:
        module = parse_module(source, entry.file, fix)
        return find_table(module, self.table or entry.table, mapping=self.mapping, fix=fix)

    def _same_or_conflict(self, table: LocatedTable, item: TableItem, entry: RegistryEntry) -> None:
        if self.mapping and item.value != entry.value:
            value = "something that is not a string" if item.value is None else repr(item.value)
            raise ConflictError(
                f"{entry.key!r} is registered in {table.name} as {value}, not as {entry.value!r}",
                where=f"{entry.file}:{table.line(item)}",
                fix="choose another name, or change that line by hand",
            )

    def _proved(
        self, source: bytes, table: LocatedTable, splice: Splice, index: int, entry: RegistryEntry | None, fix: str
    ) -> SourceEdit:
        """Prove the splice. entry: what was added at `index`; None when the item there was removed."""

        def change(tree: ast.Module) -> None:
            statement = assignment_to(tree, table.name)
            literal = statement.value if statement else None
            if isinstance(literal, ast.Call) and literal.args:  # OrderedDict([...]), frozenset({...})
                literal = literal.args[0]
            key, value = (ast.Constant(entry.key), ast.Constant(entry.value)) if entry else (None, None)
            replaced = slice(index, index + (entry is None))
            if isinstance(literal, ast.Dict):
                literal.keys[replaced] = [key] if key else []
                literal.values[replaced] = [value] if value else []
            elif isinstance(literal, ast.List | ast.Tuple | ast.Set):
                pair = [ast.Tuple([key, value], ast.Load())] if key and value else []
                literal.elts[replaced] = pair if table.kind == "pairs" else [key] if key else []

        after = table.text.with_data(splice.data)
        prove(table.text, after, change, line=table.line(), fix=fix, removed=splice.removed)
        encoded = table.text.encode(splice.data)
        return SourceEdit(encoded, changed=encoded != source, line=splice.line)


@dataclass(frozen=True, slots=True)
class LazyStrategy:
    """Changes a mapping name -> module and `__all__` together; where one of the edits fails the source stays.

    An `__all__` that is computed from the mapping (`list(_LAZY)`, `sorted(_LAZY)`, `[*_LAZY]`) follows by itself.
    """

    def paste(self, entry: RegistryEntry) -> str:
        """Return the line for the mapping; `__all__` takes the name alone."""
        return MAPPING.paste(entry)

    def keys(self, source: bytes, entry: RegistryEntry) -> list[str]:
        """Return the names of the mapping, then those that only `__all__` has."""
        names = MAPPING.keys(source, entry)
        exported = [] if _is_derived(source, entry) else EXPORTS.keys(source, entry)
        return names + [name for name in exported if name not in names]

    def find(self, source: bytes, entry: RegistryEntry) -> tuple[str | None, int] | None:
        """Return (module, line in the mapping) when the name is in both. Raises RegistryShapeError when it is in one
        of them."""
        found = MAPPING.find(source, entry)
        exported = None if _is_derived(source, entry) else EXPORTS.find(source, entry)
        if _is_derived(source, entry) or (found is None) == (exported is None):
            return found
        if found is not None:
            why, line, fix = f"is in {entry.table} but not in __all__", found[1], EXPORTS.paste(entry)
        else:
            why, line, fix = f"is in __all__ but not in {entry.table}", cast("tuple[str, int]", exported)[1], ""
        raise refusal(entry.file, line, f"{entry.key!r} {why}", f"paste this line: {fix or MAPPING.paste(entry)}")

    def add(self, source: bytes, entry: RegistryEntry) -> SourceEdit:
        """Add the name to both."""
        self.find(source, entry)
        exports = SourceEdit(source, changed=False, line=0)
        if not _is_derived(source, entry):
            exports = EXPORTS.add(source, entry)  # first: the mapping's line is then that of the final text
        edit = MAPPING.add(exports.source, entry)
        return replace(edit, note="; ".join(note for note in (edit.note, exports.note) if note))

    def remove(self, source: bytes, entry: RegistryEntry) -> SourceEdit:
        """Remove the name from both."""
        self.find(source, entry)
        exports = source if _is_derived(source, entry) else EXPORTS.remove(source, entry).source
        return MAPPING.remove(exports, entry)


def _is_derived(source: bytes, entry: RegistryEntry) -> bool:
    """Check whether `__all__` is computed from the mapping."""
    text = read_source(source, entry.file, f"paste this line: {MAPPING.paste(entry)}")
    try:
        tree = parse(text.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # the edit of the mapping reports it with its line
    views = {entry.table, f"{entry.table}.keys()"}
    views = {f"{call}({view})" for call in ("list", "sorted", "tuple") for view in views}
    views |= {f"[*{entry.table}]", f"(*{entry.table},)", f"list(sorted({entry.table}))"}
    return any(
        isinstance(statement, ast.Assign)
        and [ast.unparse(target) for target in statement.targets] == ["__all__"]
        and ast.unparse(statement.value) in views
        for statement in tree.body
    )


MAPPING: Final = TableStrategy(mapping=True)
EXPORTS: Final = TableStrategy(mapping=False, orders=EXPORT_ORDERS, table="__all__")
STRATEGIES: Final[Mapping[str, TableStrategy | LazyStrategy | DocumentStrategy]] = {
    "all": EXPORTS,
    "document": DocumentStrategy(),
    "lazy": LazyStrategy(),
    "mapping": MAPPING,
    "sequence": TableStrategy(mapping=False),
}


def _strategy(entry: RegistryEntry | DocumentEntry) -> TableStrategy | LazyStrategy | DocumentStrategy:
    return STRATEGIES[entry.shape]
