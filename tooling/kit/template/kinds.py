"""Reads the settings of a project for `areal-new`, and finds the kinds of units and their templates.

    [tool.areal.new]
    package = "areal"            # import name of the package that units are added to
    tests = "tests"              # folder of the tests
    templates = ["templates"]    # folders with the project's own kinds
    register = true              # whether new units are entered in registries

    discover(root)                       # {"dataset": KindSource(...), "reward": KindSource(...)}
    find_kind(root, "rewrad")            # UsageError: did you mean 'reward'?

A kind is a folder with copier.yml and template.toml. Built-in kinds come along; folders that a project names in
`templates` add kinds and replace built-in ones; installed packages add kinds by entry point:

    [project.entry-points."areal.new"]
    verifier = "my_package.scaffolding:VERIFIER"      # an object with `folder`, and maybe `prepare`: name of its page

Lists folders and reads template.toml, not questions or templates; no package is imported unless asked for. Loaded by
`areal-new --help`, which is why the settings are read without pydantic.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


SECTION = "pyproject.toml: [tool.areal.new]"
_PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_NO_PACKAGES = frozenset({"benchmarks", "docs", "examples", "scripts", "test", "tests", "tooling"})
"""Folders that are not a package to add units to, whatever they hold."""


@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """A project's settings; folders are relative to the repository root.

    Example: ProjectSettings(package="areal", tests="tests", templates=("templates",), register=True).
    """

    package: str = "areal"
    tests: str = "tests"
    templates: tuple[str, ...] = ()
    register: bool = True

    @property
    def package_path(self) -> str:
        """Return the folder of the package: "my.models" -> "my/models"."""
        return self.package.replace(".", "/")


def read_settings(root: Path) -> ProjectSettings:
    """Return the settings of the repository at `root`; what is not said is found out or has its default.

    Raises UsageError for a file that is not TOML, unknown or wrongly typed settings, folders outside the repository,
    and for a package that is neither named nor obvious.
    """
    section = _known_section(root)
    settings = ProjectSettings(
        tests=_folder(_typed(section, "tests", str, "tests"), "tests"),
        templates=_template_folders(section),
        register=_typed(section, "register", bool, True),
    )
    return replace(settings, package=_package(section, root))


def read_template_folders(root: Path) -> tuple[str, ...]:
    """Return only the folders with the project's own kinds, for where the package does not matter.

    Raises as `read_settings`.
    """
    return _template_folders(_known_section(root))


def _known_section(root: Path) -> dict[str, Any]:
    try:
        section: Any = parse_toml((root / "pyproject.toml").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, *TOMLError) as error:
        raise UsageError(f"cannot be read: {error}", where="pyproject.toml", fix="correct the file") from error
    for key in ("tool", "areal", "new"):
        section = section.get(key, {})
        if not isinstance(section, dict):
            raise UsageError("expected a table", where=SECTION, fix=f"write [tool.areal.new] with `{key}` as a table")
    known = [field.name for field in fields(ProjectSettings)]
    for name in section:
        if name not in known:
            fix = did_you_mean(name, known) or f"known settings: {', '.join(known)}"
            raise UsageError(f"unknown setting {name!r}", where=SECTION, fix=fix)
    return dict(section)


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
        message = f"`{setting}` names {path!r}, which is not a folder of the repository"
        raise UsageError(message, where=SECTION, fix="use a path relative to the repository root") from error


def _template_folders(section: dict[str, Any]) -> tuple[str, ...]:
    folders = _typed(section, "templates", list, [])
    if not all(isinstance(folder, str) for folder in folders):
        raise UsageError("`templates` holds something that is not text", where=SECTION, fix="list folders as strings")
    return tuple(_folder(folder, "templates") for folder in folders)


def _package(section: dict[str, Any], root: Path) -> str:
    """Return the named package; else `areal`, or the only package at the top."""
    if "package" in section:
        name: str = _typed(section, "package", str, "")
        if not _PACKAGE.fullmatch(name):
            raise UsageError(f"`package` is {name!r}, not an import name", where=SECTION, fix='e.g. package = "areal"')
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


ENTRY_POINTS = "areal.new"
FILES = ("copier.yml", "template.toml")
COMMANDS = frozenset(
    {
        "apply",
        "completion",
        "explain",
        "kinds",
        "list",
        "prove",
        "recover",
        "rename",
        "schema",
        "status",
        "undo",
        "update",
    }
)
"""Words that `areal-new` understands itself: a kind of that name could not be called."""
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class KindSource:
    """One kind. Example: KindSource("reward", Path(".../templates/reward"), "a reward function", "built-in", None)."""

    name: str
    folder: Path
    summary: str
    """One line; says what is wrong with template.toml when it cannot be read."""
    origin: str
    """ "built-in", "project", or "package:<distribution>"."""
    prepare: str | None = None
    """Module of the generator page as an installed package names it; built-in kinds name theirs in the manifest."""


def built_in_folder() -> Path:
    """Return the folder of this installation's own templates: inside the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "templates"


