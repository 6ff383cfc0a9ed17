"""Lists and reads the pages of both trees, and the mark at the end of a translated one.

Pages belong together that have the same place below the two folders. The mark records which sections of its source a
translation follows, and what it was like then:

<!-- areal-docs follows docs/concepts.md; written by `areal-docs zh-mark`, not by hand
0123456789abcdef fedcba9876543210 ## versions
-->

One line per section, in the order of the page: hash of the source's section, hash of the translated one, level and
anchor of the source's heading. No commit is named, so that a mark survives rebases and copies of the folder.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.documentation.markdown import read_page
from tooling.kit.change.plan import read_inside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.documentation.markdown import MarkdownPage, Section
    from tooling.documentation.settings import DocsSettings


_OPENING: Final = "<!-- areal-docs follows "
_NOTE: Final = "; written by `areal-docs zh-mark`, not by hand"
_MARK: Final = re.compile(
    rf"\n*^{re.escape(_OPENING)}(?P<source>[^\n]*?)(?:{re.escape(_NOTE)})?\n(?P<rows>.*?)^-->[ \t]*\n*\Z",
    re.DOTALL | re.MULTILINE,
)
_ROW: Final = re.compile(
    r"(?P<source>[0-9a-f]{16}) (?P<translation>[0-9a-f]{16}) (?P<level>-|0|#{1,6})(?: (?P<slug>\S+))?"
)
_LEVELS: Final = {-1: "-", 0: "0"}


@dataclass(frozen=True, slots=True)
class PageRow:
    """One section at the time of the mark."""

    source: str
    """Digest of the source's section."""
    translation: str
    """Digest of the translated section."""
    level: int
    slug: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A whole record."""

    source: str
    """Path of the source page."""
    rows: tuple[PageRow, ...]
    broken: int = 0
    """Lines that are no rows: somebody edited the record, or a merge left its marks."""


def take_mark(text: str) -> tuple[Mark | None, str]:
    """Split a page into its mark, None without one, and the rest."""
    text = text.replace("\r\n", "\n")
    found = _MARK.search(text)
    if found is None:
        return None, text
    rows, broken = list[PageRow](), 0
    for line in found["rows"].splitlines():
        row = _ROW.fullmatch(line.strip())
        if row is None:
            broken += bool(line.strip())
            continue
        level = {"-": -1, "0": 0}.get(row["level"], len(row["level"]))
        rows.append(PageRow(row["source"], row["translation"], level, row["slug"] or ""))
    return Mark(found["source"].strip(), tuple(rows), broken), text[: found.start()].rstrip("\n") + "\n"


def marked(text: str, source: str, pairs: Sequence[tuple[Section, Section]]) -> str:
    """Return the page with a new mark in place of its old one; `pairs` are (section of the source, translation)."""
    _, plain = take_mark(text)
    lines = [f"{_OPENING}{source}{_NOTE}"]
    for original, translated in pairs:
        level = _LEVELS.get(original.level, "#" * original.level)
        lines.append(f"{original.digest} {translated.digest} {level} {original.slug}".rstrip())
    return plain.rstrip("\n") + "\n\n" + "\n".join([*lines, "-->"]) + "\n"


_REGION: Final = re.compile(r"<!-- (?P<name>[^\s/:][^\n]*?)(?P<begin>: begin)? -->")
"""The first line of `<!-- NAME -->` to `<!-- /NAME -->`, or of `<!-- NAME: begin -->` to `<!-- NAME: end -->`."""
_FENCE: Final = re.compile(r" {0,3}(?P<fence>(?P<mark>[`~])(?P=mark){2,})(?P<info>[^`]*)")


def without_generated(text: str, names: Sequence[str]) -> str:
    """Return the page without what programs keep up to date: the lines of these regions are empty, so that all others
    keep their numbers. names: patterns such as "areal-new:*" for NAME in `<!-- NAME -->` ... `<!-- /NAME -->`, or in
    `<!-- NAME: begin -->` ... `<!-- NAME: end -->`. Regions may stand in others; examples in fenced code are none.
    """
    if not names:
        return text
    lines, at = text.split("\n"), 0
    marks = _outside_fences([line.removesuffix("\r") for line in lines])
    while at < len(lines):
        opening = _REGION.fullmatch(marks[at])
        if opening is not None and any(fnmatchcase(opening["name"], name) for name in names):
            closing = f"<!-- {opening['name']}: end -->" if opening["begin"] else f"<!-- /{opening['name']} -->"
            depth = itertools.accumulate((mark == opening[0]) - (mark == closing) for mark in marks[at:])
            end = next((at + number for number, each in enumerate(depth) if each == 0), None)
            if end is not None:
                lines[at : end + 1] = ["\r" if line.endswith("\r") else "" for line in lines[at : end + 1]]
                at = end
        at += 1
    return "\n".join(lines)


def _outside_fences(lines: Sequence[str]) -> list[str]:
    """Return the lines with those of fenced code empty."""
    kept, fence = list[str](), ""
    for line in lines:
        found = _FENCE.fullmatch(line)
        kept.append("" if fence or found else line)
        if not fence:
            fence = found["fence"] if found else ""
        elif found and found["fence"].startswith(fence) and not found["info"].strip():
            fence = ""
    return kept


SUFFIXES: Final = (".md", ".mdx", ".markdown")


@dataclass(frozen=True, slots=True)
class Twin:
    """A page of the source and its translation."""

    source: str
    translation: str


@dataclass(frozen=True, slots=True)
class Tree:
    """All pages, by path; read on demand."""

    root: Path
    settings: DocsSettings
    twins: tuple[Twin, ...]
    """Pages that are on both sides."""
    untranslated: tuple[str, ...]
    """Pages of the source without a translation, and not excluded."""
    orphans: tuple[str, ...]
    """Translations whose source is gone."""
    files: frozenset[str]

    def read(self, path: str) -> tuple[MarkdownPage, Mark | None]:
        """Read a page without its mark and without generated regions, and the mark. Raises UsageError when it is not
        UTF-8."""
        mark, plain = take_mark(self.text(path))
        return read_page(path, without_generated(plain, self.settings.generated)), mark

    def text(self, path: str) -> str:
        """Return the whole file."""
        content = read_inside(self.root, path)
        if content is None:
            raise UsageError("does not exist", where=path, fix="name a page of the two folders")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError("is not UTF-8 text", where=path, fix="save it as UTF-8") from error

    def source_of(self, path: str) -> str:
        """Return where a page of the translation has its source; another path is returned as it is."""
        prefix = f"{self.settings.translation}/"
        return f"{self.settings.source}/{path.removeprefix(prefix)}" if path.startswith(prefix) else path

    def translation_of(self, path: str) -> str:
        """Return where a page of the source has its translation."""
        return f"{self.settings.translation}/{path.removeprefix(f'{self.settings.source}/')}"


def read_tree(root: Path, files: Sequence[str], settings: DocsSettings) -> Tree:
    """Return the pages among the repository's files. Raises UsageError when one of the folders holds none."""
    translated = [path for path in files if path.startswith(f"{settings.translation}/") and path.endswith(SUFFIXES)]
    sources = [
        path
        for path in files
        if path.startswith(f"{settings.source}/") and path.endswith(SUFFIXES) and path not in set(translated)
    ]
    if settings.source.startswith(f"{settings.translation}/"):
        translated = [path for path in translated if not path.startswith(f"{settings.source}/")]
        sources = [path for path in files if path.startswith(f"{settings.source}/") and path.endswith(SUFFIXES)]
    if not sources:
        fix = "set `source` in [tool.areal.docs] of pyproject.toml"
        raise UsageError("holds no pages", where=f"{settings.source}/", fix=fix)
    whole = Tree(root, settings, (), (), (), frozenset(files))
    known, there = set(sources), set(translated)
    twins = [Twin(path, whole.translation_of(path)) for path in sources if whole.translation_of(path) in there]
    missing = [path for path in sources if whole.translation_of(path) not in there and not settings.excluded(path)]
    orphans = [path for path in translated if whole.source_of(path) not in known]
    return Tree(root, settings, tuple(twins), tuple(missing), tuple(orphans), frozenset(files))


def chosen(tree: Tree, names: Sequence[str]) -> Tree:
    """Return only the named pages, given by their source or their translation, from the root or below one of the
    folders. Raises UsageError for other names."""
    if not names:
        return tree
    places = {twin.source for twin in tree.twins} | set(tree.untranslated) | {tree.source_of(o) for o in tree.orphans}
    wanted = set()
    for name in names:
        plain = name.removeprefix("./")
        options = [tree.source_of(plain), f"{tree.settings.source}/{plain}", f"{tree.settings.source}/{plain}.md"]
        found = next((option for option in options if option in places), None)
        if found is None:
            from tooling.cli.suggest import did_you_mean

            fix = did_you_mean(plain, places) or "`areal-docs zh-check` lists the pages"
            raise UsageError("is not a page of the source or of the translation", where=name, fix=fix)
        wanted.add(found)
    return Tree(
        tree.root,
        tree.settings,
        tuple(twin for twin in tree.twins if twin.source in wanted),
        tuple(path for path in tree.untranslated if path in wanted),
        tuple(path for path in tree.orphans if tree.source_of(path) in wanted),
        tree.files,
    )
