"""Registries that are one literal: shapes "mapping", "sequence" and "all"."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError
from tooling.kit.edits.literals import assignment_to, find_table, parse_module
from tooling.kit.edits.ordering import EXPORT_ORDERS, TABLE_ORDERS, place
from tooling.kit.edits.proof import prove
from tooling.kit.edits.splice import insert, remove
from tooling.kit.edits.text import Edit, refusal, string_literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.kit.edits.literals import Item, Kind, Table
    from tooling.kit.edits.ordering import Order
    from tooling.kit.edits.splice import Splice
    from tooling.kit.kind import RegistryEntry


@dataclass(frozen=True, slots=True)
class TableStrategy:
    """Adds to and removes from one literal; each edit is proved before it is returned."""

    mapping: bool
    orders: Sequence[Order] = TABLE_ORDERS
    table: str = ""
    """Name of the table where the shape fixes it; else the entry's."""

    def paste(self, entry: RegistryEntry) -> str:
        """The line that a person would add."""
        key = string_literal(entry.key)
        return f"{key}: {string_literal(entry.value)}," if self.mapping else f"{key},"

    def keys(self, source: bytes, entry: RegistryEntry) -> list[str]:
        """Existing keys, in the order of the source."""
        return self._find(source, entry, self._to_paste(entry)).keys

    def find(self, source: bytes, entry: RegistryEntry) -> tuple[str | None, int] | None:
        """(value, line) of the entry's key; None when it is absent. The value is None when it is no string."""
        table = self._find(source, entry, self._to_paste(entry))
        item = table.find(entry.key)
        return (item.value if self.mapping else entry.value, table.line(item)) if item else None

    def add(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One more entry. Raises ConflictError when the key has another value, RegistryShapeError for odd shapes."""
        fix = self._to_paste(entry)
        table = self._find(source, entry, fix)
        present = table.find(entry.key)
        if present:
            self._same_or_conflict(table, present, entry)
            return Edit(source, changed=False, line=table.line(present))
        self._only_strings(table, fix)
        index, ordered = place(table.keys, entry.key, self.orders)
        near = table.items[max(index - 1, 0)] if table.items else None
        text = _render(entry, table.kind, near.quote if near else '"', table.text.encoding)
        splice = insert(table, index, text, fix)
        note = splice.note if ordered else f"{table.name} is not sorted: added at its end"
        return self._proved(source, table, splice, index, entry, fix, note=note)

    def remove(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One entry less. Raises ConflictError when the key has another value; an absent key is no change."""
        fix = f"remove this line by hand: {self.paste(entry)}"
        table = self._find(source, entry, fix)
        present = table.find(entry.key)
        if present is None:
            return Edit(source, changed=False, line=0)
        self._same_or_conflict(table, present, entry)
        if table.kind == "set" and len(table.items) == 1:
            why = f"{entry.key!r} is the last element of a set literal, and {{}} would be a mapping"
            raise refusal(entry.file, table.line(present), why, fix)
        return self._proved(source, table, remove(table, present, fix), table.items.index(present), None, fix)

    def _to_paste(self, entry: RegistryEntry) -> str:
        return f"paste this line: {self.paste(entry)}"

    def _name(self, entry: RegistryEntry) -> str:
        return self.table or entry.table

    def _find(self, source: bytes, entry: RegistryEntry, fix: str) -> Table:
        module = parse_module(source, entry.file, fix)
        return find_table(module, self._name(entry), mapping=self.mapping, fix=fix)

    def _same_or_conflict(self, table: Table, item: Item, entry: RegistryEntry) -> None:
        if self.mapping and item.value != entry.value:
            value = "something that is no string" if item.value is None else repr(item.value)
            raise ConflictError(
                f"{entry.key!r} is registered in {table.name} as {value}, not as {entry.value!r}",
                where=f"{entry.file}:{table.line(item)}",
                fix="choose another name, or change that line by hand",
            )

    def _only_strings(self, table: Table, fix: str) -> None:
        odd = next((item for item in table.items if item.value is None), None)
        if odd:
            raise refusal(table.text.file, table.line(odd), f"the value of {odd.key!r} is no string literal", fix)

    def _proved(
        self,
        source: bytes,
        table: Table,
        splice: Splice,
        index: int,
        entry: RegistryEntry | None,
        fix: str,
        *,
        note: str = "",
    ) -> Edit:
        """entry: what was added at `index`; None when the item there was removed."""

        def change(tree: ast.Module) -> None:
            literal = _literal(tree, table.name)
            if isinstance(literal, ast.Dict):
                literal.keys[index : index + (entry is None)] = [ast.Constant(entry.key)] if entry else []
                literal.values[index : index + (entry is None)] = [ast.Constant(entry.value)] if entry else []
            elif isinstance(literal, ast.List | ast.Tuple | ast.Set):
                literal.elts[index : index + (entry is None)] = [_node(entry, table.kind)] if entry else []

        after = table.text.with_data(splice.data)
        prove(table.text, after, change, line=table.line(), fix=fix, removed=splice.removed)
        encoded = table.text.encode(splice.data)
        return Edit(encoded, changed=encoded != source, line=splice.line, note=note)


def _render(entry: RegistryEntry, kind: Kind, quote: str, encoding: str) -> bytes:
    key = string_literal(entry.key, quote, encoding)
    value = string_literal(entry.value, quote, encoding)
    text = {"dict": f"{key}: {value}", "pairs": f"({key}, {value})"}.get(kind, key)
    return text.encode("utf-8")


def _node(entry: RegistryEntry, kind: Kind) -> ast.expr:
    key = ast.Constant(entry.key)
    return ast.Tuple([key, ast.Constant(entry.value)], ast.Load()) if kind == "pairs" else key


def _literal(tree: ast.Module, name: str) -> ast.expr | None:
    """The right side of the one assignment to `name`, without the call around it."""
    statement = assignment_to(tree, name)
    value = statement.value if statement else None
    return value.args[0] if isinstance(value, ast.Call) and value.args else value


MAPPING = TableStrategy(mapping=True)
SEQUENCE = TableStrategy(mapping=False)
EXPORTS = TableStrategy(mapping=False, orders=EXPORT_ORDERS, table="__all__")
