"""What a project says about its commits: `[tool.areal.commit]` in its pyproject.toml. Every setting may be left out.

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
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECTION: Final = "pyproject.toml: [tool.areal.commit]"
MIN_REASON: Final = 10
"""Characters of a reason for accepting a commit; less says nothing."""
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


@dataclass(frozen=True, slots=True)
class Scope:
    """One row of the table: a path or symbol that matches belongs to the scope."""

    paths: tuple[str, ...] = ()
    """Globs: `*` stays in one folder, `**` does not; a folder stands for all that is in it."""
    symbols: tuple[str, ...] = ()
    """Globs over names of classes and functions, e.g. "MegatronEngine.*"; they decide before paths do."""
    aliases: tuple[str, ...] = ()
    """Other words people write for it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A project's settings."""

    types: tuple[str, ...] = tuple(TYPES)
    header_length: int = 72
    body_width: int = 72
    unknown_scope: str = "warning"
    since: str = ""
    none: tuple[str, ...] = ()
    accepted: Mapping[str, str] = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)

    def canonical(self, word: str) -> str | None:
        """The scope that a word means, by name or alias; None when the table has none like it. Case, "_" and "-" do
        not matter."""
        wanted = folded(word)
        for name, scope in self.scopes.items():
            if wanted in {folded(known) for known in (name, *scope.aliases)}:
                return name
        return None


def folded(word: str) -> str:
    """A scope as it is compared: "Tree_Attn" -> "tree-attn"."""
    return word.strip().casefold().replace("_", "-")


def read_settings(root: Path) -> Settings:
    """The settings of the repository at `root`. Raises UsageError for a file that is no TOML, and for settings that are
    unknown or of the wrong type."""
    section = _section(root)
    known = [each.name for each in fields(Settings)]
    _refuse_unknown(section, known, SECTION)
    given: dict[str, Any] = {}
    for name in ("types", "none"):
        if name in section:
            given[name] = _strings(section[name], name, SECTION)
    for name in ("header_length", "body_width"):
        if name in section:
            given[name] = _positive(section[name], name)
    for name in ("unknown_scope", "since"):
        if name in section:
            given[name] = _text(section[name], name)
    if given.get("unknown_scope", "warning") not in {"allow", "warning", "error"}:
        raise UsageError("`unknown_scope` has no such value", where=SECTION, fix='use "error", "warning" or "allow"')
    if "accepted" in section:
        given["accepted"] = _accepted(section["accepted"])
    if "scopes" in section:
        given["scopes"] = _scopes(section["scopes"])
    return Settings(**given)


def _section(root: Path) -> Mapping[str, Any]:
    try:
        table: Any = parse_toml((root / "pyproject.toml").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, *TOMLError) as error:
        raise UsageError(f"cannot be read: {error}", where="pyproject.toml", fix="correct the file") from error
    for key in ("tool", "areal", "commit"):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise UsageError("expected a table", where=SECTION, fix=f"write `{key}` as a table")
    return dict(table)


def _accepted(table: Any) -> dict[str, str]:
    where = f"{SECTION[:-1]}.accepted]"
    if not isinstance(table, dict):
        raise UsageError("`accepted` is no table", where=where, fix='write hash = "why"')
    for commit, reason in table.items():
        if not re.fullmatch(r"[0-9a-f]{12,64}", commit):
            raise UsageError(f"{commit!r} is no hash", where=where, fix="write 12 digits of it or more")
        if not isinstance(reason, str) or len(reason.strip()) < MIN_REASON:
            raise UsageError("says no reason", where=f"{where} {commit}", fix=f"say why, in {MIN_REASON} characters")
    return dict(table)


def _scopes(table: Any) -> dict[str, Scope]:
    if not isinstance(table, dict):
        raise UsageError("`scopes` is no table", where=SECTION, fix="write [tool.areal.commit.scopes]")
    scopes = {}
    for name, row in table.items():
        where = f"{SECTION[:-1]}.scopes.{name}]"
        if not isinstance(row, dict):
            raise UsageError("a scope is a table", where=where, fix=f'write {name} = {{ paths = ["folder/**"] }}')
        _refuse_unknown(row, ["paths", "symbols", "aliases"], where)
        scopes[name] = Scope(**{key: _strings(value, key, where) for key, value in row.items()})
    return scopes


def _refuse_unknown(table: Mapping[str, Any], known: list[str], where: str) -> None:
    for name in table:
        if name not in known:
            fix = did_you_mean(name, known) or f"known settings: {', '.join(known)}"
            raise UsageError(f"unknown setting {name!r}", where=where, fix=fix)


def _strings(value: Any, name: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise UsageError(f"`{name}` is no list of strings", where=where, fix=f'write {name} = ["..."]')
    return tuple(value)


def _positive(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"`{name}` is {value!r}, expected a positive number", where=SECTION, fix=f"{name} = 72")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"`{name}` is no text", where=SECTION, fix=f'write {name} = "..."')
    return value
