"""Which scope a path or a symbol has by the table of a project. Of several rows, the most specific decides."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.commit.settings import Settings

NONE = ""
"""The answer for paths that have no scope on purpose."""


def scope_of_path(settings: Settings, path: str) -> tuple[str, str] | None:
    """(scope, glob that says so) of a path; the scope is "" for those with none on purpose. None: the table is silent.

    Example: scope_of_path(settings, "areal/models/llama/model.py") -> ("models", "areal/models/**").
    """
    rows = [(glob, NONE) for glob in settings.none]
    rows += [(glob, name) for name, scope in settings.scopes.items() for glob in scope.paths]
    matching = [(glob, name) for glob, name in rows if _path_pattern(glob).fullmatch(path)]
    if not matching:
        return None
    glob, name = max(matching, key=lambda row: _specific(row[0]))
    return name, glob


def scope_of_symbol(settings: Settings, symbol: str) -> tuple[str, str] | None:
    """(scope, glob) of a qualified name, e.g. "MegatronEngine.step"; None when the table is silent."""
    rows = [(glob, name) for name, scope in settings.scopes.items() for glob in scope.symbols]
    matching = [(glob, name) for glob, name in rows if _symbol_pattern(glob).fullmatch(symbol)]
    if not matching:
        return None
    glob, name = max(matching, key=lambda row: _specific(row[0]))
    return name, glob


def _specific(glob: str) -> tuple[int, int]:
    """Longer before the first star is more specific, then longer altogether."""
    return len(glob.split("*", 1)[0].rstrip("/")), len(glob)


@functools.lru_cache(maxsize=1024)
def _path_pattern(glob: str) -> re.Pattern[str]:
    folder = glob.endswith("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.rstrip("/"))
    wild = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "".join(wild.get(part) or re.escape(part) for part in parts)
    if folder:
        return re.compile(f"{pattern}/.*", re.DOTALL)
    named = (
        "*" not in glob.rsplit("/", 1)[-1]
    )  # "docs/*" is about files of one folder, "docs/en" about all that is in it
    return re.compile(f"{pattern}(?:/.*)?" if named else pattern, re.DOTALL)


@functools.lru_cache(maxsize=256)
def _symbol_pattern(glob: str) -> re.Pattern[str]:
    """A class stands for its methods too."""
    pattern = ".*".join(map(re.escape, glob.split("*")))
    return re.compile(rf"{pattern}(?:\..*)?")
