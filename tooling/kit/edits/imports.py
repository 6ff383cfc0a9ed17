"""Registries that are a block of import lines: `from <value> import <key>`, one line per entry, sorted by module.

The new line goes next to its sorted neighbour among the top-level `from` imports of the same parent package, and
takes over that neighbour's trailing comment when it is an instruction to a tool (`# noqa: F401`). Neighbours that are
parenthesised, aliased or import several names are left as they are: an existing line is never extended.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError
from tooling.kit.edits.bindings import bound_names, module_scope
from tooling.kit.edits.literals import Module, parse_module
from tooling.kit.edits.ordering import IMPORT_ORDERS, place
from tooling.kit.edits.proof import prove
from tooling.kit.edits.text import Edit, refusal

if TYPE_CHECKING:
    from tooling.kit.kind import RegistryEntry

_DIRECTIVE = re.compile(r"#\s*(noqa|type:|isort:|pyright:|pylint:|pragma:|ruff:|mypy:)", re.IGNORECASE)
_DOTTED = re.compile(r"\.*(\w+(\.\w+)*)?")


@dataclass(frozen=True, slots=True)
class _Line:
    """One top-level `from` import."""

    module: str
    names: tuple[tuple[str, str], ...]
    """(imported name, name it is bound to)."""
    start: int
    end: int
    """Offsets of the whole lines."""
    comment: str
    index: int
    """In the body of the module's tree."""
    plain: bool
    """One name, one line, nothing else on it."""

    @property
    def parent(self) -> str:
        """ "pkg" of "pkg.x"; the dots of a relative import."""
        head, dot, _ = self.module.rpartition(".")
        return head + dot if not head.strip(".") else head


