"""What a commit would change: the files of the index (or what differs between two commits, when they are to become
one), and the symbols of Python files that its lines belong to."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tooling.commit.git import Sides, blob, changed_files, hunks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tooling.commit.git import ChangedFile

_INDEX: Final = Sides()
MAX_FILES: Final = 60
"""Python files that are parsed, longest changes first: more say nothing new about a commit."""
MAX_BYTES: Final = 2_000_000
_HUNK: Final = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_FILE: Final = re.compile(rb"^diff --git .*$", re.MULTILINE)
_TARGET: Final = re.compile(rb'^\+\+\+ (?:"?)b/(.*?)(?:"?)\t?$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A class or function. Example: Symbol("areal/api/model.py", "ModelSpec.build", "changed", 12)."""

    path: str
    name: str
    """Qualified inside of its module."""
    what: Literal["added", "removed", "changed"]
    lines: int
    """Changed lines in it."""

    @property
    def public(self) -> bool:
        """Whether users can see it."""
        return not any(part.startswith("_") for part in self.name.split("."))


@dataclass(frozen=True, slots=True)
class Staged:
    """What `git commit` would record."""

    files: tuple[ChangedFile, ...]
    symbols: tuple[Symbol, ...] = field(default=())


def read_staged(root: Path, sides: Sides = _INDEX) -> Staged:
    """The index against HEAD, unless other sides are named. Files that do not parse have no symbols."""
    files = changed_files(root, sides)
    python = [each for each in files if each.path.endswith(".py") and each.status in "AMDR"]
    python = sorted(python, key=lambda each: (-each.churn, each.path))[:MAX_FILES]
    lines = _hunks(hunks(root, sides)) if python else {}
    symbols = [symbol for each in python for symbol in _symbols(root, sides, each, lines.get(each.path, []))]
    return Staged(tuple(files), tuple(symbols))


def _symbols(root: Path, sides: Sides, changed: ChangedFile, hunks: list[tuple[range, range]]) -> Iterator[Symbol]:
    old = _definitions(blob(root, f"{sides.before}:{changed.before or changed.path}")) if changed.status != "A" else {}
    new = _definitions(blob(root, f"{sides.after}:{changed.path}")) if changed.status != "D" else {}
    for name, lines in new.items():
        touched = sum(_common(lines, after) or _inside(before, after, lines) for before, after in hunks)
        if name not in old:
            yield Symbol(changed.path, name, "added", len(lines))
        elif touched:
            yield Symbol(changed.path, name, "changed", touched)
    for name, lines in old.items():
        if name not in new:
            yield Symbol(changed.path, name, "removed", len(lines))


def _definitions(content: bytes | None) -> dict[str, range]:
    """Lines of every class and function of a module, by qualified name."""
    if content is None or len(content) > MAX_BYTES:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, range] = {}
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}"
                found[name] = range(child.lineno, (child.end_lineno or child.lineno) + 1)
                if isinstance(child, ast.ClassDef):
                    waiting.append((child, f"{name}."))
            elif isinstance(child, ast.If | ast.Try):
                waiting.append((child, prefix))
    return dict(sorted(found.items(), key=lambda item: item[1].start))


def _hunks(diff: bytes) -> dict[str, list[tuple[range, range]]]:
    """Changed lines before and after, by path."""
    found: dict[str, list[tuple[range, range]]] = {}
    starts = [match.start() for match in _FILE.finditer(diff)]
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=True):
        part = diff[start:end]
        target = _TARGET.search(part)
        if target is None:
            continue
        path = target[1].decode(errors="surrogateescape")
        found[path] = [(_lines(hunk[1], hunk[2]), _lines(hunk[3], hunk[4])) for hunk in _HUNK.finditer(part)]
    return found


def _lines(start: bytes, count: bytes | None) -> range:
    first = int(start)
    return range(first, first + (1 if count is None else int(count)))


def _common(one: range, other: range) -> int:
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))


def _inside(before: range, after: range, lines: range) -> int:
    """Lines that were only taken out: git names the line before them."""
    return len(before) if not after and after.start in lines and after.start + 1 in lines else 0
