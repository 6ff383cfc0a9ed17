"""Edits of source text with proof: registry entries and lines of documents, as pure functions on bytes.

LibCST locates the place, bytes are spliced, the standard library's `ast` proves that nothing but the entry changed.
What is not recognised is refused with file:line and the line to paste. `tooling.kit.edits.migrate` turns an if/elif
dispatch into a table once. Not here: reading and writing files (`tooling.kit.change`).
"""

from __future__ import annotations

from tooling.kit.edits.documents import add_document_line, document_keys, has_document_line, remove_document_line
from tooling.kit.edits.registry import add_entry, find_entry, has_entry, keys, line_to_paste, remove_entry
from tooling.kit.edits.text import Edit

__all__ = [
    "Edit",
    "add_document_line",
    "add_entry",
    "document_keys",
    "find_entry",
    "has_document_line",
    "has_entry",
    "keys",
    "line_to_paste",
    "remove_document_line",
    "remove_entry",
]