@dataclass(frozen=True, slots=True)
class ImportStrategy:
    """Adds and removes whole import lines."""

    def paste(self, entry: RegistryEntry) -> str:
        """The line that a person would add."""
        return f"from {entry.value} import {entry.key}"

    def keys(self, source: bytes, entry: RegistryEntry) -> list[str]:
        """Names that the block binds, in the order of the source."""
        module = self._parse(source, entry, self._to_paste(entry))
        return [bound for line in _block(_lines(module), entry) for _, bound in line.names]

    def find(self, source: bytes, entry: RegistryEntry) -> tuple[str | None, int] | None:
        """(module, line) of the import that binds the entry's key at the top level."""
        module = self._parse(source, entry, self._to_paste(entry))
        line = _binding(module, entry.key)
        return (line.module, module.text.line(line.start)) if line else None

    def add(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One more line. Raises ConflictError when the name is bound to something else."""
        fix = self._to_paste(entry)
        module = self._parse(source, entry, fix)
        present = _binding(module, entry.key)
        if present and present.module == entry.value and (entry.key, entry.key) in present.names:
            return Edit(source, changed=False, line=module.text.line(present.start))
        self._refuse_other_meaning(module, entry)
        block = _block(_lines(module), entry)
        if not block:
            raise refusal(entry.file, 1, f"no import next to which {entry.value!r} would sort", fix)
        index, ordered = place([line.module for line in block], entry.value, IMPORT_ORDERS)
        note = "" if ordered else "the import lines are not sorted: added behind them"
        return self._insert(source, module, block, index, entry, note)

    def remove(self, source: bytes, entry: RegistryEntry) -> Edit:
        """One line less; refused where the line imports more than the entry."""
        fix = f"remove this import by hand: {self.paste(entry)}"
        module = self._parse(source, entry, fix)
        present = _binding(module, entry.key)
        if present is None:
            return Edit(source, changed=False, line=0)
        number = module.text.line(present.start)
        if present.module != entry.value:
            why = f"{entry.key!r} is imported from {present.module!r}, not from {entry.value!r}"
            raise ConflictError(why, where=f"{entry.file}:{number}", fix="change that line by hand")
        if not present.plain or present.names != ((entry.key, entry.key),):
            raise refusal(entry.file, number, f"the import of {entry.key!r} shares its lines with something else", fix)
        above, below = module.text.data[: present.start], module.text.data[present.end :]
        if not below and not module.text.data.endswith(b"\n"):
            above = above.removesuffix(module.text.newline(max(present.start - 1, 0)))
        data = above + below

        def change(tree: ast.Module) -> None:
            del tree.body[present.index]

        span = (present.start, present.end)
        prove(module.text, module.text.with_data(data), change, line=number, fix=fix, removed=span)
        return Edit(module.text.encode(data), changed=True, line=number)

    def _insert(
        self, source: bytes, module: Module, block: list[_Line], index: int, entry: RegistryEntry, note: str
    ) -> Edit:
        text = module.text
        previous = block[index - 1] if index else None
        neighbour = previous or block[0]
        at, body_index = (previous.end, previous.index + 1) if previous else (neighbour.start, neighbour.index)
        comment = _copied_comment(block, index)
        newline = text.newline(neighbour.start)
        line = self.paste(entry).encode("utf-8") + (b"  " + comment.encode("utf-8") if comment else b"") + newline
        # A last line without a line ending gets one; the new last line then has none, so that removing restores it.
        unfinished = at == len(text.data) and not text.data.endswith(b"\n")
        if unfinished:
            line = newline + line.removesuffix(newline)
        data = text.data[:at] + line + text.data[at:]

        def change(tree: ast.Module) -> None:
            name, level = entry.value.lstrip("."), len(entry.value) - len(entry.value.lstrip("."))
            tree.body.insert(body_index, ast.ImportFrom(name or None, [ast.alias(entry.key, None)], level))

        number = text.line(neighbour.start)
        span = (at, at + len(line))
        prove(text, text.with_data(data), change, line=number, fix=self._to_paste(entry), added=span)
        return Edit(text.encode(data), changed=True, line=data.count(b"\n", 0, at) + 1 + unfinished, note=note)

    def _parse(self, source: bytes, entry: RegistryEntry, fix: str) -> Module:
        module = entry.value
        if not entry.key.isidentifier() or not _DOTTED.fullmatch(module) or module in {"", "__future__"}:
            raise refusal(entry.file, 1, f"{self.paste(entry)!r} is no import", fix)
        return parse_module(source, entry.file, fix)

    def _refuse_other_meaning(self, module: Module, entry: RegistryEntry) -> None:
        for node in module_scope(module.tree):
            if entry.key in bound_names(node):
                line = getattr(node, "lineno", 1)
                why = f"{entry.key!r} means something else in this module already"
                raise ConflictError(why, where=f"{entry.file}:{line}", fix="choose another name")

    def _to_paste(self, entry: RegistryEntry) -> str:
        return f"paste this line: {self.paste(entry)}"


def _lines(module: Module) -> list[_Line]:
    text, found = module.text, []
    for index, node in enumerate(module.tree.body):
        if not isinstance(node, ast.ImportFrom) or node.module == "__future__":  # which has to stay first
            continue
        begin, stop = text.offset(node.lineno, node.col_offset), _end(module, node)
        alone = text.starts_line(begin) and text.ends_line(stop)
        names = tuple((alias.name, alias.asname or alias.name) for alias in node.names)
        found.append(
            _Line(
                module="." * node.level + (node.module or ""),
                names=names,
                start=text.line_start(begin),
                end=text.next_line(stop),
                comment=text.data[stop : text.next_line(stop)].decode("utf-8").strip() if alone else "",
                index=index,
                plain=alone and node.lineno == node.end_lineno and len(names) == 1,
            )
        )
    return found


def _end(module: Module, node: ast.stmt) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return module.text.offset(node.end_lineno, node.end_col_offset)


def _block(lines: list[_Line], entry: RegistryEntry) -> list[_Line]:
    """Imports of the same parent package that have their lines for themselves and stand together: the longest such
    run."""
    parent = _Line(entry.value, (), 0, 0, "", 0, plain=True).parent
    runs: list[list[_Line]] = []
    for line in lines:
        if line.parent != parent:
            continue
        if runs and runs[-1][-1].index == line.index - 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return max(runs, key=len, default=[])


def _binding(module: Module, name: str) -> _Line | None:
    return next((line for line in _lines(module) if name in (bound for _, bound in line.names)), None)


def _copied_comment(block: list[_Line], index: int) -> str:
    """The directive of the nearest plain neighbour: the one above, else the one below."""
    nearest = [*block[max(index - 1, 0) : index], *block[index : index + 1]]
    plain = [line for line in nearest if line.plain]
    return plain[0].comment if plain and _DIRECTIVE.match(plain[0].comment) else ""
