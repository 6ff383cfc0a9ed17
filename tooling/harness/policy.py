"""Limits and platforms of a repository: `[tool.areal.harness]` in pyproject.toml, every key optional."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml

if TYPE_CHECKING:
    from pathlib import Path

_TABLE = "[tool.areal.harness]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a page may take, and which platforms get one."""

    agents_lines: int = 120
    """Of AGENTS.md: every session of every agent reads all of it."""
    skill_lines: int = 80
    """Of one SKILL.md."""
    expert_lines: int = 80
    """Of one agents/<name>.md."""
    skill_tokens: int = 1500
    """Of one SKILL.md, estimated; references are loaded on demand and do not count."""
    platforms: tuple[str, ...] = ()
    """Names of the platforms that are compiled for; none named: all."""
    local_folders: tuple[str, ...] = ()
    """Folders of skills that are not copied to the platforms: other commands write them, too often to be copied."""


def read_policy(root: Path) -> Policy:
    """The table of the repository's pyproject.toml; defaults without one. Raises UsageError for what it cannot mean."""
    manifest = root / "pyproject.toml"
    try:
        document = parse_toml(manifest.read_bytes()) if manifest.is_file() else {}
    except TOMLError as error:
        raise UsageError(f"is no TOML: {error}", where="pyproject.toml", fix="correct it") from error
    table = document.get("tool", {}).get("areal", {}).get("harness", {})
    known = {field.name: type(field.default) for field in fields(Policy)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        where = f"pyproject.toml, {_TABLE} {key}"
        if key not in known:
            raise UsageError(
                "unknown setting", where=where, fix=did_you_mean(key, known) or f"known: {', '.join(known)}"
            )
        values[key] = _number(value, where) if known[key] is int else _names(value, where)
    return Policy(**values)


def _number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"expected a number of at least 1, not {value!r}", where=where, fix="correct it")
    return value


def _names(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"expected a list of names, not {value!r}", where=where, fix="correct it")
    return tuple(value)
