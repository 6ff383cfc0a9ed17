"""What a project says about itself to `areal-new`: `[tool.areal.new]` in its pyproject.toml.

    [tool.areal.new]
    package = "areal"            # import name of the package that units are added to
    tests = "tests"              # folder of the tests
    templates = ["templates"]    # folders with the project's own kinds
    register = true              # whether new units are entered in registries

Reads one file; looks at no template. Every setting may be left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from pathlib import Path

SECTION = "pyproject.toml: [tool.areal.new]"
_PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_NO_PACKAGES = frozenset({"benchmarks", "docs", "examples", "scripts", "test", "tests", "tooling"})
"""Folders that are no package to add units to, whatever they hold."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A project's settings; folders are relative to the repository root.

    Example: Settings(package="areal", tests="tests", templates=("templates",), register=True).
    """

    package: str = "areal"
    tests: str = "tests"
    templates: tuple[str, ...] = ()
    register: bool = True

    @property
    def package_path(self) -> str:
        """Folder of the package: "my.models" -> "my/models"."""
        return self.package.replace(".", "/")


def read_settings(root: Path) -> Settings:
    """The settings of the repository at `root`; what is not said is found out or has its default.

    Raises UsageError for a file that is no TOML, unknown or wrongly typed settings, folders outside the repository, and
    for a package that is neither named nor obvious.
    """
    section = _known_section(root)
    settings = Settings(
        tests=_folder(_typed(section, "tests", str, "tests"), "tests"),
        templates=_template_folders(section),
        register=_typed(section, "register", bool, True),
    )
    return replace(settings, package=_package(section, root))


def read_template_folders(root: Path) -> tuple[str, ...]:
    """Only the folders with the project's own kinds, for where the package does not matter. Raises as
    `read_settings`."""
    return _template_folders(_known_section(root))


def _known_section(root: Path) -> dict[str, Any]:
    section, known = _read_section(root), [field.name for field in fields(Settings)]
    for name in section:
        if name not in known:
            fix = did_you_mean(name, known) or f"known settings: {', '.join(known)}"
            raise UsageError(f"unknown setting {name!r}", where=SECTION, fix=fix)
    return section


def _read_section(root: Path) -> dict[str, Any]:
    path = root / "pyproject.toml"
    try:
        table: Any = parse_toml(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, *TOMLError) as error:
        raise UsageError(f"cannot be read: {error}", where="pyproject.toml", fix="correct the file") from error
    for key in ("tool", "areal", "new"):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise UsageError("expected a table", where=SECTION, fix=f"write [tool.areal.new] with `{key}` as a table")
    return dict(table)


def _typed(section: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = section.get(name, default)
    if not isinstance(value, kind):
        found = type(value).__name__
        raise UsageError(f"`{name}` is of type {found}, expected {kind.__name__}", where=SECTION, fix="correct it")
    return value


def _folder(path: str, setting: str) -> str:
    try:
        return safe_path(path)
    except UsageError as error:
        message = f"`{setting}` names {path!r}, which is no folder of the repository"
        raise UsageError(message, where=SECTION, fix="use a path relative to the repository root") from error


def _template_folders(section: dict[str, Any]) -> tuple[str, ...]:
    folders = _typed(section, "templates", list, [])
    if not all(isinstance(folder, str) for folder in folders):
        raise UsageError("`templates` holds something that is no text", where=SECTION, fix="list folders as strings")
    return tuple(_folder(folder, "templates") for folder in folders)


def _package(section: dict[str, Any], root: Path) -> str:
    """The named package; else `areal`, or the only package at the top."""
    if "package" in section:
        name: str = _typed(section, "package", str, "")
        if not _PACKAGE.fullmatch(name):
            raise UsageError(f"`package` is {name!r}, no import name", where=SECTION, fix='e.g. package = "areal"')
        return name
    if (root / "areal").is_dir():
        return "areal"
    found = sorted(
        folder.name
        for folder in root.iterdir()
        if (folder / "__init__.py").is_file() and folder.name not in _NO_PACKAGES and _PACKAGE.fullmatch(folder.name)
    )
    if len(found) == 1:
        return found[0]
    said = f"{len(found)} packages at the top ({', '.join(found)})" if found else "no package at the top"
    raise UsageError(f"cannot tell which package units belong to: {said}", where=SECTION, fix='add package = "NAME"')
