"""Declarations in pyproject.toml, and in its twins for other variants (pyproject.vllm.toml)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.build import required, versioned
from tooling.upgrade.declarations.records import Declaration, Kind, Style
from tooling.upgrade.declarations.toml_text import TomlString, scan_toml

if TYPE_CHECKING:
    from tooling.upgrade.declarations.toml_text import Path

_VERSION_TAG = re.compile(r"v?(?P<version>\d+(?:\.\d+)+\S*)$")
_LISTS: dict[tuple[str, ...], Kind] = {
    ("project", "dependencies"): Kind.REQUIREMENT,
    ("build-system", "requires"): Kind.BUILD,
    ("tool", "uv", "override-dependencies"): Kind.OVERRIDE,
    ("tool", "uv", "constraint-dependencies"): Kind.CONSTRAINT,
    ("tool", "uv", "build-constraint-dependencies"): Kind.BUILD,
    ("tool", "uv", "dev-dependencies"): Kind.REQUIREMENT,
    ("tool", "pdm", "resolution", "overrides"): Kind.OVERRIDE,
}
_GROUPS: tuple[tuple[str, ...], ...] = (
    ("project", "optional-dependencies"),
    ("dependency-groups",),
    ("tool", "pdm", "dev-dependencies"),
)


def read_pyproject(path: str, text: str) -> list[Declaration]:
    """All declarations. Raises tomllib.TOMLDecodeError for what is no TOML."""
    found = [_declaration(path, string) for string in scan_toml(text).strings]
    return [each for each in found if each is not None]


def _declaration(path: str, string: TomlString) -> Declaration | None:
    if not string.literal:
        return None
    keys = string.path
    listed = _listed(keys)
    if listed is not None:
        kind, section, group = listed
        return required(path, string.line, string.start, string.value, kind, section=section, group=group)
    if keys[:3] == ("tool", "uv", "sources"):
        return _source(path, string)
    return _poetry(path, string)


def _listed(keys: Path) -> tuple[Kind, str, str] | None:
    """Kind, section and group of an item of a list of requirements."""
    names = tuple(key for key in keys[:-1] if isinstance(key, str))
    if names in _LISTS and isinstance(keys[-1], int):
        return _LISTS[names], ".".join(names), ""
    for section in _GROUPS:
        if names[:-1] == section and len(keys) == len(section) + 2 and isinstance(keys[-1], int):
            return Kind.REQUIREMENT, ".".join(section), names[-1]
    return None


def _source(path: str, string: TomlString) -> Declaration | None:
    """`[tool.uv.sources] x = {git = ..., tag = ...}`; also a list of such tables with markers."""
    key = string.path[-1]
    if key not in {"tag", "rev", "branch", "url"}:
        return None
    tag = _VERSION_TAG.match(string.value) if key == "tag" else None
    start, version, style = string.start, string.value, Style.OPAQUE
    if tag is not None:
        start, version, style = string.start + tag.start("version"), tag["version"], Style.PLAIN
    name = str(string.path[3])
    text = f"{name} = {{{key} = {string.value!r}}}"
    return versioned(
        path, string.line, start, version, name, Kind.SOURCE, style=style, section="tool.uv.sources", text=text
    )


def _poetry(path: str, string: TomlString) -> Declaration | None:
    """`[tool.poetry.dependencies] x = "^1.2"`, or x.version, or x = {version = ...}; groups likewise."""
    keys = tuple(key for key in string.path if isinstance(key, str))
    if keys[:2] != ("tool", "poetry") or string.path[-1] in {"python", "git", "path", "url", "markers"}:
        return None
    keys = keys[:-1] if keys[-1] == "version" else keys
    group = keys[3] if len(keys) > 4 and keys[2] == "group" else ""
    section = keys[:-1]
    if section not in {("tool", "poetry", "dependencies"), ("tool", "poetry", "group", group, "dependencies")}:
        return None
    text = f'{keys[-1]} = "{string.value}"'
    return Declaration(
        path=path,
        line=string.line,
        start=string.start,
        end=string.end,
        distribution=str(keys[-1]).lower().replace("_", "-"),
        specifier=string.value,
        kind=Kind.REQUIREMENT,
        style=Style.POETRY,
        section=".".join(section),
        group=group,
        text=text,
    )
