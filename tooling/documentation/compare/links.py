"""Links of a page, brought into a form that both languages share; and whether they lead anywhere."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from tooling.documentation.pages import Tree

_EXTERNAL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
_LOCALE: Final = re.compile(r"(?<=/)(?:en|zh|cn|en-us|zh-cn|zh_cn|zh-hans|en_us)(?=/|$)", re.IGNORECASE)
_HOST: Final = re.compile(r"(?<=//)(?:en|zh)(?=\.)", re.IGNORECASE)


@dataclass(slots=True)
class Links:
    """Judges links of the pages of one tree."""

    tree: Tree
    _slugs: dict[str, frozenset[str]] = field(default_factory=dict)

    def shared(self, page: str, target: str) -> str:
        """What a link means in both languages: "../zh/a.md#b" of the translation and "a.md#c" of the source are one."""
        if _EXTERNAL.match(target):
            return _LOCALE.sub("*", _HOST.sub("*", target.rstrip("/")))
        path = self._path(page, target)
        return f"page {self.tree.source_of(path)}" if path else "here"

    def problem(self, page: str, target: str) -> str:
        """What is wrong with a link of the translation; "" when nothing is, or when it cannot be known."""
        if _EXTERNAL.match(target) or target.startswith("/"):
            return ""
        path, fragment = self._path(page, target), unquote(target.partition("#")[2])
        if path and path != page and not self._exists(path):
            return f"{target} leads nowhere"
        other = self.tree.translation_of(path)
        if path and self.tree.source_of(path) == path and other in self.tree.files and other != page:
            return f"{target} leads to the source, although {other} translates it"
        place = path or page
        if fragment and place.endswith(".md") and place in self.tree.files and fragment not in self._anchors(place):
            return f"{target}: no heading of {place} has this anchor"
        return ""

    def _path(self, page: str, target: str) -> str:
        """The file that a relative link leads to; "" for a place on the same page."""
        path = unquote(target.partition("#")[0].partition("?")[0])
        if not path:
            return ""
        return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))

    def _exists(self, path: str) -> bool:
        if path.startswith("../"):
            return True  # of another repository's checkout, or the site's: not ours to know
        return path in self.tree.files or (self.tree.root / path).is_dir()

    def _anchors(self, path: str) -> frozenset[str]:
        if path not in self._slugs:
            text = self.tree.text(path)
            named = re.findall(r"""(?:\{#|id=["']|name=["']|^\()([\w-]+)(?:\}|["']|\)=)""", text, re.MULTILINE)
            page, _ = self.tree.read(path)
            self._slugs[path] = frozenset([*named, *(section.slug for section in page.sections)])
        return self._slugs[path]
