"""Reads earlier versions of pages from git, and infers which one a translation without a mark can follow.

Only one thing is certain: a section that was last written before a commit cannot follow what that commit made of the
source. So a section is blamed only when the source's was changed by a commit that the author of the translation cannot
have had, and only when what changed is not there already. Everything else is left alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

from tooling.cli.git import Git
from tooling.documentation.markdown import read_page
from tooling.documentation.numbers import missing
from tooling.documentation.pages import take_mark, without_generated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tooling.documentation.markdown import MarkdownPage, Section


_RECORD: Final = "\x01"


@dataclass(frozen=True, slots=True)
class Before:
    """The section of the source that the translation follows."""

    text: str
    """"" when it is not in the history of this clone."""
    commit: str = ""
    """The newest commit that has it."""
    date: str = ""
    since: tuple[str, ...] = ()
    """Commits that changed it since, newest first; as far as they are known."""


@dataclass(frozen=True, slots=True)
class PageChange:
    """A commit that changed one file."""

    commit: str
    date: str
    """Of the author: "2026-03-14"."""
    blob: str
    """Hash of the file's content then; "" where the commit removed it."""


def changes(root: Path, path: str) -> list[PageChange]:
    """Return the commits that changed a file, newest first, through renames. Empty without commits."""
    shape = f"--format={_RECORD}%H %ad"
    options = ["--follow", "--raw", "--no-abbrev", "-M", "--date=short", "--no-ext-diff", "--no-textconv", "--no-color"]
    output = Git(root).run("log", "--topo-order", shape, *options, "--", path, allowed=(0, 128))
    found = []
    for record in output.decode(errors="replace").split(_RECORD)[1:]:
        head, _, rest = record.partition("\n")
        commit, date = head.split(" ", 1)
        raw = next((line for line in rest.splitlines() if line.startswith(":")), None)
        if raw is not None:
            blob = raw.split(" ")[3]
            found.append(PageChange(commit, date, "" if set(blob) == {"0"} else blob))
    return found


def positions(root: Path) -> dict[str, int]:
    """Return every commit with its place in history, the newest first."""
    output = Git(root).run("rev-list", "--topo-order", "HEAD", allowed=(0, 128)).decode()
    return {commit: number for number, commit in enumerate(output.split())}


_AT_ONCE = 16


class Version:
    """A page as one commit left it, taken apart only when that is needed."""

    def __init__(self, path: str, change: PageChange, text: str) -> None:
        self.commit = change.commit
        self.date = change.date
        self._path = path
        self._text = text

    @functools.cached_property
    def page(self) -> MarkdownPage:
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

    def __init__(self, root: Path, generated: Sequence[str] = ()) -> None:
        """Regions whose name is among `generated` are left out of every version."""
        self._root = root
        self._generated = generated
        self._changes: dict[str, list[PageChange]] = {}
        self._read_already: dict[tuple[str, str], Version | None] = {}

    def versions(self, path: str) -> Iterator[Version]:
        """Yield versions, newest first, through renames, up to the first one that removed the page or that this clone
        lacks."""
        if path not in self._changes:
            self._changes[path] = changes(self._root, path)
        known = self._changes[path]
        for start in range(0, len(known), _AT_ONCE):
            part = known[start : start + _AT_ONCE]
            wanted = [change for change in part if change.blob and (path, change.commit) not in self._read_already]
            contents = Git(self._root).blobs([change.blob for change in wanted])
            for change, content in zip(wanted, contents, strict=True):
                version = None
                if content is not None:
                    _, plain = take_mark(content.decode("utf-8", errors="replace"))
                    version = Version(path, change, without_generated(plain, self._generated))
                self._read_already[path, change.commit] = version
            for change in part:
                version = self._read_already.get((path, change.commit))
                if version is None:
                    return
                yield version

    def section(self, path: str, digest: str) -> tuple[Section, Version] | None:
        """Return the newest section with this digest, and the version that holds it."""
        for version in self.versions(path):
            found = version.page.find(digest)
            if found is not None:
                return found, version
        return None


