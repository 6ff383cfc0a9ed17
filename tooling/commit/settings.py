"""Reads what a project says about its commits, and finds the scope of a path or a symbol.

[tool.areal.commit]
header_length = 72                   # without the " (#12)" of a squash merge
body_width = 72
unknown_scope = "error"              # or "warning", "allow": a scope that the table does not have
since = "f7b4396"                    # older commits are not judged when a range is checked
none = ["README.md", "LICENSE"]      # paths that have no scope on purpose

[tool.areal.commit.accepted]         # published commits that break a rule: hash, or its first 12 digits, and why
0123456789ab = "published before the rules were"

[tool.areal.commit.scopes]
models = { paths = ["areal/models/**"], symbols = ["ModelSpec"], aliases = ["model"] }
ci = { paths = [".ci/**"] }

Every setting may be left out. Of several rows that match, the most specific decides.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, PositiveInt, StringConstraints

from tooling.cli.settings import Settings, Strings, read_settings, section

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SECTION: Final = section("commit")
TYPES: Final = {
    "feat": "something users can do now and could not before",
    "fix": "something that was wrong",
    "docs": "documents only",
    "gov": "how the project is run: owners, roles, policies",
    "style": "looks of the code only",
    "refactor": "the same behaviour, built differently",
    "perf": "the same behaviour, faster or smaller",
    "test": "tests only",
    "build": "packaging and dependencies",
    "ci": "what the build server runs",
    "chore": "none of these",
    "revert": "takes back an earlier commit",
}
"""Every type, with what it is for."""
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12,64}$")]
Reason = Annotated[str, StringConstraints(min_length=10, strip_whitespace=True)]


class Scope(Settings):
    """One row of the table: a path or symbol that matches belongs to the scope."""

    paths: Strings = ()
    """Globs: `*` stays in one folder, `**` does not; a folder stands for all that is in it."""
    symbols: Strings = ()
    """Globs over names of classes and functions, e.g. "MegatronEngine.*"; they decide before paths do."""
    aliases: Strings = ()
    """Other words people write for it."""


class CommitSettings(Settings):
    """A project's settings."""

    types: Strings = tuple(TYPES)
    header_length: PositiveInt = 72
    body_width: PositiveInt = 72
    unknown_scope: Literal["error", "warning", "allow"] = "warning"
    since: str = ""
    none: Strings = ()
    accepted: dict[Hash, Reason] = Field(default_factory=dict)
    scopes: dict[str, Scope] = Field(default_factory=dict)

    def canonical(self, word: str) -> str | None:
        """Return the scope that a word means, by name or alias; None when the table has none like it.

        Case, "_" and "-" do not matter.
        """
        wanted = folded(word)
        for name, scope in self.scopes.items():
            if wanted in {folded(known) for known in (name, *scope.aliases)}:
                return name
        return None


def folded(word: str) -> str:
    """Return a scope as it is compared: "Tree_Attn" -> "tree-attn"."""
    return word.strip().casefold().replace("_", "-")


def read_commit_settings(root: Path) -> CommitSettings:
    """Read the settings of the repository at `root`. Raises UsageError for unknown keys and wrong values."""
    return read_settings(CommitSettings, root, "commit")


_WILD = re.compile(r"[*?]")
NONE = ""
"""The answer for paths that have no scope on purpose."""


def scope_of_path(settings: CommitSettings, path: str) -> tuple[str, str] | None:
    """Return (scope, glob that says so) of a path; the scope is "" for those with none on purpose. None: the table is
    silent.

    Example: scope_of_path(settings, "areal/models/llama/model.py") -> ("models", "areal/models/**").
    """
    rows = [(glob, NONE) for glob in settings.none]
    rows += [(glob, name) for name, scope in settings.scopes.items() for glob in scope.paths]
    # What a glob begins with is compared first: to compile a hundred of them takes as long as to read the history.
    near = ((glob, name) for glob, name in rows if path.startswith(_WILD.split(glob, maxsplit=1)[0].rstrip("/")))
    return _most_specific((glob, name) for glob, name in near if _path_pattern(glob).fullmatch(path))


def scope_of_symbol(settings: CommitSettings, symbol: str) -> tuple[str, str] | None:
    """Return (scope, glob) of a qualified name, e.g. "MegatronEngine.step"; None when the table is silent."""
    rows = [(glob, name) for name, scope in settings.scopes.items() for glob in scope.symbols]
    return _most_specific((glob, name) for glob, name in rows if _symbol_pattern(glob).fullmatch(symbol))


def _most_specific(rows: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Choose from (glob, scope): longer before the first star is more specific, then longer altogether."""
    best = max(rows, key=lambda row: (len(row[0].split("*", 1)[0].rstrip("/")), len(row[0])), default=None)
    return (best[1], best[0]) if best is not None else None


@functools.lru_cache(maxsize=1024)
def _path_pattern(glob: str) -> re.Pattern[str]:
    folder = glob.endswith("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.rstrip("/"))
    wild = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "".join(wild.get(part) or re.escape(part) for part in parts)
    if folder:
        return re.compile(f"{pattern}/.*", re.DOTALL)
    # "docs/*" is about files of one folder, "docs/en" about all that is in it.
    named = "*" not in glob.rsplit("/", 1)[-1]
    return re.compile(f"{pattern}(?:/.*)?" if named else pattern, re.DOTALL)


@functools.lru_cache(maxsize=256)
def _symbol_pattern(glob: str) -> re.Pattern[str]:
    """Compile a glob of symbols; a class stands for its methods too."""
    pattern = ".*".join(map(re.escape, glob.split("*")))
    return re.compile(rf"{pattern}(?:\..*)?")
