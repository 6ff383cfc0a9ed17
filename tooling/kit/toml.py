"""TOML of the repository and of templates, each content parsed once per process."""

from __future__ import annotations

import functools
import tomllib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TOMLError = (UnicodeDecodeError, tomllib.TOMLDecodeError)
"""What `parse_toml` raises for bytes that are no TOML."""


@functools.lru_cache(maxsize=64)
def parse_toml(content: bytes) -> Mapping[str, Any]:
    """The tables of a document. The result is shared by all callers: do not change it."""
    return tomllib.loads(content.decode("utf-8"))