_SAME: Final = 0.4
"""Share of equal words from which an earlier section under another heading is the same one."""


class MarkInference:
    """Judges the sections of pages without marks."""

    def __init__(self, root: Path, history: History) -> None:
        self._root = root
        self._history = history
        self._git = Git(root)
        self._positions: dict[str, int] | None = None
        self._known: dict[tuple[str, str], bool] = {}

    def before(self, source: tuple[str, Section], translation: tuple[str, Section]) -> Before | None:
        """Return the source's section as the translation can know it, if it says something else now; None when nothing
        is known against the translation. Both are (path, section)."""
        written = self._written(*translation)
        changed = self._written(*source)
        if written is None or changed is None:
            return None  # one of them is not committed yet: whoever works on it is not late
        if self._is_ancestor(changed.commit, written.commit):
            return None
        version = self._as_of(source[0], written)
        found = _counterpart(version.page, source[1]) if version is not None else None
        if version is None or found is None or found.digest == source[1].digest:
            return None
        if _has_already(found, source[1], translation[1]):
            return None
        since = self._since(source[0], source[1], found)
        return Before(found.text, version.commit, version.date, since)

    def _written(self, path: str, section: Section) -> Version | None:
        """Return the version that wrote a section as it is now: the oldest in one run with the newest."""
        first = None
        for version in self._history.versions(path):
            if not version.holds(section):
                break
            first = version
        return first

    def _as_of(self, path: str, moment: Version) -> Version | None:
        """Return the page as it was when the commit was made."""
        if self._positions is None:
            self._positions = positions(self._root)
        at = self._positions.get(moment.commit, -1)
        for version in self._history.versions(path):
            if self._positions.get(version.commit, -1) >= at and self._is_ancestor(version.commit, moment.commit):
                return version
        return None

    def _is_ancestor(self, older: str, newer: str) -> bool:
        if (older, newer) not in self._known:
            self._known[older, newer] = self._git.is_ancestor(older, newer)
        return self._known[older, newer]

    def _since(self, path: str, now: Section, then: Section) -> tuple[str, ...]:
        """Return commits after which the section was another one than before, newest first, down to `then`."""
        found, last, commit = list[str](), now.digest, ""
        for version in self._history.versions(path):
            section = version.page.find(last)
            if section is None:
                found.append(commit)
                last = (_counterpart(version.page, now) or then).digest
            if version.page.find(then.digest) is not None and last == then.digest:
                break
            commit = version.commit
        return tuple(one for one in found if one)


def _counterpart(page: MarkdownPage, section: Section) -> Section | None:
    """Return the section of an earlier version that became this one."""
    same = page.find(section.digest)
    if same is not None:
        return same
    named = [one for one in page.sections if (one.level, one.slug) == (section.level, section.slug)]
    if named:
        return named[0]
    words = section.facts.words.split()
    level = (one for one in page.sections if one.level == section.level)
    rated = [(SequenceMatcher(None, one.facts.words.split(), words, autojunk=False).ratio(), one) for one in level]
    best = max(rated, key=lambda pair: pair[0], default=None)
    return best[1] if best is not None and best[0] >= _SAME else None


def _has_already(then: Section, now: Section, translation: Section) -> bool:
    """Whether the translation has what the change brought in and not what it took away: translated first, or along with
    something else."""
    added, removed = _facts(now) - _facts(then), _facts(then) - _facts(now)
    added_numbers = missing(now.facts.words, then.facts.words)
    removed_numbers = missing(then.facts.words, now.facts.words)
    if not (added or removed or added_numbers or removed_numbers):
        return False
    ours = _facts(translation)
    lost = set(missing(now.facts.words, translation.facts.words))
    kept = set(missing(translation.facts.words, now.facts.words))
    return not (added - ours or removed & ours or lost & set(added_numbers) or kept & set(removed_numbers))


def _facts(section: Section) -> set[str]:
    facts = section.facts
    return {f"span {span}" for span in facts.spans} | {f"code {block.content.strip()}" for block in facts.code}
