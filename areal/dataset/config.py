"""Configuration of one dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from areal.api import Config
from areal.hub.names import RepoKind

Overlong = Literal["error", "filter", "truncate"]
"""What is done about rows that are too long; see `areal.dataset.limits`."""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """Which rows, and how they are read."""

    name: str = ""
    """Registry name (`areal/dataset/registry.py`) or an importable path "package.module:loader". Required."""
    path: str = ""
    """Folder, file, or org/name@revision of the hub (docs/hub.md); empty uses the rows packaged with the loader, where
    it has some."""
    split: str = "train"
    """Split to read."""
    max_length: int | None = None
    """Most tokens of a row: of the prompt for RL, of all for SFT, of the longer side for preferences. null sets no
    limit; an RL prompt must leave room for gconfig.max_new_tokens in the engine's max_seq_len in any case."""
    overlong: Overlong = "filter"
    """Rows with more tokens. filter: left out and counted, in the log and the dry run; error: refused, with their
    lines; truncate: answers lose their end, and RL prompts the beginning of their longest turn."""
    shuffle: bool = True
    """Visit rows in a new seeded order each epoch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the loader."""

    hub_fields: ClassVar[dict[str, RepoKind]] = {"path": "dataset"}
    """Fields that take names of the hub."""
