"""A frozen model that only scores tokens: the reference of a KL penalty, or a teacher."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

import torch

from areal.engine.train.config import TrainEngineConfig
from areal.engine.train.forward import forward_logp, to_device

if TYPE_CHECKING:
    from torch import Tensor, nn

    from areal.api import PaddedBatch


class FrozenModel:
    """Scores batches with weights that never change; the numbers come from the same code as the training engine's.

    reference = FrozenModel.copy_of(engine.model, config=engine.config)   # before the first step
    logp_ref = reference.forward_logp(batch, temperature=1.0)
    """

    def __init__(self, model: nn.Module, *, config: TrainEngineConfig | None = None) -> None:
        """Take over `model` where it is: gradients are switched off. config: micro-batch and chunk sizes; defaults if
        None."""
        self._config = config or TrainEngineConfig()
        self._model = model.requires_grad_(False)
        self._device = next(model.parameters()).device

    @classmethod
    def copy_of(cls, model: nn.Module, *, config: TrainEngineConfig | None = None) -> Self:
        """Freeze a copy; the original stays trainable and the copy is not affected by its updates."""
        return cls(copy.deepcopy(model), config=config)

    @torch.no_grad()
    def forward_logp(self, batch: PaddedBatch, *, temperature: float = 1.0, only_masked: bool = False) -> Tensor:
        """See `TrainingEngine.forward_logp`."""
        moved = to_device(batch, self._device)
        result = forward_logp(self._model, moved, self._config, temperature=temperature, only_masked=only_masked)
        return result.to(batch.tokens.device)
