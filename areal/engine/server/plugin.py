"""Copies the few modules that workers of a server program need into a folder for the server's import path.

A server program runs in its own environment. Adding this installation's folder to its path would shadow its packages
with ours, so only the modules that a program names are copied, under their usual names.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from areal.api import EngineError
from areal.utils.atomic import atomic_directory

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_plugin(folder: Path, modules: Sequence[str]) -> Path:
    """Write the modules below `folder` and return the entry for PYTHONPATH. An older copy is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_directory(folder, replace=True) as staging:
        for name in modules:
            found = importlib.util.find_spec(name)
            if found is None or found.origin is None:
                raise EngineError(f"module {name} has no file; areal must be installed as files to launch servers")
            target = staging.joinpath(*name.split(".")).with_suffix(".py")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(found.origin).read_bytes())
        for package in {
            parent for path in staging.rglob("*.py") for parent in path.parents if staging in parent.parents
        }:
            (package / "__init__.py").write_text('"""Part of the copy that workers load."""\n', encoding="utf-8")
    return folder
