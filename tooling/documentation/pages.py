"""The pages of both trees, read, and which belong together: those of the same place below the two folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.documentation.mark import take_mark
from tooling.documentation.markdown.parse import read_page
from tooling.kit.change.plan import read_inside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.documentation.mark import Mark
    from tooling.documentation.markdown.records import Page
    from tooling.documentation.settings import Settings

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
    settings: Settings
    twins: tuple[Twin, ...]
    """Pages that are on both sides."""
    untranslated: tuple[str, ...]
    """Pages of the source without a translation, and not excluded."""
    orphans: tuple[str, ...]
    """Translations whose source is gone."""
    files: frozenset[str]

    def read(self, path: str) -> tuple[Page, Mark | None]:
        """A page without its mark, and the mark. Raises UsageError when it is no UTF-8."""
        text = self.text(path)
        mark, plain = take_mark(text)
        return read_page(path, plain), mark

    def text(self, path: str) -> str:
        """The whole file."""
        content = read_inside(self.root, path)
        if content is None:
            raise UsageError("does not exist", where=path, fix="name a page of the two folders")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError("is no UTF-8 text", where=path, fix="save it as UTF-8") from error

    def source_of(self, path: str) -> str:
        """Where a page of the translation has its source; another path is returned as it is."""
        prefix = f"{self.settings.translation}/"
        return f"{self.settings.source}/{path.removeprefix(prefix)}" if path.startswith(prefix) else path

    def translation_of(self, path: str) -> str:
        """Where a page of the source has its translation."""
        return f"{self.settings.translation}/{path.removeprefix(f'{self.settings.source}/')}"


def read_tree(root: Path, files: Sequence[str], settings: Settings) -> Tree:
    """The pages among the repository's files. Raises UsageError when one of the folders holds none."""
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
    """Only the named pages, given by their source or their translation, from the root or below one of the folders.
    Raises UsageError for a page that is none."""
    if not names:
        return tree
    wanted = {_resolved(tree, name) for name in names}
    return Tree(
        tree.root,
        tree.settings,
        tuple(twin for twin in tree.twins if twin.source in wanted),
        tuple(path for path in tree.untranslated if path in wanted),
        tuple(path for path in tree.orphans if tree.source_of(path) in wanted),
        tree.files,
    )


def _resolved(tree: Tree, name: str) -> str:
    settings = tree.settings
    places = {twin.source for twin in tree.twins} | set(tree.untranslated) | {tree.source_of(o) for o in tree.orphans}
    plain = name.removeprefix("./")
    options = [tree.source_of(plain), f"{settings.source}/{plain}", f"{settings.source}/{plain}.md"]
    found = next((option for option in options if option in places), None)
    if found is None:
        from tooling.cli.suggest import did_you_mean

        fix = did_you_mean(plain, places) or "`areal-docs zh-check` lists the pages"
        raise UsageError("is no page with a translation, or without one", where=name, fix=fix)
    return found
