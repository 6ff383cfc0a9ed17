"""Reads and checks the parts of a composite reward: "gsm8k=1.0,my_package.rewards:short=0.2".

A name has to be in the reward registry of the framework (the repository's own, else the installed one) or of the
project; a path has to lead to a function that is there. Both are looked up in the source text; nothing is imported.
A run finds only the framework's names, so those of another project become paths. What the repository does not contain
cannot be checked, and is reported.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.kit.change.plan import read_inside
from tooling.kit.project import read_settings

_WHERE: Final = "--parts"
_NAME: Final = re.compile(r"\w+", re.ASCII)
_PATH: Final = re.compile(r"\w+(?:\.\w+)*:\w+", re.ASCII)
_MAX_PART: Final = 100
_REGISTRY: Final = "reward/registry.py"


def checked_parts(text: str, root: Path, own: str) -> tuple[dict[str, float], list[str]]:
    """Weights by name or path, and warnings about paths that cannot be checked.

    Raises UsageError for anything that is no list of known rewards with weights.
    """
    parts = _parsed(text)
    frameworks, projects = _frameworks_rewards(root), _projects_rewards(root)
    known = {**projects, **frameworks}
    weights: dict[str, float] = {}
    warnings: list[str] = []
    for name, weight in parts.items():
        if name == own or known.get(name, name).endswith(f":{own}_reward"):
            raise UsageError(f"{name!r} is the reward itself", where=_WHERE, fix="leave it out")
        if _NAME.fullmatch(name):
            _refuse_unknown(name, known)
        elif not _PATH.fullmatch(name) or len(name) > _MAX_PART:
            raise UsageError(
                f"{name!r} is neither a name nor a path",
                where=_WHERE,
                fix="write e.g. gsm8k or my_package.rewards:short",
            )
        elif not _checked_path(name, root):
            warnings.append(f"--parts: {name} is not in this repository, so it was not checked")
        resolved = name if name in frameworks else projects.get(name, name)
        if resolved in weights:
            raise UsageError(f"{resolved!r} comes twice", where=_WHERE, fix="add its weights up")
        weights[resolved] = weight
    return weights, warnings


def _frameworks_rewards(root: Path) -> dict[str, str]:
    """The table of the framework, by name: what `load("reward", name, REWARDS)` finds in a run."""
    source = read_inside(root, f"areal/{_REGISTRY}")
    if source is None:
        found = importlib.util.find_spec("areal")  # of a package at the top: imports nothing
        places = [Path(place, _REGISTRY) for place in (found and found.submodule_search_locations) or ()]
        source = next((place.read_bytes() for place in places if place.is_file()), b"")
    return _table(source)


def _projects_rewards(root: Path) -> dict[str, str]:
    """The table of a project of its own, by name."""
    return _table(read_inside(root, f"{read_settings(root).package_path}/{_REGISTRY}") or b"")


def _parsed(text: str) -> dict[str, float]:
    if not text.strip():
        raise UsageError("a composite has no parts", where=_WHERE, fix="write e.g. gsm8k=1.0,exact=0.2")
    if text.lstrip().startswith("{"):
        try:
            pairs = json.loads(text, object_pairs_hook=list)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UsageError(f"is no JSON: {error}", where=_WHERE, fix='write e.g. {"gsm8k": 1.0}') from error
    else:
        pairs = [tuple(map(str.strip, item.rpartition("=")[::2])) for item in text.split(",")]
    parts: dict[str, float] = {}
    for name, weight in pairs:
        if name in parts:
            raise UsageError(f"{name!r} comes twice", where=_WHERE, fix="add its weights up")
        parts[name] = _weight(name, weight)
    if not parts:
        raise UsageError("a composite has no parts", where=_WHERE, fix="write e.g. gsm8k=1.0,exact=0.2")
    return parts


def _weight(name: str, given: object) -> float:
    try:
        weight = float(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else math.nan
    except (ValueError, OverflowError):
        weight = math.nan
    if not name or not math.isfinite(weight) or weight == 0.0:
        raise UsageError(
            f"part {name!r} has weight {given!r}, expected a number other than 0", where=_WHERE, fix="write name=weight"
        )
    return weight


def _refuse_unknown(name: str, known: dict[str, str]) -> None:
    if name not in known:
        fix = did_you_mean(name, known) or f"registered are: {', '.join(sorted(known)) or 'none'}; or give a path"
        raise UsageError(f"no reward {name!r} is registered", where=_WHERE, fix=fix)


def _checked_path(path: str, root: Path) -> bool:
    """Whether the repository has the path's function; False when it has nothing of its package."""
    module, _, function = path.partition(":")
    file = module.replace(".", "/")
    source = read_inside(root, f"{file}.py") or read_inside(root, f"{file}/__init__.py")
    if source is None:
        if not (root / module.split(".")[0]).exists():
            return False
        raise UsageError(f"there is no module {module!r}", where=_WHERE, fix=f"expected {file}.py")
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{file}.py cannot be read: {error}", where=_WHERE, fix="correct it first") from error
    names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names += [
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    if function not in names:
        fix = did_you_mean(function, names) or f"it defines: {', '.join(names) or 'nothing'}"
        raise UsageError(f"{module} defines no {function!r}", where=_WHERE, fix=fix)
    return True


def _table(source: bytes) -> dict[str, str]:
    """Text keys and values of every dict literal at the top level of a module; {} when it cannot be read."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for statement in body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        for key, item in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(item, ast.Constant):
                found[str(key.value)] = str(item.value)
    return found
