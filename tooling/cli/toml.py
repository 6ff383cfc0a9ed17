"""Reads TOML of the repository and of templates, each content once per process; and the version of the harness."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DISTRIBUTION = "areal"
TOMLError = (UnicodeDecodeError, tomllib.TOMLDecodeError)
"""What `parse_toml` raises for bytes that are not TOML."""


@functools.lru_cache(maxsize=64)
def parse_toml(content: bytes) -> Mapping[str, Any]:
    """Return the tables of a document. The result is shared by all callers: do not change it."""
    return tomllib.loads(content.decode("utf-8"))


def version() -> str:
    """Return the version of the harness, e.g. "0.1.0".

    A checkout is asked first: reading one file is quicker than searching installed packages, and the metadata of an
    editable install may be older than the code.
    """
    checkout = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if checkout.is_file():
        project = parse_toml(checkout.read_bytes()).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return str(project["version"])
    from importlib.metadata import version as installed_version

    return installed_version(DISTRIBUTION)


def table_in(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the table below these keys; {} where there is none."""
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
