"""Native decoder families: read from and written to Hugging Face checkpoints, with logits equal to `transformers`.

A family is a folder of six files (`args`, `model`, `state_dict_adapter`, `parallelize`, `spec`, `__init__`), put
together from the layers in `blocks`, and one line in
`registry`.

Importing this package does not import torch; calling its functions does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from areal.models.blocks.decoder import DecoderModel

__all__ = ["from_config", "from_pretrained", "save_pretrained"]


def from_pretrained(
    path: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> DecoderModel:
    """Load a checkpoint folder (config.json and safetensors); see `areal.models.loading.from_pretrained`."""
    from areal.models import loading

    return loading.from_pretrained(path, dtype=dtype, device=device)


def from_config(
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> DecoderModel:
    """Build a model with random weights from the content of a config.json; see `areal.models.loading.from_config`."""
    from areal.models import loading

    return loading.from_config(config, dtype=dtype, device=device, seed=seed)


def save_pretrained(model: DecoderModel, path: str | Path, *, max_shard_bytes: int | None = None) -> None:
    """Write a checkpoint folder that `transformers` loads; see `areal.models.saving.save_pretrained`."""
    from areal.models import saving

    saving.save_pretrained(model, path, max_shard_bytes=max_shard_bytes)
