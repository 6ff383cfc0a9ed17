"""Engines of models in checkpoint folders that no host can hold; how their shards are read is `loading`'s business."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.engine.archon.engine import ArchonEngine
from areal.engine.archon.loading import ShardSource
from areal.models.value_head import ValueModel

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from areal.engine.archon.config import ArchonConfig
    from areal.engine.train.config import TrainEngineConfig


def engine_from_pretrained(
    path: Path,
    *,
    config: TrainEngineConfig,
    archon: ArchonConfig,
    device: torch.device,
    total_steps: int | None = None,
    is_critic: bool = False,
) -> ArchonEngine:
    """`ArchonEngine(from_pretrained(path), ...)`, of a native family, for models that no host can hold.

    with connected() as device:
        engine = engine_from_pretrained(path, config=TrainEngineConfig(), archon=ArchonConfig(...), device=device)

    Called by all ranks. is_critic: with a value head that starts at zero, as that of a new ValueModel. Raises what
    `from_pretrained` and `ArchonEngine` raise, on all ranks when a file fails on one. Adapters are small: all of them
    are on every rank until they are split.
    """
    source = ShardSource(path, device)
    model = source.blank()
    return ArchonEngine(
        ValueModel(model) if is_critic else model,
        config=config,
        archon=archon,
        total_steps=total_steps,
        is_critic=is_critic,
        source=source,
    )
