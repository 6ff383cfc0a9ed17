"""Find the Python files of a repository, which module names lead to which file, and what a file mentions by plain text.

A checkout of somebody else's is only read. Files beyond a size no person writes are left out.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import defaultdict
from functools import cached_property
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tooling.python.once import once
from tooling.python.symbols.text_search import imports_in
from tooling.upgrade.declarations.find import repository_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_BYTES = 4_000_000
"""Per file; generated tables of that size hold no code that anybody audits."""
_WORD = re.compile(r"\w+")
_DEFINED = (
    re.compile(rb"def(?<!\wdef)[ \t]+(\w+)"),
    re.compile(rb"\n[ \t]+(\w+)(?=[ \t]*(?::|=[^=]))"),
    re.compile(rb"self\.(?<!\wself\.)(\w+)(?=[ \t]*(?::[^=\n]+)?=[^=])"),
    re.compile(rb"[\"'](--[\w-]+)(?=[\"'])"),
)
"""Names of functions, fields, attributes and options, where a text defines them. Each begins with letters that are
written out, which is what makes them fast."""
_ATTRIBUTE = re.compile(rb"\.([A-Za-z_]\w{5,})", re.ASCII)
"""Attributes of at least six letters: shorter names are everybody's."""


class Checkout:
    """One work tree, read once."""

    def __init__(self, root: Path, scope: Sequence[str] = ()) -> None:
        """scope: folders or files to report on; others are read where they are needed. All when empty."""
        self.root = root
        self.scope = tuple(one.strip("/") for one in scope if one.strip("/") not in ("", "."))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Python files, sorted."""
        return tuple(path for path in repository_files(self.root) if path.endswith(".py"))

    def in_scope(self, path: str) -> bool:
        """Whether uses in a file are to be reported."""
        return not self.scope or any(path == one or path.startswith(f"{one}/") for one in self.scope)

    @once()
    def content(self, path: str) -> bytes:
        """A file's bytes; b"" for one that cannot be read, or is too big."""
        file = self.root / path
        try:
            return b"" if file.is_symlink() or file.stat().st_size > MAX_BYTES else file.read_bytes()
        except OSError:
            return b""

    def digest(self, path: str) -> str:
        """Of the content."""
        return hashlib.sha256(self.content(path)).hexdigest()

    def having(self, text: bytes) -> Iterator[str]:
        """Files that have some bytes. All are looked through as one: names are looked up by the hundred."""
        joined, starts = self._joined
        at = joined.find(text)
        while at >= 0:
            index = bisect_right(starts, at)
            yield self.paths[index - 1]
            at = joined.find(text, starts[index]) if index < len(starts) else -1

    @cached_property
    def _joined(self) -> tuple[bytes, list[int]]:
        contents = [self.content(path) for path in self.paths]
        return b"\0".join(contents), list(accumulate((len(one) + 1 for one in contents[:-1]), initial=0))

    def mentioning(self, packages: Sequence[str]) -> list[str]:
        """Files whose text has the top-level name of one of the packages as a word, sorted."""
        found: set[str] = set()
        for top in {package.partition(".")[0].encode() for package in packages if _WORD.match(package)}:
            pattern = re.compile(rb"(?<![\w.])" + re.escape(top) + rb"\b")
            found.update(path for path in self.having(top) if path not in found and pattern.search(self.content(path)))
        return sorted(found)

    @once()
    def defining(self, name: str) -> list[str]:
        """Files whose text has a function, field, attribute or option of that name, sorted."""
        text, dashed = name.encode(), name.replace("_", "-").encode()
        return sorted({path for key in (text, b"--" + text, b"--" + dashed) for path in self._defined.get(key, ())})

    @cached_property
    def _defined(self) -> dict[bytes, set[str]]:
        """By name of a function, field or attribute, or by option with its dashes: files whose text defines it."""
        found: dict[bytes, set[str]] = defaultdict(set)
        for path in self.paths:
            content = self.content(path)
            for pattern in _DEFINED:
                for name in pattern.findall(content):
                    found[name].add(path)
        return found

    def uses_attribute(self, path: str, names: frozenset[str]) -> bool:
        """Whether a file's text has `.name` for one of the names."""
        return not names.isdisjoint(match.decode() for match in _ATTRIBUTE.findall(self.content(path)))

    def imports(self, path: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
        """(level, module, names) of a file's import statements, by their text; no names for plain imports."""
        return imports_in(self.content(path))

    # ----------------------------------------------------------------------------------------------------- modules

    @cached_property
    def files(self) -> frozenset[str]:
        """Python files."""
        return frozenset(self.paths)

    @cached_property
    def _folders(self) -> frozenset[str]:
        return frozenset(str(parent) for path in self.paths for parent in PurePosixPath(path).parents)

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """Folders that absolute imports may start from, shallow ones first: the top, `src`, folders of projects, and
        those that hold top-level packages."""
        found = {"."}
        for path in self.paths:
            folder = str(PurePosixPath(path).parent)
            if PurePosixPath(path).name == "setup.py" or folder == "src":
                found.add(folder)
            if path.endswith("/__init__.py"):
                outer = str(PurePosixPath(folder).parent)
                if f"{outer}/__init__.py" not in self.files and outer != ".":
                    found.add(outer)
        if "src" in self._folders:
            found.add("src")
        return tuple(sorted(found, key=lambda folder: (folder != ".", folder.count("/"), folder)))

    def find(self, importer: str, dotted: str, level: int = 0) -> tuple[str, tuple[str, ...]] | None:
        """(file, remaining parts) that a dotted path leads to from a file; None if it is not of this repository."""
        parts = tuple(dotted.split(".")) if dotted else ()
        here = importer.rpartition("/")[0]
        if level:
            for _ in range(level - 1):
                here = here.rpartition("/")[0]
            return self._below(here or ".", parts)
        if here and f"{here}/__init__.py" not in self.files:  # a script: its own folder comes first
            found = self._below(here, parts, top=True)
            if found is not None:
                return found
        return self._from_roots(parts)

    @once()
    def _from_roots(self, parts: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
        results = (self._below(root, parts, top=True) for root in self.roots)
        return next((found for found in results if found is not None), None)

    def _below(self, folder: str, parts: tuple[str, ...], *, top: bool = False) -> tuple[str, tuple[str, ...]] | None:
        """The deepest module that the parts lead to."""
        best: tuple[str, tuple[str, ...]] | None = None
        prefix = "" if folder == "." else f"{folder}/"
        if not top and f"{prefix}__init__.py" in self.files:
            best = (f"{prefix}__init__.py", parts)
        for index, part in enumerate(parts):
            if f"{prefix}{part}.py" in self.files and f"{prefix}{part}/__init__.py" not in self.files:
                return f"{prefix}{part}.py", parts[index + 1 :]
            prefix = f"{prefix}{part}/"
            if f"{prefix}__init__.py" in self.files:
                best = (f"{prefix}__init__.py", parts[index + 1 :])
            elif prefix.rstrip("/") not in self._folders:
                break
        return best

    def module_name(self, path: str) -> str:
        """Dotted name of a file, from the deepest root above it."""
        inside = max((root for root in self.roots if root == "." or path.startswith(f"{root}/")), key=len)
        relative = path if inside == "." else path[len(inside) + 1 :]
        return relative.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
