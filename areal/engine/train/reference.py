"""A frozen model that only scores tokens: the reference of a KL penalty, or a teacher."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from areal.engine.train.config import TrainEngineConfig
from areal.engine.train.runner import ModelRunner

if TYPE_CHECKING:
    from torch import Tensor, nn

    from areal.api import PaddedBatch
    from areal.engine.train.config import ArchonConfig
    from areal.engine.train.loading import ShardSource


class FrozenModel:
    """Scores batches with weights that never change; the numbers come from the same code as the training engine's.

    reference = FrozenModel.copy_of(engine.model, config=engine.config)   # before the first step
    logp_ref = reference.forward_logp(batch, temperature=1.0)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        config: TrainEngineConfig | None = None,
        archon: ArchonConfig | None = None,
        source: ShardSource | None = None,
    ) -> None:
        """Take over `model` where it is: gradients are switched off. config: micro-batch and chunk sizes; defaults if
        None. archon, source: as of a `TrainingEngine`, on every rank."""
        settings = replace(config or TrainEngineConfig(), lora=None, gradient_checkpointing=False)
        self._runner = ModelRunner(model.requires_grad_(False), settings, archon, source=source)

    @classmethod
    def copy_of(cls, model: nn.Module, *, config: TrainEngineConfig | None = None) -> Self:
        """Freeze a copy; the original stays trainable and the copy is not affected by its updates."""
        return cls(copy.deepcopy(model), config=config)

    def forward_logp(self, batch: PaddedBatch, *, temperature: float = 1.0, only_masked: bool = False) -> Tensor:
        """See `TrainingEngine.forward_logp`."""
        return self._runner.forward_logp(batch, temperature=temperature, only_masked=only_masked)
