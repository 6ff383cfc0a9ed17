"""Configuration of one dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from areal.api import Config


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """Which rows, and how they are read."""

    name: str = ""
    """Registry name (`areal/dataset/registry.py`) or an importable path "package.module:loader". Required."""
    path: str = ""
    """Folder, file or hub id; empty uses the rows packaged with the loader, where it has some."""
    split: str = "train"
    """Split to read."""
    max_length: int | None = None
    """Rows with more tokens are dropped (prompt tokens for RL, all tokens for SFT); null keeps all."""
    shuffle: bool = True
    """Visit rows in a new seeded order each epoch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the loader."""
