"""What a project says about its translated documents: `[tool.areal.docs]` in its pyproject.toml, every key optional.

[tool.areal.docs]
source = "docs/en"                   # folder of the pages that are written first
translation = "docs/zh"              # folder of their translations; may lie inside the source's folder
exclude = ["docs/en/reference/**"]   # pages that are not translated on purpose: generated ones, for example
complete = true                      # every page of the source has to have its translation
glossary = "docs/glossary.md"        # a table of terms: source, translation, words that must not be used for it
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from pathlib import Path

SECTION: Final = "pyproject.toml: [tool.areal.docs]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A project's settings; folders and files are relative to the repository root."""

    source: str = "docs/en"
    translation: str = "docs/zh"
    exclude: tuple[str, ...] = ()
    complete: bool = True
    glossary: str = ""

    def excluded(self, path: str) -> bool:
        """Whether a page of the source has no translation on purpose."""
        from fnmatch import fnmatchcase

        return any(fnmatchcase(path, pattern) for pattern in self.exclude)


def read_settings(root: Path) -> Settings:
    """The settings of the repository at `root`. Raises UsageError for what it cannot mean."""
    table = _table(root)
    known = {field.name: field.default for field in fields(Settings)}
    given: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            fix = did_you_mean(name, known) or f"known settings: {', '.join(known)}"
            raise UsageError(f"unknown setting {name!r}", where=SECTION, fix=fix)
        given[name] = _typed(name, value, known[name])
    for name in ("source", "translation", "glossary"):
        if given.get(name):
            given[name] = safe_path(given[name])
    settings = Settings(**given)
    if settings.source == settings.translation:
        raise UsageError("source and translation are the same folder", where=SECTION, fix="name two")
    return settings


def _table(root: Path) -> dict[str, Any]:
    try:
        table: Any = parse_toml((root / "pyproject.toml").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, *TOMLError) as error:
        raise UsageError(f"cannot be read: {error}", where="pyproject.toml", fix="correct the file") from error
    for key in ("tool", "areal", "docs"):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise UsageError("expected a table", where=SECTION, fix=f"write `{key}` as a table")
    return dict(table)


def _typed(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"`{name}` is neither true nor false", where=SECTION, fix=f"write {name} = true")
        return value
    if isinstance(default, str):
        if not isinstance(value, str) or not value:
            raise UsageError(f"`{name}` is no text", where=SECTION, fix=f'write {name} = "..."')
        return value
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise UsageError(f"`{name}` is no list of texts", where=SECTION, fix=f'write {name} = ["..."]')
    return tuple(value)
