"""Enter the names that a project of the user registers, so that its configurations can use them.

    use_project(Path.cwd())      # "reward: my_score" now finds my_project.reward.my_score:my_score_reward

A project is the nearest folder above whose pyproject.toml names its package in [tool.areal.new], as `areal init` writes
it and `areal-new` reads it. Its tables are literal ones, `<package>/<kind>/registry.py`; they are read as text, and
nothing of the project is imported before a run needs it.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TABLES: Final[dict[str, str]] = {
    "dataset": "DATASETS",
    "environment": "ENVIRONMENTS",
    "reward": "REWARDS",
    "workflow": "WORKFLOWS",
}
"""Kind to the name of its table, in `areal.<kind>.registry` and in a project alike."""


@dataclass(frozen=True, slots=True)
class UserProject:
    """A project of the user. Example: UserProject(Path("digits"), "digits", {"reward": {"larger": "..."}})."""

    root: Path
    package: str
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Kind to name to target, of what the project registers."""


def find_project(start: Path) -> UserProject | None:
    """Return the project that a folder lies in, with its names; None outside of one, and in areal's own repository.

    Raises ConfigError for a pyproject.toml or a registry that cannot be read.
    """
    for root in (start.resolve(), *start.resolve().parents):
        file = root / "pyproject.toml"
        if file.is_file():
            package = _package(file)
            if package and package != "areal":
                return UserProject(root, package, {kind: _read_table(root, package, kind) for kind in TABLES})
    return None


def use_project(start: Path) -> UserProject | None:
    """Enter the names of the project around `start` in the registries of this process, and make it importable.

    Raises ConfigError as `find_project` does, and for a name that stands for something else in areal.
    """
    project = find_project(start)
    if project is None:
        return None
    known = {kind: getattr(import_module(f"areal.{kind}.registry"), table) for kind, table in TABLES.items()}
    for kind, names in project.names.items():
        for name, target in names.items():
            if known[kind].get(name, target) != target:
                raise ConfigError(
                    f"{kind} {name!r} is a name of areal ({known[kind][name]}), which a project cannot replace",
                    where=str(_registry(project.root, project.package, kind)),
                    fix=f"register it under another name, or write {target} in the configuration",
                )
    if str(project.root) not in sys.path:
        sys.path.append(str(project.root))  # last, so that it shadows nothing
    for kind, names in project.names.items():
        known[kind].update(names)
    return project


def _package(file: Path) -> str:
    """Return the package that a pyproject.toml names for `areal-new`; "" when it names none."""
    try:
        section: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(file), fix="correct the file") from error
    for key in ("tool", "areal", "new", "package"):
        section = section.get(key, "") if isinstance(section, dict) else ""
    return section if isinstance(section, str) else ""


def _registry(root: Path, package: str, kind: str) -> Path:
    return root.joinpath(*package.split("."), kind, "registry.py")


def _read_table(root: Path, package: str, kind: str) -> dict[str, str]:
    """Return the literal table of a registry; an empty one when the project has none of that kind."""
    file, name = _registry(root, package, kind), TABLES[kind]
    if not file.is_file():
        return {}
    try:
        for node in ast.parse(file.read_bytes()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == name and (value := getattr(node, "value", None)):
                table = ast.literal_eval(value)
                if isinstance(table, dict) and all(isinstance(word, str) for item in table.items() for word in item):
                    return table
                raise ValueError(f"expected {name} to be a table of strings")
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{kind} names cannot be read: {error}",
            where=str(file),
            fix=f'write {name} as a literal: {{"name": "{package}.{kind}.module:object"}}',
        ) from error
    return {}
