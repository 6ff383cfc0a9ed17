"""Earlier versions of one page, newest first, each read only when it is asked for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tooling.documentation.git import changes, contents
from tooling.documentation.mark import take_mark
from tooling.documentation.markdown.parse import read_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tooling.documentation.git import Change
    from tooling.documentation.markdown.records import Page, Section

_AT_ONCE = 16


class Version:
    """A page as one commit left it, taken apart only when that is needed."""

    def __init__(self, path: str, change: Change, text: str) -> None:
        self.commit = change.commit
        self.date = change.date
        self._path = path
        self._text = text

    @functools.cached_property
    def page(self) -> Page:
        """The page, without a mark."""
        return read_page(self._path, self._text)

    def holds(self, section: Section) -> bool:
        """Whether a section says here what it says now."""
        wanted = section.text.strip()
        # The same lines are the same section, and most versions of most sections are; anything else has to be read.
        return (bool(wanted) and wanted in self._text) or self.page.find(section.digest) is not None

    @property
    def short(self) -> str:
        """The commit, for people."""
        return self.commit[:12]


class History:
    """The versions of all pages of a repository; nothing is read twice."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._changes: dict[str, list[Change]] = {}
        self._read_already: dict[tuple[str, str], Version | None] = {}

    def versions(self, path: str) -> Iterator[Version]:
        """Newest first, through renames, up to the first one that removed the page or that this clone lacks."""
        if path not in self._changes:
            self._changes[path] = changes(self._root, path)
        known = self._changes[path]
        for start in range(0, len(known), _AT_ONCE):
            part = known[start : start + _AT_ONCE]
            self._read(path, part)
            for change in part:
                version = self._read_already.get((path, change.commit))
                if version is None:
                    return
                yield version

    def section(self, path: str, digest: str) -> tuple[Section, Version] | None:
        """The newest section that says what the digest is of, and the version that holds it."""
        for version in self.versions(path):
            found = version.page.find(digest)
            if found is not None:
                return found, version
        return None

    def _read(self, path: str, part: list[Change]) -> None:
        wanted = [change for change in part if change.blob and (path, change.commit) not in self._read_already]
        found = contents(self._root, [change.blob for change in wanted])
        for change, content in zip(wanted, found, strict=True):
            text = take_mark(content.decode("utf-8", errors="replace"))[1] if content is not None else None
            self._read_already[path, change.commit] = Version(path, change, text) if text is not None else None
