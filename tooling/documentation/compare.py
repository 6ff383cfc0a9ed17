"""Compares a section with its translation: what does not depend on the language, links, words, and the glossary."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tooling.cli.errors import UsageError
from tooling.documentation.markdown import parser
from tooling.documentation.numbers import missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tooling.documentation.markdown import CodeBlock, Section
    from tooling.documentation.pages import Tree


_EXTERNAL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
_LOCALE: Final = re.compile(r"(?<=/)(?:en|zh|cn|en-us|zh-cn|zh_cn|zh-hans|en_us)(?=/|$)", re.IGNORECASE)
_HOST: Final = re.compile(r"(?<=//)(?:en|zh)(?=\.)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a translation has to keep and has not."""

    kind: str
    """code, inline-code, links, numbers, images, tables, lists, words, glossary."""
    message: str
    line: int
    """1-based, in the translation."""


@dataclass(slots=True)
class Links:
    """Judges links of the pages of one tree."""

    tree: Tree
    _slugs: dict[str, frozenset[str]] = field(default_factory=dict)

    def shared(self, page: str, target: str) -> str:
        """Return what a link means in both languages: "../zh/a.md#b" of the translation and "a.md#c" of the source are
        one."""
        if _EXTERNAL.match(target):
            return _LOCALE.sub("*", _HOST.sub("*", target.rstrip("/")))
        path = self._path(page, target)
        return f"page {self.tree.source_of(path)}" if path else "here"

    def problem(self, page: str, target: str) -> str:
        """Say what is wrong with a link of the translation; "" when nothing is, or when it cannot be known."""
        if _EXTERNAL.match(target) or target.startswith("/"):
            return ""
        path, fragment = self._path(page, target), unquote(target.partition("#")[2])
        # A path above the root is of another repository's checkout, or of the site: not ours to know.
        known = path.startswith("../") or path in self.tree.files or (self.tree.root / path).is_dir()
        if path and path != page and not known:
            return f"{target} leads nowhere"
        other = self.tree.translation_of(path)
        if path and self.tree.source_of(path) == path and other in self.tree.files and other != page:
            return f"{target} leads to the source, although {other} translates it"
        place = path or page
        if fragment and place.endswith(".md") and place in self.tree.files and fragment not in self._anchors(place):
            return f"{target}: no heading of {place} has this anchor"
        return ""

    def _path(self, page: str, target: str) -> str:
        """Return the file that a relative link leads to; "" for a place on the same page."""
        path = unquote(target.partition("#")[0].partition("?")[0])
        if not path:
            return ""
        return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))

    def _anchors(self, path: str) -> frozenset[str]:
        if path not in self._slugs:
            text = self.tree.text(path)
            named = re.findall(r"""(?:\{#|id=["']|name=["']|^\()([\w-]+)(?:\}|["']|\)=)""", text, re.MULTILINE)
            page, _ = self.tree.read(path)
            self._slugs[path] = frozenset([*named, *(section.slug for section in page.sections)])
        return self._slugs[path]


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
    """List everything that differs, without what the translation says is meant."""
    lost = missing(source.facts.words, translation.facts.words)
    added = missing(translation.facts.words, source.facts.words)
    found = [
        *_code(source.facts.code, translation.facts.code, translation.line),
        *_spans(source, translation),
        *_links(source, translation, links, pages),
        *_sets("numbers", lost, added, translation.line),
    ]
    ours, theirs = translation.facts, source.facts
    if ours.tables != theirs.tables:
        said = f"tables of {_sizes(ours.tables)}, in the source {_sizes(theirs.tables)}"
        found.append(Difference("tables", said, translation.line))
    if ours.items != theirs.items:
        said = f"lists have {ours.items} items, in the source {theirs.items}"
        found.append(Difference("lists", said, translation.line))
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
            wanted, lines = _bare(one), _bare(other)
            # A line with Chinese characters is a text that was translated.
            pairs = zip(wanted, lines, strict=False)
            differing = [line for expected, line in pairs if line != expected and not HAN.search(line)]
            differing += [*lines[len(wanted) :], *wanted[len(lines) :]]
            if differing:
                yield Difference("code", f"code differs from the source's at {_short(differing[0])!r}", other.line)