def discover(root: Path | None, *, packages: bool = False) -> dict[str, KindSource]:
    """Return the kinds by name, sorted; the project's own ones too when `root` is a repository.

    packages: also those of installed packages, which takes some 40 ms. Raises UsageError for wrong project settings and
    for a kind with the name of a command.
    """
    own = {} if root is None else {folder: root / folder for folder in read_template_folders(root)}
    built_in = built_in_folder()
    # In this very repository both are one folder: it is read once.
    found = {} if any(place.resolve() == built_in for place in own.values()) else _kinds_below(built_in, "built-in")
    if root is not None:
        for folder in own:
            found.update(_project_kinds(root, folder))
    if packages:
        for entry in _entry_points():
            if entry.name not in found:
                found[entry.name] = _package_kind(entry)
    return dict(sorted(found.items()))


def find_kind(root: Path | None, name: str) -> KindSource:
    """Return a kind by its name, those of installed packages included.

    Raises UsageError: with `where` for a folder that is not a complete kind, without for an unknown name, whose `fix`
    has the nearest or all known ones.
    """
    found = discover(root)
    if name in found:
        return found[name]
    for entry in _entry_points():
        if entry.name == name:
            return _package_kind(entry)
    _refuse_incomplete(root, name)
    known = list(found)
    fix = did_you_mean(name, known) or f"known kinds: {', '.join(known) or 'none'}"
    raise UsageError(f"there is no kind {name!r}", fix=fix)


def _project_kinds(root: Path, folder: str) -> dict[str, KindSource]:
    place = root / folder
    if not place.is_dir():
        message = f"`templates` names {folder!r}, which does not exist"
        raise UsageError(message, where=SECTION, fix="create the folder or correct the setting")
    if not place.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"`templates` names {folder!r}, which leads out of the repository", where=SECTION, fix="move it"
        )
    return _kinds_below(place, "built-in" if place.resolve() == built_in_folder() else "project")


def _kinds_below(place: Path, origin: str) -> dict[str, KindSource]:
    if not place.is_dir():
        return {}
    folders = [entry for entry in sorted(place.iterdir()) if all((entry / file).is_file() for file in FILES)]
    return {folder.name: _kind(folder.name, folder, origin) for folder in folders}


def _kind(name: str, folder: Path, origin: str, prepare: str | None = None) -> KindSource:
    where = os.fspath(folder)
    if name in COMMANDS:
        raise UsageError(
            f"{name!r} is a command of areal-new, no name for a kind", where=where, fix="rename the folder"
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a kind", where=where, fix="rename it: small letters, digits, '-', '_'"
        )
    try:
        table = parse_toml((folder / "template.toml").read_bytes())
        summary = str(table.get("summary", ""))
        if table.get("name") != name:
            summary = f"template.toml says that its name is {table.get('name')!r}"
    except (OSError, *TOMLError) as error:
        # A broken manifest does not keep the other kinds from being listed; using the kind reports it.
        summary = f"template.toml cannot be read: {error}"
    return KindSource(name, folder, summary, origin, prepare)


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)


def _package_kind(entry: EntryPoint) -> KindSource:
    origin = f"package:{entry.dist.name if entry.dist else 'unknown'}"
    try:
        described = entry.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        message = f"the kind {entry.name!r} cannot be loaded: {error}"
        raise UsageError(message, where=origin, fix="repair or uninstall the package") from error
    folder, prepare = getattr(described, "folder", None), getattr(described, "prepare", None)
    if not isinstance(folder, Path) or not all((folder / file).is_file() for file in FILES):
        message = f"the kind {entry.name!r} names no folder with {' and '.join(FILES)}"
        raise UsageError(message, where=origin, fix="repair or uninstall the package")
    if prepare is not None and not isinstance(prepare, str):
        raise UsageError(
            f"`prepare` of the kind {entry.name!r} is not a module name", where=origin, fix="name a module"
        )
    return _kind(entry.name, folder, origin, prepare)


def _refuse_incomplete(root: Path | None, name: str) -> None:
    """Raise UsageError for a folder of that name that lacks a file: more helpful than "unknown"."""
    if not _NAME.fullmatch(name):
        return
    places = [built_in_folder(), *([root / folder for folder in read_template_folders(root)] if root else [])]
    for place in places:
        missing = [file for file in FILES if not (place / name / file).is_file()]
        if (place / name).is_dir() and missing:
            message = f"the kind {name!r} lacks {' and '.join(missing)}"
            raise UsageError(message, where=os.fspath(place / name), fix="add what is missing")
