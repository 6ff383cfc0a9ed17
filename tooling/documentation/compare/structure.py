"""What may not differ between a section and its translation, whatever the language: code, inline code, links, images,
numbers, and the shapes of tables and lists. Each is compared as a set: grammar decides how often a thing is named.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.documentation.markdown.numbers import missing
from tooling.documentation.verdicts import Difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tooling.documentation.compare.links import Links
    from tooling.documentation.markdown.records import CodeBlock, Link, Section

_WORDS: Final = frozenset(["", "text", "txt", "plain", "plaintext", "mermaid", "console", "output", "{mermaid}"])
"""Languages of blocks that hold words, which are translated."""
_SLASHES: Final = frozenset(
    [
        "c",
        "cpp",
        "c++",
        "cs",
        "go",
        "java",
        "javascript",
        "js",
        "jsonc",
        "jsx",
        "kotlin",
        "php",
        "rust",
        "scala",
        "swift",
        "ts",
        "tsx",
        "typescript",
    ]
)
_DASHES: Final = frozenset(["haskell", "lua", "sql"])
HAN: Final = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_SAMPLE: Final = 40

Pages = tuple[str, str]
"""Paths of the source and of the translation."""


def structural(source: Section, translation: Section, links: Links, pages: Pages) -> list[Difference]:
    """Everything that differs, without what the translation says is meant."""
    found = [
        *_code(source.facts.code, translation.facts.code, translation.line),
        *_spans(source, translation),
        *_links(source, translation, links, pages),
        *_numbers(source, translation),
        *_shapes(source, translation),
    ]
    allowed = {kind for one in translation.facts.allowed for kind in one.kinds}
    return [one for one in found if one.kind not in allowed]


def _code(source: Sequence[CodeBlock], translation: Sequence[CodeBlock], line: int) -> Iterator[Difference]:
    if len(source) != len(translation):
        here = translation[0].line if translation else line
        yield Difference("code", f"{len(translation)} blocks of code, the source has {len(source)}", here)
        return
    for one, other in zip(source, translation, strict=True):
        if one.language.lower() != other.language.lower():
            yield Difference(
                "code",
                f"a block of {other.language or 'no language'}, in the source {one.language or 'none'}",
                other.line,
            )
        elif one.language.lower() not in _WORDS:
            differing = _first_difference(_bare(one), _bare(other))
            if differing is not None:
                yield Difference("code", f"code differs from the source's at {_short(differing)!r}", other.line)


def _first_difference(source: Sequence[str], translation: Sequence[str]) -> str | None:
    """The first line that differs. A line with Chinese characters is a text that was translated."""
    for wanted, text in zip(source, translation, strict=False):
        if text != wanted and not HAN.search(text):
            return text
    rest = [*translation[len(source) :], *source[len(translation) :]]
    return rest[0] if rest else None


def _bare(block: CodeBlock) -> list[str]:
    """The lines of a block without comments, which are translated, and without empty lines."""
    language = block.language.strip("{}").lower()
    sign = "//" if language in _SLASHES else "--" if language in _DASHES else "#"
    lines = (re.sub(rf"(?:^|(?<=\s)){sign}.*$", "", line).rstrip() for line in block.content.splitlines())
    return [line for line in lines if line.strip()]


def _spans(source: Section, translation: Section) -> Iterator[Difference]:
    ours, theirs = set(translation.facts.spans), set(source.facts.spans)
    # A name that is code in one place may be a link's text or a word in the other.
    spoken = {span for span in theirs - ours if _says(translation, span)}
    known = {span for span in ours - theirs if _says(source, span)}
    lost, added = sorted(theirs - ours - spoken), sorted(ours - theirs - known)
    translated = [span for span in added if HAN.search(span)]  # placeholders: `<name>` is `<名称>`
    placeholders = [span for span in lost if re.search(r"<[^<>]+>|[A-Z]{3}|\.{3}", span)][: len(translated)]
    lost = [span for span in lost if span not in placeholders]
    yield from _sets("inline-code", lost, [span for span in added if span not in translated], translation.line)


def _says(section: Section, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", section.text) is not None


def _links(source: Section, translation: Section, links: Links, pages: Pages) -> Iterator[Difference]:
    for kind, ours, theirs in (
        ("links", translation.facts.links, source.facts.links),
        ("images", translation.facts.images, source.facts.images),
    ):
        here = {links.shared(pages[1], one.target): one for one in reversed(ours)}
        there = {links.shared(pages[0], one.target): one for one in reversed(theirs)}
        lost = [there[key].target for key in there if key not in here]
        added = [here[key].target for key in here if key not in there]
        yield from _sets(kind, lost, added, translation.line)
        yield from _dead(kind, ours, links, pages[1])


def _dead(kind: str, ours: Iterable[Link], links: Links, page: str) -> Iterator[Difference]:
    for one in ours:
        problem = links.problem(page, one.target)
        if problem:
            yield Difference(kind, problem, one.line)


def _numbers(source: Section, translation: Section) -> Iterator[Difference]:
    lost = missing(source.facts.words, translation.facts.words)
    added = missing(translation.facts.words, source.facts.words)
    yield from _sets("numbers", lost, added, translation.line)


def _shapes(source: Section, translation: Section) -> Iterator[Difference]:
    ours, theirs = translation.facts, source.facts
    if ours.tables != theirs.tables:
        yield Difference(
            "tables", f"tables of {_sizes(ours.tables)}, in the source {_sizes(theirs.tables)}", translation.line
        )
    if ours.items != theirs.items:
        yield Difference("lists", f"lists have {ours.items} items, in the source {theirs.items}", translation.line)


def _sizes(tables: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{rows} rows and {columns} columns" for rows, columns in tables) or "no size: there is none"


def _sets(kind: str, lost: Iterable[str], added: Iterable[str], line: int) -> Iterator[Difference]:
    for what, names in (("is not in the translation", lost), ("is not in the source", added)):
        for name in sorted(set(names)):
            yield Difference(kind, f"{_short(name)} {what}", line)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SAMPLE else f"{text[:_SAMPLE]}..."