def _bare(block: CodeBlock) -> list[str]:
    """Return the lines of a block without comments, which are translated, and without empty lines."""
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
        problems = [(links.problem(pages[1], one.target), one.line) for one in ours]
        yield from (Difference(kind, problem, line) for problem, line in problems if problem)


def _sizes(tables: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{rows} rows and {columns} columns" for rows, columns in tables) or "no size: there is none"


def _sets(kind: str, lost: Iterable[str], added: Iterable[str], line: int) -> Iterator[Difference]:
    for what, names in (("is not in the translation", lost), ("is not in the source", added)):
        for name in sorted(set(names)):
            yield Difference(kind, f"{_short(name)} {what}", line)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SAMPLE else f"{text[:_SAMPLE]}..."


_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_CITATION: Final = re.compile(r"\[\d+\]")
"""An entry of a bibliography, which stays in its language."""
_SENTENCE: Final = 8
"""Words from which a paragraph is one that has to be translated, rather than a name."""
_COLUMNS: Final = 3


def untranslated(source: Section, translation: Section) -> list[Difference]:
    """Return paragraphs of the translation that are still in the source's words."""
    theirs = {piece.text for piece in source.facts.prose}
    if any("words" in one.kinds for one in translation.facts.allowed):
        return []
    return [
        Difference("words", f"not translated: {piece.text[:60]!r}", piece.line)
        for piece in translation.facts.prose
        if piece.text in theirs
        and not _CITATION.match(piece.text)
        and not HAN.search(piece.text)
        and _words(piece.text) >= _SENTENCE
    ]


def is_untranslated(source: Section, translation: Section) -> bool:
    """Whether the whole section is still in the source's words."""
    ours, theirs = translation.facts.words, source.facts.words
    if any("words" in one.kinds for one in translation.facts.allowed) or HAN.search(ours):
        return False
    return ours == theirs and _words(theirs) >= _SENTENCE // 2


def _words(text: str) -> int:
    """Count words; commands of formulas are none."""
    return len(_WORD.findall(re.sub(r"\\[A-Za-z]+", " ", text)))


class Glossary:
    """A table of terms: in the source's language, in the translation's, and words that must not stand for it."""

    def __init__(self, rows: Sequence[tuple[str, str, tuple[str, ...]]]) -> None:
        self.rows = tuple(rows)

    def misused(self, source: Section, translation: Section) -> Iterator[Difference]:
        """Yield words that the glossary does not want, where the source has their term."""
        if any("glossary" in one.kinds for one in translation.facts.allowed):
            return
        for term, wanted, unwanted in self.rows:
            if not re.search(rf"\b{re.escape(term)}(?:s|es|ed|ing)?\b", source.facts.words, re.IGNORECASE):
                continue
            for word in unwanted:
                line = next((piece.line for piece in translation.facts.prose if word in piece.text), 0)
                if line:
                    yield Difference("glossary", f"{word} stands for {term!r}; the glossary says {wanted}", line)


def read_glossary(root: Path, path: str) -> Glossary:
    """Read the first table of a page that has three columns. Raises UsageError without one."""
    if not path:
        return Glossary(())
    file = root / path
    if not file.is_file():
        raise UsageError("does not exist", where=path, fix="correct `glossary` in [tool.areal.docs] of pyproject.toml")
    cells, rows, inside = list[str](), list[tuple[str, ...]](), False
    for token in parser().parse(file.read_text(encoding="utf-8")):
        if token.type == "tbody_open":
            inside = True
        elif token.type == "tbody_close":
            break
        elif inside and token.type == "tr_open":
            cells = []
        elif inside and token.type == "inline":
            cells.append(token.content.strip())
        elif inside and token.type == "tr_close":
            rows.append(tuple(cells))
    if not rows or any(len(row) < _COLUMNS for row in rows):
        raise UsageError("has no table of three columns", where=path, fix="source, translation, words not to be used")
    words = (re.split(r"[,、\uff0c;\s]+", row[2]) for row in rows)
    return Glossary(
        [
            (row[0], row[1], tuple(word for word in each if word not in {"", "-"}))
            for row, each in zip(rows, words, strict=True)
        ]
    )
