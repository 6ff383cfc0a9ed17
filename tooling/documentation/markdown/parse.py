"""Reading a page: CommonMark with tables, cut at the headings that stand in no list or quotation."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.documentation.markdown.facts import facts_of, text_of
from tooling.documentation.markdown.normal import digest
from tooling.documentation.markdown.parser import parser
from tooling.documentation.markdown.records import Page, Section

if TYPE_CHECKING:
    from markdown_it.token import Token

_FRONT: Final = re.compile(r"\A---[ \t]*\n(?P<inside>.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_LEVEL: Final = -1


def read_page(path: str, text: str) -> Page:
    """The page's sections. Every text is Markdown, so nothing is raised."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    front = _FRONT.match(text)
    head, body = (front[0], text[front.end() :]) if front else ("", text)
    offset = head.count("\n")
    tokens = parser().parse(body)
    lines = body.split("\n")
    sections, taken = list[Section](), dict[str, int]()
    if head:
        said = digest([], front["inside"] or "") if front else ""
        sections.append(Section("", _FRONT_LEVEL, "", 1, offset, head, said))
    starts = [number for number, token in enumerate(tokens) if token.type == "heading_open" and token.level == 0]
    bounds = [0, *starts, len(tokens)]
    for begin, end in itertools.pairwise(bounds):
        part = tokens[begin:end]
        heading = part[0] if part and begin in starts else None
        first = heading.map[0] if heading is not None and heading.map else 0
        after = tokens[end].map if end < len(tokens) else None
        last = after[0] if after else len(lines)
        if heading is None and not part:
            continue
        sections.append(_section(part, heading, lines[first:last], first + offset, taken))
    return Page(path, tuple(sections))


def _section(part: list[Token], heading: Token | None, lines: list[str], first: int, taken: dict[str, int]) -> Section:
    text = "\n".join(lines).rstrip() + "\n"
    title = text_of(part[1]) if heading is not None else ""
    level = int(heading.tag[1:]) if heading is not None else 0
    end = first + max(1, text.count("\n"))
    offset = first - (heading.map[0] if heading is not None and heading.map else 0)
    return Section(title, level, _slug(title, taken), first + 1, end, text, digest(part), facts_of(part, offset))


def _slug(title: str, taken: dict[str, int]) -> str:
    """The anchor of a heading as GitHub makes it; the second one of a name gets "-1"."""
    if not title:
        return ""
    kept = "".join(letter for letter in title.strip().lower() if letter.isalnum() or letter in " -_")
    slug = kept.replace(" ", "-")
    again = taken.get(slug, 0)
    taken[slug] = again + 1
    return f"{slug}-{again}" if again else slug
