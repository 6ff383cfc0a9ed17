"""Whether paths that are mentioned exist among the repository's files.

tree = FileTree(["areal/api/model.py", ...])
tree.has("areal/api/*.py")       # globs, and NAME or <name> for any name
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tooling.cli.suggest import nearest
from tooling.harness.globs import choices, matches

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLACEHOLDER = re.compile(r"<[^<>]*>|(?<![A-Za-z_])[A-Z][A-Z_]+(?![A-Za-z_])(?!\.md)")
_SUFFIXES = "cfg css csv html ini ipynb jinja json jsonl lock md parquet py sh toml tsv txt yaml yml"
_BARE = re.compile(rf"[\w.*-]+\.(?:{_SUFFIXES.replace(' ', '|')})")
_PATH = re.compile(r"\.{0,2}[\w@*<>{},.+-]*(?:/[\w@*<>{},.+-]*)+")
_LINE = re.compile(r"(?::\d+|#L\d+)(?:-\d+)?$")


def path_in(text: str) -> str | None:
    """Return the path that a code span is, without a line number; None when it is something else.

    Example: "areal/api/model.py:12" -> "areal/api/model.py"; "a/b" -> "a/b"; "config.json" -> "config.json".
    """
    text = _LINE.sub("", text)
    if text.startswith(("/", "~", "http:", "https:", "-")) or "://" in text or not re.search(r"[A-Za-z]{2}|\*", text):
        return None  # of another machine, or no path at all: 1/2, a/b
    return text if _PATH.fullmatch(text) or _BARE.fullmatch(text) else None


class FileTree:
    """The files of a repository and their folders."""

    def __init__(self, files: Iterable[str]) -> None:
        self.files = frozenset(files)
        self.folders = frozenset(
            path[:position] for path in self.files for position, letter in enumerate(path) if letter == "/"
        )
        self._names = frozenset(path.rpartition("/")[2] for path in self.files)
        self.top = frozenset(path.split("/")[0] for path in self.files)

    def has(self, path: str, *, near: str = "") -> bool:
        """Say whether it exists, from the root or from the folder `near` and those above it."""
        pattern = _PLACEHOLDER.sub("*", path.removeprefix("./").rstrip("/"))
        places = [pattern] if pattern else []
        while near:
            places.append(f"{near}/{pattern}")
            near = near.rpartition("/")[0]
        return any(self._matches(_normal(place)) for place in places)

    def has_name(self, name: str) -> bool:
        """Say whether a file has this name, wherever it is."""
        pattern = _PLACEHOLDER.sub("*", name)
        return name in self._names or any(fnmatchcase(known, pattern) for known in self._names)

    def suggestion(self, path: str) -> str:
        """Say what to write instead: files of the same name, or a path that looks like it."""
        name = path.rstrip("/").rpartition("/")[2]
        same = sorted(known for known in self.files | self.folders if known.rpartition("/")[2] == name)
        if same:
            return f"is it {' or '.join(same[:2])}?"
        near = nearest(path, self.files | self.folders)
        return (
            f"did you mean {near}?" if near else "name a file of this repository, or say in plain words what is meant"
        )

    def _matches(self, pattern: str) -> bool:
        if pattern in self.files or pattern in self.folders:
            return True
        if not set(pattern) & set("*{"):
            return False
        return all(any(matches(path, option) for path in self.files | self.folders) for option in choices(pattern))


def _normal(path: str) -> str:
    """Return a path without `..` and `.` parts."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)
