"""Configuration of one dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from areal.api import Config, number
from areal.hub.names import RepoKind

Overlong = Literal["error", "filter", "truncate"]
"""What is done about rows that are too long; see `areal.dataset.limits`."""


@dataclass(frozen=True, kw_only=True)
class ImageReadingConfig(Config):
    """How files of images become pixels."""

    max_pixels: int | None = number(None, at_least=1)
    """Most pixels of an image as the model gets it, of models that keep proportions; null for what the image processor
    of the checkpoint allows. RL of the same model has it in workflow_options."""
    max_file_bytes: int = number(32 * 2**20, at_least=1)
    """Larger files are refused, in bytes."""
    max_file_pixels: int = number(2**25, at_least=1)
    """Files that declare more pixels are refused before they are decoded."""
    first_frame: bool = False
    """Read films as their first frame instead of refusing them."""


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
