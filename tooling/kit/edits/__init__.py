"""Edits of source text with proof: registry entries and lines of documents, as pure functions on bytes.

LibCST locates the place, bytes are spliced, the standard library's `ast` proves that nothing but the entry changed.
What is not recognised is refused with file:line and the line to paste. Not here: reading and writing files
(`tooling.kit.change`).
"""

from __future__ import annotations

from tooling.kit.edits.registry import add_entry, find_entry, has_entry, keys, line_to_paste, remove_entry
from tooling.kit.edits.text import SourceEdit

__all__ = ["SourceEdit", "add_entry", "find_entry", "has_entry", "keys", "line_to_paste", "remove_entry"]
