"""Whether a section was translated at all, and into the terms of the glossary."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.documentation.compare.structure import HAN
from tooling.documentation.markdown.parser import parser
from tooling.documentation.verdicts import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tooling.documentation.markdown.records import Section

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_CITATION: Final = re.compile(r"\[\d+\]")
"""An entry of a bibliography, which stays in its language."""
_SENTENCE: Final = 8
"""Words from which a paragraph is one that has to be translated, rather than a name."""
_COLUMNS: Final = 3


def untranslated(source: Section, translation: Section) -> list[Difference]:
    """Paragraphs that stand in the translation in the source's words."""
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
    """How many there are; commands of formulas are none."""
    return len(_WORD.findall(re.sub(r"\\[A-Za-z]+", " ", text)))


class Glossary:
    """A table of terms: in the source's language, in the translation's, and words that must not stand for it."""

    def __init__(self, rows: Sequence[tuple[str, str, tuple[str, ...]]]) -> None:
        self.rows = tuple(rows)

    def misused(self, source: Section, translation: Section) -> Iterator[Difference]:
        """Words that the glossary does not want, where the source has their term."""
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
    """The first table of a page that has three columns. Raises UsageError without one."""
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
    return Glossary([(row[0], row[1], _listed(row[2])) for row in rows])


def _listed(cell: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[,、\uff0c;\s]+", cell) if word and word != "-")
