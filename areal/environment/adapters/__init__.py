"""Adapters to packages of others: gymnasium, mcp, openenv, textarena. None is needed to import areal; each is imported
when an environment is made, in the interpreter where that runs: `scripts/setup_environments.sh` makes one, and
`scripts/setup_openenv.sh` that of openenv. verifiers_agent is for `workflow: agent`: the harness of verifiers calls a
model by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from areal.api import ConfigError

if TYPE_CHECKING:
    from types import ModuleType


def require(package: str, group: str = "environments") -> ModuleType:
    """Import a package that an adapter speaks to. Raises ConfigError that says how to get it.

    group: scripts/setup_GROUP.sh installs it into .venv-GROUP.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise ConfigError(
            f"package {package!r} is not installed in the interpreter of the environment; run `bash "
            f"scripts/setup_{group}.sh` and set host: {{kind: subprocess, python: .venv-{group}/bin/python}} "
            f"(an absolute path), or install it",
            where="environment",
        ) from error
