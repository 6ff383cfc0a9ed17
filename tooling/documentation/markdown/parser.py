"""The one parser of pages: CommonMark, tables and struck text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


@functools.cache
def parser() -> MarkdownIt:
    """Made once."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])
