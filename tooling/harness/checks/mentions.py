"""What a Markdown page mentions in code: spans, lines of code blocks, and links, each with its line.

Code blocks and code spans are found as CommonMark says: a fence is closed by one at least as long, a span by as many
backticks as opened it, also on a later line of its paragraph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_TICKS = re.compile(r"`+")
_LINK = re.compile(r"\]\((?P<target>[^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class Mention:
    """One piece of code or one link's target."""

    kind: Literal["span", "code", "link"]
    """code: one line of a block."""
    text: str
    line: int
    """1-based, in the file."""
    language: str = ""
    """Of a block: the first word behind its fence."""


def mentions(text: str, first_line: int) -> Iterator[Mention]:
    """All mentions of a page's body, in order; `first_line` is the line of the file that the body begins on."""
    paragraph: list[str] = []
    fence, language = "", ""
    number = first_line
    for number, line in enumerate(text.split("\n"), first_line):
        found = _FENCE.match(line)
        if fence:
            if found and found["fence"].startswith(fence) and not found["info"].strip():
                fence = ""
            else:
                yield Mention("code", line, number, language)
        elif found:
            yield from _prose(paragraph, number)
            paragraph = []
            fence, language = found["fence"], (found["info"].split() or [""])[0]
        elif line.strip():
            paragraph.append(line)
        else:
            yield from _prose(paragraph, number)
            paragraph = []
    yield from _prose(paragraph, number + 1)


def _prose(paragraph: list[str], after: int) -> Iterator[Mention]:
    """Spans and links of one paragraph, which ended before line `after`."""
    text, start = "\n".join(paragraph), after - len(paragraph)
    position, plain = 0, []
    while found := _TICKS.search(text, position):
        closing = _closing(text, found)
        if closing is None:
            position = found.end()
            continue
        span = text[found.end() : closing].replace("\n", " ")
        yield Mention("span", span.strip(), start + text.count("\n", 0, found.start()))
        plain.append((found.start(), closing + len(found[0])))
        position = closing + len(found[0])
    for link in _LINK.finditer(text):
        if not any(begin <= link.start() < end for begin, end in plain):
            yield Mention("link", link["target"], start + text.count("\n", 0, link.start()))


def _closing(text: str, opening: re.Match[str]) -> int | None:
    for found in _TICKS.finditer(text, opening.end()):
        if len(found[0]) == len(opening[0]):
            return found.start()
    return None
