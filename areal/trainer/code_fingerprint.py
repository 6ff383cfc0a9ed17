"""Fingerprint the code that a configuration names: rewards, workflows, datasets, tools, own blocks of an objective.

    fingerprint_code(config)      # {"reward my_rewards:score": {"my_rewards": "3f..", "helpers": "a0.."}, ...}

A checkpoint stores it, so that a run is not continued with a reward that was edited meanwhile without saying so. Of
code of the user, it covers the module that is named and what this imports from the same project: all files below the
folder that the module's name starts from. Of an installed package it covers the named module alone, and of the rewards
of this package what they share. Comments and blank lines do not count. Nothing is imported.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import sys
import sysconfig
import tokenize
from functools import cache
from importlib import invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.dataset.registry import DATASETS
from areal.reward.components import resolve_components
from areal.reward.registry import REWARDS
from areal.trainer.configuration.source import to_mapping
from areal.trainer.object_fingerprint import fingerprint_object
from areal.utils.given import find_given
from areal.workflow.registry import WORKFLOWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.trainer.config import RunConfig

Code = dict[str, dict[str, str]]
"""What is named, with the key it is named under, to modules and the hashes of their text."""

_SECTIONS: Final[dict[str, Mapping[str, str]]] = {
    "objective": {},
    "preference": {},
    "reward": REWARDS,
    "train_dataset": DATASETS,
    "workflow": WORKFLOWS,
    "workflow_options": {},
}
"""Keys of a configuration that can name code, and the registry of the names that stand for some."""
_SOURCE_SECTIONS: Final = {
    "dataset": "train_dataset",
    "reward": "reward",
    "workflow": "workflow",
    "workflow_options": "workflow_options",
}
"""The same of one of several sources, and the section of the run that each is like."""
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_SHARED_PACKAGE: Final = "areal.reward"


def fingerprint_code(config: RunConfig) -> Code:
    """Return the fingerprint of all code that the configuration names and that has a file."""
    invalidate_caches()  # a file that was written a moment ago
    found: Code = {}
    for key, section, value in _parts(to_mapping(config)):
        table = _SECTIONS[section]
        for name in _named(section, value):
            target = table.get(f"{name}_{getattr(config, 'dataset_kind', '')}") or table.get(name) or name
            if (handed_over := find_given(target)) is not None:
                found[f"{key} {name}"] = {"its code": fingerprint_object(handed_over)}
            elif modules := _modules_of(target):
                found[f"{key} {name}"] = {module: _hash(file.read_bytes()) for module, file in sorted(modules.items())}
    return found


def _parts(mapping: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (key, section, value) of what can name code; those of each source are sections of the run, too."""
    for section in _SECTIONS:
        yield section, section, mapping.get(section)
    for name, source in (mapping.get("sources") or {}).items():
        for own, section in _SOURCE_SECTIONS.items():
            yield f"sources.{name}.{own}", section, source.get(own)


def changed_code(before: Mapping[str, Mapping[str, str]], now: Code) -> list[str]:
    """Return a line for each thing named in both whose code is another one; with the modules it differs in."""
    lines = []
    for what in sorted(before.keys() & now.keys()):
        old, new = before[what], now[what]
        differ = [module for module in sorted({*old, *new}) if old.get(module) != new.get(module)]
        if differ:
            lines.append(f"  {what}: {', '.join(map(_describe, differ))}")
    return lines


def _describe(module: str) -> str:
    file = _file_of(module)
    return module if file is None else f"{module} ({file})"


def _named(section: str, value: Any) -> Iterator[str]:
    """Yield what a section may name code by; of a map of rewards, keys too."""
    if section == "reward" and value:
        for component in resolve_components(value):
            yield str(component.reward)
            yield from _strings(dict(component.options))
    else:
        yield from _strings(value)


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a section that may name code, each once."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)


def _modules_of(target: str) -> dict[str, Path]:
    """Return the modules behind "package.module:object" and their files; none for a text that names no code."""
    if _PATH.fullmatch(target):
        name, _, attribute = target.partition(":")
    elif re.fullmatch(r"\w+(\.\w+)+", target):
        name, _, attribute = target.rpartition(".")
    else:
        return {}
    file = _file_of(name)
    # The name of a file ("train.jsonl") looks like a path to an object, too.
    if file is None or attribute.partition(".")[0].encode() not in file.read_bytes():
        return {}
    depth = name.count(".") + (2 if file.name == "__init__.py" else 1)
    root = Path(*file.parts[: len(file.parts) - depth])
    found: dict[str, Path] = {}
    _collect(name, file, root, found)
    return found


def _collect(name: str, file: Path, root: Path, found: dict[str, Path]) -> None:
    """Add a module and those that it imports from its project to `found`."""
    if name in found:
        return
    found[name] = file
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for wanted in _imports(package, file.read_bytes()):
        # Packages on the way run as well; of `from a.b import c`, c may be a module or a thing in one.
        parts = wanted.split(".")
        for count in range(1, len(parts) + 1):
            module, inner = ".".join(parts[:count]), root.joinpath(*parts[:count])
            for candidate in (inner.with_suffix(".py"), inner / "__init__.py"):
                if _is_followed(name, module, file) and candidate.is_file():
                    _collect(module, candidate, root, found)


def _is_followed(name: str, wanted: str, file: Path) -> bool:
    """Whether the module `name` in `file` and the module that it imports belong to one project."""
    ours = __name__.partition(".")[0]
    if wanted.partition(".")[0] in sys.stdlib_module_names:
        return False
    if ours in (name.partition(".")[0], wanted.partition(".")[0]):
        return name.startswith(f"{_SHARED_PACKAGE}.") and wanted.startswith(f"{_SHARED_PACKAGE}.")
    return not any(file.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@cache
def _imports(package: str, content: bytes) -> tuple[str, ...]:
    """Return the dotted names that a module of a package imports, those inside functions included."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return ()
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    return tuple(found)


def _file_of(name: str) -> Path | None:
    """Return the source file of a module, found without importing the packages that it is in."""
    places: Any = None
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
        found_specs = (find(".".join(parts[:count]), places) for find in finders)
        try:
            spec = next((found for found in found_specs if found is not None), None)
        except KeyError:
            # A folder without __init__.py in another one: its spec asks for the parent in sys.modules.
            spec = None
            places = [str(inner) for place in places or () if (inner := Path(place, parts[count - 1])).is_dir()]
            continue
        places = None if spec is None else spec.submodule_search_locations
        if places is None and count < len(parts):
            return None
    found = None if spec is None or spec.origin is None else Path(spec.origin)
    return found.resolve() if found is not None and found.suffix == ".py" and found.is_file() else None


@cache
def _hash(content: bytes) -> str:
    """Hash the text of a module without comments and blank lines, which change nothing; strings stay as they are."""
    try:
        lines: list[str | None] = [*content.decode("utf-8").replace("\r\n", "\n").split("\n")]
        for token in tokenize.generate_tokens(io.StringIO("\n".join(map(str, lines))).readline):
            row, column = token.start[0] - 1, token.start[1]
            line = lines[row] if row < len(lines) else None
            if token.type == tokenize.COMMENT and line is not None:
                lines[row] = line[:column].rstrip()
            elif token.type == tokenize.NL and line is not None and not line.strip():
                lines[row] = None
        content = "\n".join(line for line in lines if line is not None).rstrip().encode()
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass  # what Python cannot read is compared as it is
    return hashlib.sha256(content).hexdigest()[:16]
